"""What is being done now, written where another process can read it after this one has died.

A library in C may crash, hang or fill the memory, and nothing in the process that called it can
say so. Where a program is watched (see `watched`), each thing that is done is a *stage*: entering
it writes its name and its limits into a page of memory that is shared with the watching parent.
What the parent stopped may be left out when the work is begun again: entering that stage then
raises `StageStopped` with the parent's sentence.
"""

import json
import math
import mmap
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from enum import IntEnum
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple

from mlxdoctor.safety.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

#: An item and a stage of it -> the sentence that says why it is left out.
LeftOut = Mapping[tuple[str, str], str]

#: What a child finds its page, its line and what to leave out by.
VARIABLE = "MLXDOCTOR_WATCHED"
#: The stage that is left out where models died: everything that runs one.
MODELS = "running the models"
#: Bytes of a page; stages within stages that are written down; characters of a name.
PAGE, DEPTH, NAME = 1 << 14, 12, 190
#: A Ctrl-C that comes so soon after another (seconds) is the same one: the terminal sends it to
#: the child and to its parent, which passes it on.
SAME_INTERRUPT = 1.0


class Kind(IntEnum):
    """What a stage is, and so what may be left out and which limits hold."""

    #: A run or an adapter: the work on it can be begun again with a stage left out.
    ITEM = 0
    #: A kind of evidence, a check.
    WORK = 1
    #: A call into a library that a file steers: no model runs meanwhile, whatever is loaded.
    LIBRARY = 2
    #: The user's own code, which takes what memory it likes and is never begun again.
    CODE = 3


class StageStopped(InputError):  # noqa: N818 - what became of a stage
    """A stage that was stopped when this work was first done, and is now left out."""


class Frame(NamedTuple):
    """A stage as the parent reads it.

    Attributes:
        serial: different whenever a stage is entered.
        name: a clause: "reading the tokenizer of base".
        limit: the reading limit that raises its seconds; empty where none does.
        busy, wall: seconds that it may be busy, and that it may take.
    """

    serial: int
    kind: int
    name: str
    limit: str
    busy: float
    wall: float


class Notes(NamedTuple):
    """What a watched process says of itself, once it `is_watched`.

    Attributes:
        code: its exit code, once it has ended of its own will.
        weights: bytes of the files of weights that it has opened.
        growth: bytes that a stage may grow by.
        frames: the stages that it is in, the innermost last.
    """

    is_watched: bool = False
    code: int | None = None
    has_models: bool = False
    weights: int = 0
    growth: float = math.inf
    frames: tuple[Frame, ...] = ()


class Page:
    """Memory that a watched process writes and its parent reads.

    Args:
        descriptor: of a file of `PAGE` bytes.
    """

    def __init__(self, descriptor: int) -> None:
        self._memory = mmap.mmap(descriptor, PAGE)
        self._last = Notes()

    def write(self, notes: Notes) -> None:
        """Say this in place of what was said before."""
        text = json.dumps(notes._replace(frames=notes.frames[:DEPTH])).encode() + b"\0"
        self._memory[: len(text)] = text

    def read(self) -> Notes:
        """What is said; what was read before where the writer is in the middle of a word."""
        content = self._memory[:]
        if content == self._memory[:]:
            try:
                values = json.loads(content.partition(b"\0")[0])
                values[-1] = tuple(Frame(*frame) for frame in values[-1])
                self._last = Notes(*values)
            except ValueError:  # nothing was written yet, or the writer died over it
                pass
        return self._last

    def close(self) -> None:
        self._memory.close()


class Stage(NamedTuple):
    """Something that is done, with what it may take; a context.

    Attributes:
        name: a clause that begins a sentence: "reading the tokenizer of base".
        limit: the reading limit that says how many seconds it may be busy; "" for none.
        wall: seconds that it may take whether it is busy or not.
    """

    name: str
    kind: Kind = Kind.WORK
    limit: str = "check_seconds"
    wall: float = math.inf

    def __enter__(self) -> None:
        if _watched is not None and _watched.thread == threading.get_ident():
            _watched.enter(self)

    def __exit__(self, *_: object) -> None:
        if _watched is not None and _watched.thread == threading.get_ident():
            _watched.note(frames=_watched.notes.frames[:-1])


class _Watched:
    """This process, as one that is watched."""

    def __init__(self, page: Page, left_out: LeftOut) -> None:
        # The parent does without.
        from mlxdoctor.safety.reading_limits import current

        self.left_out = left_out
        self.opened: set[Path] = set()
        #: The one whose stages are written down.
        self.thread = threading.get_ident()
        self.notes = Notes(is_watched=True)
        self._page = page
        self._limits = current
        self._serial = 0
        page.write(self.notes)

    def note(self, **changed: Any) -> None:
        self.notes = self.notes._replace(**changed)
        self._page.write(self.notes)

    def enter(self, stage: Stage) -> None:
        """Write a stage down, or refuse it."""
        limits, name = self._limits(), stage.name[:NAME]
        self.refuse(name, name if stage.kind is Kind.ITEM else None)
        self._serial += 1
        busy = getattr(limits, stage.limit) if stage.limit else math.inf
        frame = Frame(self._serial, stage.kind, name, stage.limit, busy, stage.wall)
        # The user's code may load a model, and keep it.
        has_models = self.notes.has_models or stage.kind is Kind.CODE
        frames = (*self.notes.frames, frame)
        self.note(frames=frames, has_models=has_models, growth=limits.stage_bytes)

    def refuse(self, name: str, item: str | None = None) -> None:
        """Refuse a stage that is left out of an item: of the one that is worked on, or another."""
        if item is None:
            items = (frame.name for frame in self.notes.frames if frame.kind == Kind.ITEM)
            item = next(items, "")
        if (sentence := self.left_out.get((item, name))) is not None:
            raise StageStopped(None, sentence)


_watched: _Watched | None = None


def attach() -> bool:
    """Be watched by the parent that started this process so; False where none did."""
    global _watched  # noqa: PLW0603 - a process is watched or not
    text = os.environ.pop(VARIABLE, None)
    if text is None:
        return False
    handed = json.loads(text)
    for descriptor in (handed["page"], handed["line"]):
        os.set_inheritable(descriptor, False)
    left_out = {(item, stage): sentence for item, stage, sentence in handed["left_out"]}
    _watched = _Watched(Page(handed["page"]), left_out)
    os.close(handed["page"])
    threading.Thread(target=_until_alone, args=(handed["line"],), daemon=True, name="line").start()
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _raising_once())
    return True


def _until_alone(line: int) -> None:
    """End this process when its parent has ended, and the other end of the line is gone."""
    with suppress(OSError):
        os.read(line, 1)
    os.kill(os.getpid(), signal.SIGKILL)


def _raising_once() -> Callable[[int, FrameType | None], None]:
    """A handler that raises once for a Ctrl-C that comes twice."""
    last = -math.inf

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last > SAME_INTERRUPT:
            last = now
            raise KeyboardInterrupt

    return interrupt


def leave_out(stopped: LeftOut) -> None:
    """From now on, refuse these stages of these items."""
    if _watched is not None:
        _watched.left_out = stopped


def ended(code: int) -> int:
    """Say that this process ends of its own will, with that exit code, which is returned."""
    if _watched is not None:
        _watched.note(code=code & 0xFF)
    return code


def models_run() -> None:
    """A model is loaded from now on, so that memory is limited by the machine's alone.

    Raises:
        StageStopped: models are left out.
    """
    if _watched is not None:
        _watched.refuse(MODELS)
        _watched.note(has_models=True)


def weights_opened(path: "Path") -> None:
    """A file of weights is read from now on: its values may take the memory that it takes.

    What counts, once, is what the file has on the disk: a terabyte of nothing is not there.
    """
    if _watched is None or path in _watched.opened:
        return
    with suppress(OSError):
        status = path.stat()
        # Some file systems do not say how many blocks a file has.
        allocated = getattr(status, "st_blocks", 0) * 512 or status.st_size
        _watched.opened.add(path)
        _watched.note(weights=_watched.notes.weights + min(status.st_size, allocated))
