"""The one exception a user's input can cause."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

#: How MLX, Metal and CUDA say that memory did not suffice, as a `RuntimeError`.
_OUT_OF_MEMORY = (
    *("out of memory", "unable to allocate", "attempting to allocate"),
    "insufficient memory",
)


class InputError(Exception):
    """A file or option that cannot be used.

    `str(error)` is one sentence for the user: what is wrong, in which file, and what to do. The
    command line prints it and exits with 2; diagnosis records it as missing evidence and goes on.
    """

    def __init__(self, path: "Path | str | None", problem: str, remedy: str = "") -> None:
        from pathlib import Path  # here: `--help` has no path, and this takes 2.5 ms of its 9

        super().__init__(path, problem, remedy)
        self.path = Path(path) if path is not None else None
        self.problem = problem
        self.remedy = remedy

    def __str__(self) -> str:
        path = self.args[0]
        text = f"{path}: {self.problem}" if path is not None else self.problem
        return f"{text}; {self.remedy}" if self.remedy else text


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception says that memory did not suffice; libraries have no type for it."""
    text = str(error).lower() if isinstance(error, RuntimeError) else ""
    return isinstance(error, MemoryError) or any(said in text for said in _OUT_OF_MEMORY)
