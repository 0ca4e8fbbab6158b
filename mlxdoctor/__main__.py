"""The command line, as a program: `mlxdoctor`, or `python -m mlxdoctor`.

What a command reads may kill or hang the process that reads it. So the program runs each
command as a watched child of itself, and imports next to nothing for that.
"""

import sys


def main() -> int:
    """Run the program with the arguments of the process; returns its exit code."""
    if all(argument.startswith("-") for argument in sys.argv[1:2]):
        return _run()
    from mlxdoctor.safety.stages import attach

    if attach():
        return _watched()
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


def _watched() -> int:
    from mlxdoctor.safety.stages import Stage, ended
    from mlxdoctor.safety.without_torch import leave_torch_out

    leave_torch_out()
    try:
        with Stage(f"mlxdoctor {' '.join(sys.argv[1:2])}"):
            code = _run()
    except SystemExit as error:
        _leave(ended(error.code if isinstance(error.code, int) else 1))
        raise
    return _leave(ended(code))


def _leave(code: int) -> int:
    # Threads of the user's own code, and what it said to be done at the end, may never end.
    if (user_code := sys.modules.get("mlxdoctor.safety.user_code")) is not None:
        user_code.leave(code)
    return code


if __name__ == "__main__":
    sys.exit(main())
