"""Progress on standard error: a bar on a terminal, and a line now and then elsewhere."""

import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager

from mlxdoctor.formats.escape import terminal

#: Work that ends sooner shows no bar (seconds).
SHOW_AFTER = 1.0
#: The bar is redrawn this often at most (seconds).
REDRAW_AFTER = 0.1
BAR = 24
#: Off a terminal, a line is written this often at most (seconds).
LINE_AFTER = 10.0


class ProgressLine(AbstractContextManager["ProgressLine"]):
    """A progress callback that draws `[####    ] at most 48 s left; label done/total`.

    Where standard error is no terminal, it writes a line every ten seconds.

    Args:
        clock: seconds that only ever rise.
        lines: whether to write those; not for what takes days.
        most: seconds that all of the work takes at most; None where that is not known. Then the
            bar and the time left are those of what has the label.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        *,
        lines: bool = True,
        most: float | None = None,
    ) -> None:
        self._clock = clock
        self._lines = lines
        self._most = most
        self._label = ("", clock())
        self._started = clock()
        self._drawn = 0.0
        self._written = self._started
        self._columns = 0

    def __exit__(self, *_: object) -> None:
        self.clear()

    def __call__(self, label: str, done: int, total: int) -> None:
        """Show that `done` of `total` steps of `label` are done."""
        now = self._clock()
        if label != self._label[0]:
            self._label = (label, now)
        left = self._left(now, done, total)
        if not sys.stderr.isatty():
            if self._lines and now - self._written >= LINE_AFTER:
                self._written = now
                seconds = f"{now - self._started:.0f} s"
                self.say(f"{label}: {done:,} of {total:,}, after {seconds}{left and f'; {left}'}")
            return
        if now - self._started < SHOW_AFTER or now - self._drawn < REDRAW_AFTER:
            return
        share = min(done / total, 1.0) if total > 0 else 0.0
        if self._most is not None:
            share = min((now - self._started) / self._most, 1.0)
        bar = f"[{'#' * int(BAR * share):<{BAR}}]"
        text = f"{bar} {left and f'{left}; '}{terminal(label)[:32]} {done:,}/{total:,}"
        sys.stderr.write("\r" + text.ljust(self._columns))
        sys.stderr.flush()
        self._drawn, self._columns = now, max(self._columns, len(text))

    def _left(self, now: float, done: int, total: int) -> str:
        """The time that is left, in words; "" where nothing tells."""
        if self._most is not None:
            # What is not of models may take longer.
            left = self._most - (now - self._started)
            return f"at most {left:.0f} s left" if left > 0.0 else ""
        each = (now - self._label[1]) / done if done > 0 else 0.0
        return f"about {each * (total - done):.0f} s left" if each > 0.0 and total > done else ""

    def say(self, text: str) -> None:
        """Write a line that stays."""
        self.clear()
        sys.stderr.write(f"mlxdoctor: {terminal(text)}\n")
        sys.stderr.flush()

    def clear(self) -> None:
        """Remove the line, so that what follows starts in the first column."""
        if self._columns:
            sys.stderr.write("\r" + " " * self._columns + "\r")
            sys.stderr.flush()
            self._columns = 0
