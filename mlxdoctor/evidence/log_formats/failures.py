"""Lines that say that the run broke off, and the tracebacks of Python and IPython."""

import builtins
import re

from mlxdoctor.evidence.logs.log_format import LineFormat, LogSoFar, messages
from mlxdoctor.evidence.logs.series import LogFailure

#: Failures kept; a crash loop repeats itself.
MAX_FAILURES = 50
#: Innermost frames of a traceback that are kept; a recursion has a thousand.
MAX_FRAMES = 40
#: Characters of a line that are kept.
MAX_TEXT = 300

#: What torchrun writes before each line of a process.
_RANK = re.compile(r"^\[(?:rank|default)\d{1,4}\]:\s?")
#: Between two exceptions of which the second came of the first.
_CHAINED = re.compile(
    r"^(?:During handling of the above exception|The above exception was the direct cause)"
)
_BEGIN = "Traceback (most recent call last)"
_LINE = r"(?P<line>\d{1,7})"
_PYTHON = re.compile(rf'\s*File "(?P<file>[^"]{{1,400}})", line {_LINE}(?:, in (?P<name>\S+))?')
_STYLES = (
    _PYTHON,
    # IPython: `File ~/train.py:12, in main(model)`, `Cell In[3], line 5`.
    re.compile(rf"\s*File (?P<file>[^\s\"][^:\n]{{0,400}}):{_LINE}(?:, in (?P<name>[\w<>.]+))?"),
    re.compile(rf"\s*(?P<file>Cell In\s?\[\d{{1,6}}\]), line {_LINE}(?:, in (?P<name>[\w<>.]+))?"),
)
_LIBRARY = re.compile(
    r"site-packages|dist-packages|lib/python\d|\\Lib\\|^<"
    # What a package's installation put there to start it.
    r"|(?:^|[/\\])(?:bin|Scripts)[/\\][^/\\]+(?<!\.py)$"
)
_RAISED = re.compile(
    r"^(?:[A-Za-z_][\w.]*)?(?:Error|Exception|Interrupt|Warning|Exit)\b.*|^[A-Za-z_][\w.]*: .+"
)
#: How a report begins, behind which a person may have noted what became of the run.
_REPORT = re.compile(r"\W{0,4}(?:(?:iter|step|epoch)\w{0,6}\s{0,4})?\d", re.IGNORECASE)
_BARE = re.compile(r"^(?P<name>[A-Za-z_][\w.]{0,100}(?:Error|Exception)): \S")
#: What a library says where it does not know why a process ended, or what it only notes.
_GUESSES = re.compile(r"\b[Cc]ommon causes include\b|^.{0,60}\b(?:INFO|DEBUG)\b")
_FAILURES = messages("failures")


class Failures(LineFormat):
    """Tracebacks, and what a system or a library says when it ends a process."""

    priority = 30
    example = 'Traceback (most recent call last):\n  File "a.py", line 3, in main\nKilled: 9\n'

    def __init__(self, log: LogSoFar) -> None:
        super().__init__(log)
        self._is_open = False
        #: The first line of the traceback that is being read, while there is one.
        self._begun = 0
        #: The functions of its frames, outermost first.
        self._functions: list[str] = []
        #: Place of the innermost frame; place and source of the innermost in the user's own code.
        self._place, self._own = "", ("", "")
        self._before = ""
        #: Whether it is of a thread of its own, which does not end the program.
        self._is_of_thread = False

    def read(self, number: int, line: str) -> bool:
        line = _RANK.sub("", line)
        if self._is_open:
            if not line.strip() or line[0] in " \t|^~":
                self._frame(line)
                return True
            is_end = _RAISED.match(line)
            kinds = (kind for kind, sign in _FAILURES.items() if is_end and sign.search(line))
            self._add(self._begun, next(kinds, "traceback"), line if is_end else _BEGIN)
            if is_end:
                return True
        failures = self.notes.failures
        if _CHAINED.search(line) and failures and failures[-1].kind == "traceback":
            # What follows is what it came to.
            failures.pop()
            return True
        # Of one in a box its last line is read, which stands below the box.
        if _BEGIN in line and "╭" not in line:
            self._is_open, self._begun = True, number
            # A progress bar before it says how far the run came.
            return "%|" not in line
        self._is_of_thread = line.startswith(("Exception in thread ", "Exception ignored in"))
        signs = {} if _GUESSES.search(line) else _FAILURES
        kind = next((kind for kind, sign in signs.items() if sign.search(line)), None)
        bare = _BARE.match(line)
        # Not `TrainError: 0.23`, which is a metric.
        if bare is not None and ("." in bare["name"] or hasattr(builtins, bare["name"])):
            # The end of a traceback whose beginning was not kept.
            kind = kind or "traceback"
        if kind is not None:
            self._add(number, kind, line)
        return kind is not None and _REPORT.match(line) is None

    def finish(self) -> None:
        """A traceback that the log cuts off is one nonetheless."""
        if self._is_open:
            self._add(self._begun, "traceback", _BEGIN)

    def _frame(self, line: str) -> None:
        """Read a line of a traceback: a frame, a line of source, or neither."""
        text, before = line.strip(), self._before
        self._before = text
        match = next((match for style in _STYLES if (match := style.match(line))), None)
        if match is not None:
            # IPython names a method with its class.
            self._functions.append((match["name"] or "").rpartition(".")[2])
            del self._functions[:-MAX_FRAMES]
            self._place = f"{match['file'].strip()}:{match['line']}"
            if not _LIBRARY.search(match["file"].strip()):
                self._own = (self._place, "")
        elif text and self._own == (self._place, "") and _PYTHON.match(before):
            self._own = (self._place, text[:MAX_TEXT])

    def _add(self, number: int, kind: str, text: str) -> None:
        place, code = self._own
        # The last one is what ended the run: it is kept in any case.
        del self.notes.failures[MAX_FAILURES - 1 :]
        self.notes.failures.append(
            LogFailure(
                line_number=number,
                kind=kind,
                text=text.strip()[:MAX_TEXT],
                place=place or self._place,
                code=code,
                functions=tuple(self._functions),
                is_of_thread=self._is_of_thread,
            )
        )
        self._is_open, self._functions, self._place, self._own = False, [], "", ("", "")
        self._before, self._is_of_thread = "", False
