"""What is being done now, written where another process can read it after this one has died.

A library in C may crash, hang or fill the memory, and nothing in the process that called it can
say so. Where a program is watched (see `watched`), each thing that is done is a *stage*: entering
it writes its name and its limits into a page of memory that is shared with the watching parent.
Where nobody watches, a stage costs a comparison.

What the parent stopped may be left out when the work is begun again: entering that stage then
raises `StageStopped` with the parent's sentence.
"""

from __future__ import annotations

import math
import mmap
import os
import signal
import struct
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from types import FrameType, TracebackType
from typing import NoReturn

from mlxdoctor.safety.errors import InputError

#: An item and a stage of it -> the sentence that says why it is left out.
LeftOut = Mapping[tuple[str, str], str]

#: The stage that is left out where models died: everything that runs one.
MODELS = "running the models"
#: Bytes of a page; stages within stages that are written down; bytes of a name.
PAGE, DEPTH, NAME = 4096, 16, 190
_HEADER = struct.Struct("<BBBBId")
_FRAME = struct.Struct(f"<QdddBH{NAME + 20}s")
_FIRST = 64


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


class State(IntEnum):
    """How far a watched process is."""

    STARTING = 0
    WORKING = 1
    ENDED = 2


class StageStopped(InputError):  # noqa: N818 - what became of a stage
    """A stage that was stopped when this work was first done, and is now left out."""

    def __init__(self, sentence: str) -> None:
        super().__init__(None, sentence)

    def __reduce__(self) -> tuple[type[StageStopped], tuple[str]]:
        return StageStopped, (self.problem,)


@dataclass(frozen=True)
class Frame:
    """A stage as the parent reads it.

    Attributes:
        serial: different whenever a stage is entered.
        busy, wall: seconds that it may be busy, and that it may take.
        growth: bytes that the process may grow by.
        kind: what it is.
        name: a clause: "reading the tokenizer of base".
        limit: the limit that raises its seconds; empty where none does.
    """

    serial: int
    busy: float
    wall: float
    growth: float
    kind: Kind
    name: str
    limit: str


@dataclass(frozen=True)
class Told:
    """What a page says.

    Attributes:
        state: how far the process is.
        code: its exit code, once it has ended.
        has_models: whether it has loaded a model.
        interrupts: times that Ctrl-C reached its Python.
        weights: bytes of the files of weights that it has opened.
        frames: the stages that it is in, the innermost last.
    """

    state: State
    code: int
    has_models: bool
    interrupts: int
    weights: float
    frames: tuple[Frame, ...]


class Slot:
    """The page: written by the watched process, read by its parent."""

    def __init__(self, descriptor: int) -> None:
        self._page = mmap.mmap(descriptor, PAGE)
        self._depth = 0
        self._serial = 0
        self._models = 0
        self._interrupts = 0
        self._weights = 0.0

    def enter(self, name: bytes, busy: float, wall: float, growth: float, kind: Kind) -> None:
        """Write a stage down."""
        self._serial += 1
        if self._depth < DEPTH:
            offset = _FIRST + self._depth * _FRAME.size
            values = (self._serial, busy, wall, growth, kind, len(name), name)
            _FRAME.pack_into(self._page, offset, *values)
        self._depth += 1
        self._page[0] = min(self._depth, DEPTH)

    def leave(self) -> None:
        """The innermost stage is over."""
        self._depth -= 1
        self._page[0] = min(self._depth, DEPTH)

    def say(self, state: State, code: int = 0) -> None:
        """Write how far the process is."""
        head = (min(self._depth, DEPTH), state, code & 0xFF, self._models)
        _HEADER.pack_into(self._page, 0, *head, self._interrupts, self._weights)

    def models(self) -> None:
        """A model is loaded from now on."""
        self._models = 1
        self.say(State.WORKING)

    def opened(self, size: float) -> None:
        """A file of weights of that many bytes is read from now on."""
        self._weights += size
        self.say(State.WORKING)

    def interrupted(self) -> None:
        """Ctrl-C has reached Python."""
        self._interrupts += 1
        self.say(State.WORKING)

    def read(self) -> Told:
        """What the page says: of a moment, where its writer is still alive."""
        for _ in range(10):
            content = self._page[:]
            if content == self._page[:]:
                break
        depth, state, code, models, interrupts, weights = _HEADER.unpack_from(content)
        frames = [_FRAME.unpack_from(content, _FIRST + at * _FRAME.size) for at in range(depth)]
        return Told(
            State(state), code, bool(models), interrupts, weights, tuple(map(_told, frames))
        )

    def close(self) -> None:
        """Give the page back."""
        self._page.close()


def _told(values: tuple[int, float, float, float, int, int, bytes]) -> Frame:
    serial, busy, wall, growth, kind, length, text = values
    name, _, limit = text[:length].decode("utf-8", "replace").partition("\0")
    return Frame(serial, busy, wall, growth, Kind(kind), name, limit)


class Stage:
    """Something that is done, with what it may take; a context.

    Args:
        name: a clause that begins a sentence: "reading the tokenizer of base".
        kind: what it is.
        limit: the name of the reading limit that says how many seconds it may be busy.
        wall: seconds that it may take whether it is busy or not.
    """

    __slots__ = ("_bytes", "_kind", "_limit", "_wall", "name")

    def __init__(
        self,
        name: str,
        kind: Kind = Kind.WORK,
        *,
        limit: str = "check_seconds",
        wall: float = math.inf,
    ) -> None:
        cut = name.encode("utf-8", "replace")[:NAME]
        self.name = cut.decode("utf-8", "ignore")
        self._bytes = cut + b"\0" + limit.encode()
        self._kind = kind
        self._limit = limit
        self._wall = wall

    def __enter__(self) -> None:
        if _watched is not None:
            _watched.enter(self.name, self._bytes, self._limit, self._wall, self._kind)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if _watched is not None:
            _watched.leave()


class _Watched:
    """This process, as one that is watched."""

    def __init__(self, slot: Slot) -> None:
        # The parent does without.
        from mlxdoctor.safety.reading_limits import ReadingLimits, current

        self.slot = slot
        self._limits, self._in_force = current, ReadingLimits()
        self.left_out: LeftOut = {}
        self._items: list[str] = []
        self._kinds: list[Kind] = []
        self._opened: set[Path] = set()
        # Stages are those of one thread.
        self._thread = threading.get_ident()

    def enter(self, name: str, text: bytes, limit: str, wall: float, kind: Kind) -> None:
        if threading.get_ident() != self._thread:
            return
        # They do not change while an item is examined.
        limits = self._in_force if self._items else self._limits()
        self._in_force = limits
        item = name if kind is Kind.ITEM or not self._items else self._items[-1]
        self._refuse(item, name)
        if kind is Kind.ITEM:
            self._items.append(name)
        self._kinds.append(kind)
        growth: float = limits.stage_bytes
        if kind is Kind.CODE:
            # It may load a model, and keep it.
            growth = math.inf
            self.slot.models()
        self.slot.enter(text, getattr(limits, limit) if limit else math.inf, wall, growth, kind)

    def leave(self) -> None:
        if threading.get_ident() != self._thread:
            return
        if self._kinds.pop() is Kind.ITEM:
            self._items.pop()
        self.slot.leave()

    def models(self) -> None:
        """A model is loaded from now on."""
        if self._items:
            self._refuse(self._items[-1], MODELS)
        self.slot.models()

    def opened(self, path: Path, size: int) -> None:
        """A file of weights is read from now on; it counts once."""
        if path not in self._opened:
            self._opened.add(path)
            self.slot.opened(size)

    def _refuse(self, item: str, name: str) -> None:
        sentence = self.left_out.get((item, name))
        if sentence is not None:
            raise StageStopped(sentence)


_watched: _Watched | None = None


def attach(slot: int, line: int) -> None:
    """Be watched from now on, by the parent that gave these file descriptors.

    Args:
        slot: of the page.
        line: the end of a pipe; when its other end is gone, so is the parent, and this process
            ends as well.
    """
    global _watched  # noqa: PLW0603 - a process is watched or not
    for one in (slot, line):
        os.set_inheritable(one, False)
    _watched = _Watched(Slot(slot))
    os.close(slot)
    _watched.slot.say(State.WORKING)
    threading.Thread(target=_until_alone, args=(line,), daemon=True, name="line").start()
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupted)


def _until_alone(line: int) -> None:
    os.read(line, 1)
    os.kill(os.getpid(), signal.SIGKILL)


def _interrupted(number: int, frame: FrameType | None) -> NoReturn:
    del number, frame
    if _watched is not None:
        _watched.slot.interrupted()
    raise KeyboardInterrupt


def leave_out(stopped: LeftOut) -> None:
    """From now on, refuse these stages of these items."""
    if _watched is not None:
        _watched.left_out = stopped


def ended(code: int) -> int:
    """Say that this process ends of its own will, with that exit code, which is returned."""
    if _watched is not None:
        _watched.slot.say(State.ENDED, code)
    return code


def models_run() -> None:
    """A model is loaded from now on, so that memory is limited by the machine's alone.

    Raises:
        StageStopped: models are left out.
    """
    if _watched is not None:
        _watched.models()


def weights_opened(path: Path) -> None:
    """A file of weights is read from now on: its values may take the memory that it takes.

    What counts is what the file has on the disk: a terabyte of nothing is not there.
    """
    if _watched is not None:
        try:
            status = path.stat()
        except OSError:
            return
        # Some file systems do not say how many blocks a file has.
        there = getattr(status, "st_blocks", 0) * 512 or status.st_size
        _watched.opened(path, min(status.st_size, there))
