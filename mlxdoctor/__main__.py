"""The command line, as a program: `mlxdoctor`, or `python -m mlxdoctor`.

What a command reads may kill or hang the process that reads it. So the program runs each
command as a watched child of itself, and imports next to nothing for that.
"""

import os
import sys
from contextlib import suppress
from typing import NoReturn


def main() -> int:
    """Run the program with the arguments of the process; returns its exit code."""
    if all(argument.startswith("-") for argument in sys.argv[1:2]):
        return _run()
    from mlxdoctor.safety.stages import attach

    if attach():
        _watched()
    from mlxdoctor.safety.watched import supervise

    try:
        ended = supervise([sys.executable, *sys.orig_argv[1:]])
    except OSError:
        return _run()
    if isinstance(ended, int):
        return ended
    from mlxdoctor.cli import refuse

    return refuse(ended)


def _run() -> int:
    from mlxdoctor.cli import main as run

    return run()


def _watched() -> NoReturn:
    import gc

    from mlxdoctor.safety.stages import Stage, ended
    from mlxdoctor.safety.without_torch import leave_torch_out

    # Next to nothing of what imports make is garbage.
    gc.set_threshold(200_000)
    # Most graphs of CUDA are built anew for what the twin runs: without them the longer of two
    # diagnoses took 33 s in place of 41, the shorter one as long as before.
    os.environ.setdefault("MLX_USE_CUDA_GRAPHS", "0")
    leave_torch_out()
    try:
        with Stage(f"mlxdoctor {' '.join(sys.argv[1:2])}"):
            code = _run()
    except SystemExit as error:
        if isinstance(error.code, str):
            print(error.code, file=sys.stderr)
        code = error.code if isinstance(error.code, int) else 1
    leave(ended(code))


def leave(code: int) -> NoReturn:
    """End at once: to take all modules apart takes as long as to read a log."""
    # Threads of the user's own code, and what it said to be done at the end, may never end.
    if (user_code := sys.modules.get("mlxdoctor.safety.user_code")) is not None:
        user_code.end_children()
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # it may be closed, or replaced
            stream.flush()
    os._exit(code)


if __name__ == "__main__":
    sys.exit(main())
