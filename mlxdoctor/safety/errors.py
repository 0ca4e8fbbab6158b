"""The one exception a user's input can cause."""

from __future__ import annotations

from pathlib import Path
from typing import Any


class InputError(Exception):
    """A file or option that cannot be used.

    `str(error)` is one sentence for the user: what is wrong, in which file,
    and what to do. The command line prints it and exits with 2; diagnosis
    records it as missing evidence and goes on with the rest.
    """

    def __init__(self, path: Path | str | None, problem: str, remedy: str = "") -> None:
        self.path = Path(path) if path is not None else None
        self.problem = problem
        self.remedy = remedy
        text = f"{path}: {problem}" if path is not None else problem
        if remedy:
            text = f"{text}; {remedy}"
        super().__init__(text)

    def __reduce__(self) -> tuple[type[InputError], tuple[Any, ...]]:
        return InputError, (self.path, self.problem, self.remedy)
