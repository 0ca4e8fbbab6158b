"""The frames of a traceback, as Python, rich and IPython show them, and the one to look at."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

#: Innermost frames of a traceback that are kept; a recursion has a thousand.
MAX_FRAMES = 40
#: Characters of a source line that are kept.
MAX_CODE = 300

_LINE = r"(?P<line>\d{1,7})"
_STYLES = (
    re.compile(rf'\s*File "(?P<file>[^"]{{1,400}})", line {_LINE}(?:, in (?P<name>\S+))?'),
    # rich: `/home/me/train.py:12 in main`, whose name may be on the next line.
    re.compile(
        rf"(?P<file>(?:[/~.<]|[A-Za-z]:\\)[^:\n]{{0,400}}):{_LINE} in(?:\s+(?P<name>\S+))?\s*$"
    ),
    # IPython: `File ~/train.py:12, in main(model)`, `Cell In[3], line 5`.
    re.compile(rf"\s*File (?P<file>[^\s\"][^:\n]{{0,400}}):{_LINE}(?:, in (?P<name>[\w<>.]+))?"),
    re.compile(rf"\s*(?P<file>Cell In\s?\[\d{{1,6}}\]), line {_LINE}(?:, in (?P<name>[\w<>.]+))?"),
)
#: A path that rich broke at the width of the terminal.
_PART = re.compile(r"(?:[/~]|[A-Za-z]:\\)\S+$")
#: The line that a frame is at, where others stand around it.
_POINTED = re.compile(r"\s*(?:❱|-{2,}>)\s*\d{1,7}\s+(?P<code>\S.*)")
_LIBRARY = re.compile(
    r"site-packages|dist-packages|lib/python\d|\\Lib\\|^<"
    # What a package's installation put there to start it.
    r"|(?:^|[/\\])(?:bin|Scripts)[/\\][^/\\]+(?<!\.py)$"
)


@dataclass(frozen=True)
class Frame:
    """One frame: file, line and function, with the source line as far as it was shown."""

    file: str
    line: str
    name: str = ""
    code: str = ""

    @property
    def is_own(self) -> bool:
        """Whether it is the user's own code: no library's, and no program's that starts one."""
        return _LIBRARY.search(self.file) is None

    @property
    def place(self) -> str:
        """`file:line`."""
        return f"{self.file}:{self.line}"


@dataclass
class Frames:
    """The frames of the traceback that is being read.

    Attributes:
        begun: the number of its first line; None outside of one.
        has_ended: whether its frames are complete, and the exception comes next.
        kept: the innermost, outermost first.
    """

    begun: int | None = None
    has_ended: bool = False
    kept: list[Frame] = field(default_factory=list)
    _before: str = ""

    def begin(self, number: int) -> None:
        """A traceback begins."""
        self.begun, self.has_ended, self.kept, self._before = number, False, [], ""

    def read(self, line: str) -> None:
        """One of its lines: a frame, a line of source, or neither."""
        joined = self._before + line.strip() if _PART.match(self._before) else ""
        before, self._before = self._before, line.strip()
        found = next((one for text in (line, joined) if (one := _frame(text))), None)
        if found is not None:
            self.kept = [*self.kept[1 - MAX_FRAMES :], found]
            return
        if not self.kept or not line.strip():
            return
        last = self.kept[-1]
        pointed = _POINTED.match(line)
        if not last.name and before.endswith(" in"):
            self.kept[-1] = Frame(last.file, last.line, line.split(maxsplit=1)[0])
        elif pointed is not None:
            self.kept[-1] = replace(last, code=pointed["code"][:MAX_CODE])
        elif not last.code and _STYLES[0].match(before):
            self.kept[-1] = replace(last, code=line.strip()[:MAX_CODE])

    def take(self) -> tuple[Frame, ...]:
        """The frames, outermost first; the traceback is over."""
        found = tuple(self.kept)
        self.begun, self.has_ended, self.kept, self._before = None, False, [], ""
        return found


def decisive(frames: tuple[Frame, ...]) -> Frame | None:
    """The innermost frame in the user's own code, else the innermost; None without one."""
    own = [one for one in frames if one.is_own] or frames
    return own[-1] if own else None


def _frame(text: str) -> Frame | None:
    found = next((match for style in _STYLES if (match := style.match(text))), None)
    if found is None:
        return None
    # IPython names a method with its class.
    return Frame(found["file"].strip(), found["line"], (found["name"] or "").rpartition(".")[2])
