"""What went wrong in a user's own code, and where: type, sentence, file, line."""

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

_OURS = str(Path(__file__).resolve().parents[1]) + os.sep


class UserCodeError(InputError):
    """A user's own code that could not be used."""


@dataclass(frozen=True)
class UserFailure:
    """An exception out of a user's code.

    Attributes:
        what: its type and message, as one line.
        place: `file.py:12`, the innermost line of the user's code that was running, or of all
            code where none is the user's; empty where there is none.
    """

    what: str
    place: str

    @property
    def sentence(self) -> str:
        return f"{self.what}, at {self.place}" if self.place else self.what


def failure_of(error: BaseException) -> UserFailure:
    """What to say of an exception that a user's code raised."""
    what, message = type(error).__name__, ""
    with suppress(Exception):  # the text of an exception is the user's code, too
        message = str(error)
    if message:
        what += f": {quoted(message, MAX_LINE)}"
    if isinstance(error, SyntaxError) and error.filename:
        return UserFailure(what, f"{_short(error.filename)}:{error.lineno}")
    frames = list(traceback.extract_tb(error.__traceback__))
    theirs = [frame for frame in frames if _is_theirs(frame.filename)]
    innermost = next(reversed(theirs or frames), None)
    place = "" if innermost is None else f"{_short(innermost.filename)}:{innermost.lineno}"
    return UserFailure(what, place)


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
        raise UserCodeError(None, problem, "let it return, or raise an error") from error


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
