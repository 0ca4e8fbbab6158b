"""A command of the user's that is run at an alarm."""

from __future__ import annotations

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
#: The descriptor to which a command's output goes: our standard output may be piped into a program.
STANDARD_ERROR = 2


def parse_hook(command: str) -> tuple[str, ...]:
    """The words of a command, as a shell would split them; no shell runs it.

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
        raise InputError(
            None,
            f"--exec: there is no program {words[0]!r}",
            "no shell runs the command; `sh -c '...'` starts one",
        )
    return words


def run_hook(words: tuple[str, ...], alarm: Mapping[str, Any]) -> str:
    """Run a command with the alarm in its environment, and wait for it, `LIMIT_SECONDS` at most.

    What the log says reaches the command through the environment alone, so that no text of a log
    can become part of a command. At the limit the command is ended, but not what it started.

    Returns:
        How it went, as a sentence.
    """
    environment = {**os.environ, VARIABLE: json.dumps(alarm)}
    try:
        done = subprocess.run(
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
    if done.returncode:
        return f"the command of --exec failed with exit code {done.returncode}"
    return "the command of --exec was run"
