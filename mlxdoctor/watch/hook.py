"""The user's command that is run at an alarm."""

import json
import os
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from typing import Any

from mlxdoctor.safety.errors import InputError

#: The environment variable in which the command finds the alarm, as JSON.
VARIABLE = "MLXDOCTOR_ALARM"
#: Seconds after which a command is ended.
LIMIT_SECONDS = 60.0
#: The descriptor for the output of the command: another program may read our standard output.
STANDARD_ERROR = 2


def parse_hook(command: str) -> tuple[str, ...]:
    """The words of a command, split as by a shell.

    Raises:
        InputError: it has no words, an open quote, or a program that can't be found.
    """
    try:
        words = tuple(shlex.split(command))
    except ValueError as error:
        raise InputError(None, f"--exec {command!r} can't be read ({error})") from None
    if not words:
        raise InputError(None, "--exec is empty", "name a program")
    if shutil.which(words[0]) is None:
        remedy = "no shell runs the command; `sh -c '...'` starts one"
        raise InputError(None, f"--exec: there is no program {words[0]!r}", remedy)
    return words


def run_hook(words: tuple[str, ...], alarm: Mapping[str, Any]) -> str:
    """Run a command with the alarm in its environment, and wait at most `LIMIT_SECONDS`.

    The alarm is passed in the environment alone: no text of a log becomes part of the command.
    At the limit the command is ended, but not the processes that it started.

    Returns:
        How the command ended, as a sentence.
    """
    environment = {**os.environ, VARIABLE: json.dumps(alarm)}
    try:
        completed = subprocess.run(
            words,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=STANDARD_ERROR,
            check=False,
            timeout=LIMIT_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return f"the command of --exec was ended after {LIMIT_SECONDS:g} seconds"
    except OSError as error:
        return f"the command of --exec could not be started ({error.strerror})"
    if completed.returncode:
        return f"the command of --exec failed with exit code {completed.returncode}"
    return "the command of --exec was run"
