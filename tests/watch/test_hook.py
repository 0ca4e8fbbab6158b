import json
import shlex
import sys
from pathlib import Path

import pytest

from mlxdoctor.safety.errors import InputError
from mlxdoctor.watch.hook import parse_hook, run_hook

SAVE = "import os, sys; open(sys.argv[1], 'w').write(os.environ['MLXDOCTOR_ALARM'])"


def test_the_alarm_is_in_the_environment_and_no_shell_sees_it(tmp_path: Path) -> None:
    target = tmp_path / "it's here; touch x"
    words = parse_hook(shlex.join([sys.executable, "-c", SAVE, str(target)]))
    alarm = {"message": "$(touch pwned) `id` ; rm -rf"}
    assert run_hook(words, alarm) == "the command of --exec was run"
    assert json.loads(target.read_text()) == alarm
    assert [path.name for path in tmp_path.iterdir()] == [target.name]


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("raise SystemExit(7)", "failed with exit code 7"),
        ("import time; time.sleep(60)", "was ended after 0.5 seconds"),
    ],
)
def test_a_command_that_fails_or_hangs(
    code: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mlxdoctor.watch.hook.LIMIT_SECONDS", 0.5)
    words = parse_hook(shlex.join([sys.executable, "-c", code]))
    assert run_hook(words, {}) == f"the command of --exec {said}"


@pytest.mark.parametrize("command", ["", "   ", "echo 'open", "no-such-program-anywhere x"])
def test_a_command_that_cannot_work_is_refused_before_the_watch_begins(command: str) -> None:
    with pytest.raises(InputError, match="--exec"):
        parse_hook(command)
