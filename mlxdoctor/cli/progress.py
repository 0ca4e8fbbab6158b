"""One line of progress on standard error, for work that takes longer than a second."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field
from types import TracebackType

from mlxdoctor.report.escape import terminal

#: Work that ends sooner shows no bar (seconds).
SHOW_AFTER = 1.0
#: The bar is redrawn this often at most (seconds).
REDRAW_AFTER = 0.1
BAR = 24


@dataclass
class ProgressLine:
    """A progress callback that draws `label [####    ] done/total`; silent off a terminal."""

    started: float = field(default_factory=time.monotonic)
    drawn: float = 0.0
    columns: int = 0

    def __enter__(self) -> ProgressLine:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.clear()

    def __call__(self, label: str, done: int, total: int) -> None:
        """Show that `done` of `total` steps of `label` are done."""
        now = time.monotonic()
        if now - self.started < SHOW_AFTER or now - self.drawn < REDRAW_AFTER:
            return
        if not sys.stderr.isatty():
            return
        filled = BAR * min(done, total) // total if total > 0 else 0
        text = f"{terminal(label)[:40]} [{'#' * filled:<{BAR}}] {done:,}/{total:,}"
        sys.stderr.write("\r" + text.ljust(self.columns))
        sys.stderr.flush()
        self.drawn, self.columns = now, max(self.columns, len(text))

    def clear(self) -> None:
        """Remove the line, so that what follows starts in the first column."""
        if self.columns:
            sys.stderr.write("\r" + " " * self.columns + "\r")
            sys.stderr.flush()
            self.columns = 0
