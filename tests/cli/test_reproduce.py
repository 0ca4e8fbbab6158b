import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import RUNS, Call, digest


@pytest.mark.slow
def test_a_healthy_run_has_nothing_to_reproduce(tmp_path: Path, call: Call) -> None:
    code, out, _ = call("reproduce", RUNS / "healthy-ordinary", "-o", tmp_path)
    assert (code, "nothing to reproduce" in out) == (0, True)
    assert not list(tmp_path.iterdir())


COLLAPSED = RUNS / "collapse-frequent-token"
#: A reproduction of a few seconds: six reruns.
SHORT = ("--seeds", "2", "--iters", "30", "--format", "json", "--format", "markdown")


def verdicts_in(folder: Path) -> dict[str, str]:
    """Cause -> the verdict on it."""
    (path,) = folder.glob("*/report.json")
    experiments = json.loads(path.read_text())["experiments"]
    return {one["cause"]: one["verdict"] for one in experiments if one["experiment"] == "verdict"}


@pytest.mark.long
@pytest.mark.slow(50)
def test_a_stopped_reproduction_leaves_nothing_and_a_whole_one_confirms_the_collapse(
    tmp_path: Path, call: Call
) -> None:
    """Of a copy elsewhere than its base and its data."""
    run, out = tmp_path / COLLAPSED.name, tmp_path / "reports"
    shutil.copytree(COLLAPSED, run)
    before = digest(run)
    elsewhere = ["--base", str(RUNS.parent / "base"), "--data", str(RUNS.parent / "data/geography")]
    command = ["reproduce", str(run), "-o", str(out), *SHORT, *elsewhere]
    process = subprocess.Popen(
        [sys.executable, "-m", "mlxdoctor", *command], stderr=subprocess.PIPE, text=True
    )
    patience = time.monotonic() + 240
    work = out / COLLAPSED.name / "reproduction"
    while not work.exists() and process.poll() is None and time.monotonic() < patience:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in said
    assert "Stopped. Nothing is kept of it." in said
    assert not work.exists()
    # Without any time nothing is made.
    assert call(*command, "--budget", 0)[0] == 3
    assert set(verdicts_in(out).values()) == {"undecided"}
    code, printed, _ = call(*command)
    assert code == 1
    assert "Root cause: the learning rate is too high" in printed
    assert "confirmed: The learning rate is too high (learning-rate-too-high)" in printed
    assert "learning_rate: 0.005 -> 0.0005" in printed
    assert verdicts_in(out) == {"learning-rate-too-high": "confirmed", "scale-too-large": "refuted"}
    report = (out / COLLAPSED.name / "report.md").read_text()
    assert "**confirmed**" in report
    assert "![The loss of every rerun](figures/experiments.png)" in report
    assert "Computed again, the first losses are the log's" in report
    assert digest(run) == before


def test_a_refused_reproduction_leaves_the_run_alone(tmp_path: Path, call: Call) -> None:
    before = digest(COLLAPSED)
    code, _, err = call("reproduce", COLLAPSED, "-o", tmp_path, "--cause", "bad-luck")
    assert (code, "bad-luck" in err) == (2, True)
    assert digest(COLLAPSED) == before
