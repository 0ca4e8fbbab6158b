import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import LOGS, RUNS, Call, Start
from tests.formats.test_json import refuse
from tests.watch.test_process import POLITE

HEALTHY = RUNS / "healthy-ordinary" / "train.log"
BROKEN = RUNS / "no-supervised-tokens"
SEED = """Starting training..., iters: 3000
Iter 1: Val loss 1.858, Val took 10.1s
Iter 5: Train loss 2.148, Learning Rate 2.000e-04, It/sec 0.100, Tokens/sec 100.0
Iter 10: Train loss 2.609, Learning Rate 2.000e-04, It/sec 0.100, Tokens/sec 100.0
Iter 15: Train loss 4.104, Learning Rate 2.000e-04, It/sec 0.100, Tokens/sec 100.0
"""


@pytest.fixture
def seed(path: Path) -> Path:
    path.write_text(SEED)
    return path


@pytest.fixture
def training(start: Start) -> subprocess.Popen[str]:
    return start(POLITE)


def test_an_alarm_exits_with_1_and_says_what_to_do(call: Call, seed: Path) -> None:
    code, out, err = call("watch", seed)
    assert (code, err) == (1, "")
    first, second, third, fourth = out.splitlines()
    assert first == "diverging at iteration 15 of 3,000, since iteration 5"
    assert second.startswith("The loss ends at 4.104; it was 1.858 before the first update.")
    assert third.startswith(
        "What to do: Stop it. Lower the learning rate or the scale, and start again"
    )
    assert fourth == ("By stopping now: 2,985 of its iterations are saved, about 8.3 hours.")


def test_a_healthy_end_exits_with_0(call: Call) -> None:
    code, out, err = call("watch", HEALTHY, "--no-follow")
    assert (code, err) == (0, "")
    assert "no alarm in" in out
    # The log says that its training is over, so that following it ends by itself.
    assert call("watch", HEALTHY)[0] == 0


def test_json_is_one_object_a_line(call: Call, seed: Path) -> None:
    code, out, _ = call("watch", seed, "--stdout", "json")
    (alarm,) = map(json.loads, out.splitlines())
    assert code == 1
    assert alarm["event"] == "alarm"
    assert (alarm["verdict"], alarm["step"], alarm["iterations"]) == ("diverging", 15, 3000)
    assert (alarm["saved_iterations"], alarm["saved_seconds"]) == (2985, 29850.0)
    code, out, _ = call("watch", HEALTHY, "--no-follow", "--stdout", "json")
    (end,) = map(json.loads, out.splitlines())
    assert (code, end["event"], end["broke_off"]) == (0, "end", False)
    assert end["reports"] > 10


def test_json_of_a_loss_that_is_no_number_is_json(call: Call) -> None:
    code, out, _ = call("watch", next(BROKEN.glob("train.*")), "--no-follow", "--stdout", "json")
    assert code == 1
    alarm = json.loads(out, parse_constant=refuse)
    assert (alarm["verdict"], alarm["measured"]["before"]) == ("non-finite", 1.07)


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        ("Loading pretrained model\n", 3, "no report on training was found"),
        (
            "".join(SEED.splitlines(keepends=True)[:3]) + "Killed: 9\n",
            1,
            "the training broke off (killed): Killed: 9; no alarm in 2 reports",
        ),
    ],
)
def test_a_log_that_ends_without_an_alarm(
    call: Call, path: Path, text: str, code: int, said: str
) -> None:
    path.write_text(text)
    ended, out, _ = call("watch", path, "--no-follow")
    assert (ended, said in out) == (code, True)


def test_standard_input_is_refused(call: Call) -> None:
    code, _, err = call("watch", "-")
    assert code == 2
    assert "the log has to be a file" in err


def test_a_file_that_is_not_there_yet_is_waited_for(call: Call, path: Path) -> None:
    code, _, err = call("watch", path, "--idle", "0.1")
    assert code == 3
    assert err == f"{path} is not there yet; waiting for it\n"


def test_how_long_it_will_be_may_be_said(call: Call, path: Path) -> None:
    path.write_text(SEED.split("\n", 1)[1])
    assert "how long it would go on is not known" in call("watch", path)[1]
    assert "985 of its iterations are saved" in call("watch", path, "--iters", 1_000)[1]


def test_what_an_older_run_wrote_stops_nothing(
    call: Call, seed: Path, training: subprocess.Popen[str]
) -> None:
    os.utime(seed, (0, 0))
    code, out, _ = call("watch", seed, "--stop-pid", training.pid, "--idle", "0.1")
    assert code == 3
    assert out.startswith("the log has not grown for 0.1 seconds")
    assert training.poll() is None


def test_a_healthy_training_is_not_stopped(
    call: Call, path: Path, training: subprocess.Popen[str]
) -> None:
    path.write_bytes(HEALTHY.read_bytes())
    os.utime(path, (2**32, 2**32))
    code, out, _ = call("watch", path, "--stop-pid", training.pid)
    assert code == 0
    assert out.startswith("the training finished")
    assert training.poll() is None


@pytest.mark.slow
def test_the_end_of_the_process_ends_the_watch(
    call: Call, path: Path, training: subprocess.Popen[str]
) -> None:
    path.write_text("".join(SEED.splitlines(keepends=True)[:3]))
    os.utime(path, (2**32, 2**32))
    follower = subprocess.Popen(
        [sys.executable, "-m", "mlxdoctor", "watch", str(path), "--until-exit", str(training.pid)],
        stdout=subprocess.PIPE,
        text=True,
    )
    with pytest.raises(subprocess.TimeoutExpired):
        follower.wait(timeout=5)
    training.terminate()
    out, _ = follower.communicate(timeout=60)
    assert follower.returncode == 0
    assert out.startswith("the process that trains has ended; no alarm in 2 reports")


def test_the_process_is_stopped_politely(
    call: Call, seed: Path, training: subprocess.Popen[str]
) -> None:
    # The start of a process is told to a hundredth of a second.
    os.utime(seed, (2**32, 2**32))
    code, out, _ = call("watch", seed, "--stop-pid", training.pid)
    assert code == 1
    assert f"process {training.pid} was asked to end (SIGINT) and did" in out.splitlines()
    assert training.wait(timeout=30) == -signal.SIGINT


def test_text_of_the_log_cannot_move_the_cursor(call: Call, path: Path) -> None:
    path.write_text(SEED.splitlines(keepends=True)[2] + "Killed: 9 \x1b]0;title\x07\x9b2J\u202e\n")
    code, out, _ = call("watch", path)
    assert code == 1
    assert not set("\x1b\x07\x9b\u202e") & set(out)


def test_the_controls_among_users_logs_are_silent(call: Call) -> None:
    controls = sorted(LOGS.glob("CONTROL-*.log"))
    assert controls
    for log in controls:
        assert call("watch", log, "--no-follow")[0] == 0, log.name
