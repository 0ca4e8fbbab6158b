"""What went wrong in a user's own code, and where: type, sentence, file, line, last frames."""

import os
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from mlxdoctor.safety.errors import InputError
from mlxdoctor.safety.limits import TimeLimitExceeded
from mlxdoctor.safety.quoting import MAX_LINE, quoted

#: So many of the user's own frames are shown, the innermost last.
FRAMES = 4
_OURS = str(Path(__file__).resolve().parents[1]) + os.sep


class UserCodeError(InputError):
    """A user's own code that could not be used."""


@dataclass(frozen=True)
class UserFailure:
    """An exception out of a user's code.

    Attributes:
        what: its type and message, as one line.
        frames: the last lines of the user's code that were running, the innermost last, as
            `file.py:12 in function: code`; the innermost of all where none is the user's.
    """

    what: str
    frames: tuple[str, ...]

    @property
    def place(self) -> str:
        """`file.py:12` of the innermost frame; empty where there is none."""
        return self.frames[-1].partition(" in ")[0] if self.frames else ""

    @property
    def sentence(self) -> str:
        return f"{self.what}, at {self.place}" if self.frames else self.what


def failure_of(error: BaseException) -> UserFailure:
    """What to say of an exception that a user's code raised."""
    what, message = type(error).__name__, ""
    with suppress(Exception):  # the text of an exception is the user's code, too
        message = str(error)
    if message:
        what += f": {quoted(message, MAX_LINE)}"
    if isinstance(error, SyntaxError) and error.filename:
        return UserFailure(what, (f"{_short(error.filename)}:{error.lineno}",))
    frames = list(traceback.extract_tb(error.__traceback__))
    theirs = [frame for frame in frames if _is_theirs(frame.filename)]
    shown = []
    for frame in (theirs or frames[-1:])[-FRAMES:]:
        code = f": {quoted(frame.line, MAX_LINE)}" if frame.line else ""
        shown.append(f"{_short(frame.filename)}:{frame.lineno} in {frame.name}{code}")
    return UserFailure(what, tuple(shown))


@contextmanager
def kept_running(what: str) -> Iterator[None]:
    """While the context lasts, code of the user's that ends the program raises instead.

    Args:
        what: whose code it is, as the sentence begins: "trainer.py:parts".

    Raises:
        UserCodeError: it called `sys.exit`, or raised what is no `Exception`.
    """
    try:
        yield
    except BaseException as error:
        if isinstance(error, Exception | KeyboardInterrupt | TimeLimitExceeded):
            raise
        failure = failure_of(error)
        called = f"SystemExit: {error.code}" if isinstance(error, SystemExit) else failure.what
        problem = f"{what} ends the program ({called}, at {failure.place})"
        remedy = "let it return, or raise an error"
        raise UserCodeError(None, problem, remedy, failure.frames) from error


def _is_theirs(file: str) -> bool:
    path = str(Path(file).resolve())
    return not file.startswith("<") and not path.startswith((_OURS, *_installed()))


@cache
def _installed() -> tuple[str, ...]:
    # Not at import: it reads how this Python was built, and most commands run no user's code.
    import sysconfig

    paths = (sysconfig.get_path(name) for name in ("stdlib", "purelib"))
    return tuple({str(Path(path).resolve()) + os.sep for path in paths})


def _short(file: str) -> str:
    path = Path(file)
    try:
        return str(path.resolve().relative_to(Path.cwd()))
    except ValueError:
        return path.name if _is_theirs(file) else "/".join(path.parts[-3:])
