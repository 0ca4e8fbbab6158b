from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from contextlib import redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

import pytest

from mlxdoctor.cli import main
from tests.conftest import RUNS, Call, digest


@pytest.mark.slow
def test_a_healthy_run_has_nothing_to_reproduce(tmp_path: Path, call: Call) -> None:
    code, out, _ = call("reproduce", RUNS / "healthy-ordinary", "-o", tmp_path)
    assert (code, "nothing to reproduce" in out) == (0, True)
    assert not list(tmp_path.iterdir())


COLLAPSED = RUNS / "collapse-frequent-token"
#: A reproduction of a few seconds: six reruns.
SHORT = ("--seeds", "2", "--iters", "30")


def results_in(folder: Path) -> dict[str, int]:
    """The finished experiments of a run below an output folder, and when they were."""
    paths = folder.glob("*/reproduction/*-seed-*.json")
    return {path.name: path.stat().st_mtime_ns for path in paths}


def verdicts_in(folder: Path) -> dict[str, str]:
    """Cause -> the verdict on it."""
    (path,) = folder.glob("*/reproduction/reproduction.json")
    experiments = json.loads(path.read_text())["experiments"]
    return {one["cause"]: one["verdict"] for one in experiments if one["experiment"] == "verdict"}


@dataclass(frozen=True)
class Reproduced:
    """A reproduction that was stopped, asked again without any time, and then finished.

    Attributes:
        run: a copy of the run, elsewhere than its base and its data.
        before: its files before anything was done.
        stopped: the exit code of what was stopped, and its standard error.
        finished: the experiments finished by then.
        late: exit code, experiments and verdicts without any time.
        done: exit code, standard output and experiments at the end.
        again: exit code and experiments of the same command once more.
    """

    run: Path
    out: Path
    before: dict[str, tuple[str, int]]
    stopped: tuple[int, str]
    finished: dict[str, int]
    late: tuple[int, dict[str, int], dict[str, str]]
    done: tuple[int, str, dict[str, int]]
    again: tuple[int, dict[str, int]]


@pytest.fixture(scope="module")
def reproduced(tmp_path_factory: pytest.TempPathFactory) -> Reproduced:
    """Six reruns of the collapse."""
    folder = tmp_path_factory.mktemp("reproduced")
    run, out = folder / "collapse-frequent-token", folder / "reports"
    shutil.copytree(RUNS / run.name, run)
    before = digest(run)
    elsewhere = ["--base", str(RUNS.parent / "base"), "--data", str(RUNS.parent / "data/geography")]
    command = ["reproduce", str(run), "-o", str(out), *SHORT, *elsewhere]
    process = subprocess.Popen(
        [sys.executable, "-m", "mlxdoctor", *command], stderr=subprocess.PIPE, text=True
    )
    patience = time.monotonic() + 240
    while not results_in(out) and process.poll() is None and time.monotonic() < patience:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    finished = results_in(out)
    code = main([*command, "--budget", "0"])
    late = code, results_in(out), verdicts_in(out)
    with redirect_stdout(StringIO()) as printed:
        code = main(command)
    done = code, printed.getvalue(), results_in(out)
    again = main(command), results_in(out)
    return Reproduced(run, out, before, (process.returncode, said), finished, late, done, again)


@pytest.mark.long
@pytest.mark.slow(50)
def test_the_collapse_is_confirmed_and_the_run_is_left_alone(reproduced: Reproduced) -> None:
    code, printed, _ = reproduced.done
    assert code == 1
    assert digest(reproduced.run) == reproduced.before
    assert "Root cause: the learning rate is too high" in printed
    assert "confirmed: The learning rate is too high (learning-rate-too-high)" in printed
    assert "learning_rate: 0.005 -> 0.0005" in printed
    out = reproduced.out
    assert verdicts_in(out) == {"learning-rate-too-high": "confirmed", "scale-too-large": "refuted"}
    report = (out / "collapse-frequent-token" / "report.md").read_text()
    assert "**confirmed**" in report
    assert "![The loss of every rerun](figures/experiments.png)" in report
    assert "Computed again, the first losses are the log's" in report


@pytest.mark.long
@pytest.mark.slow
def test_a_stopped_reproduction_goes_on_and_redoes_nothing(reproduced: Reproduced) -> None:
    code, said = reproduced.stopped
    assert code == 130
    assert "Traceback" not in said
    finished = reproduced.finished
    assert 1 <= len(finished) < 6
    assert f"Stopped. {len(finished)} finished" in said
    assert "the same command goes on from there" in said
    # Without any time, what is finished is used and nothing else is made.
    code, results, verdicts = reproduced.late
    assert code == 3
    assert results == finished
    assert set(verdicts.values()) == {"undecided"}
    code, _, results = reproduced.done
    assert code == 1
    assert len(results) == 6
    assert finished.items() <= results.items()
    assert reproduced.again == (1, results)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        pytest.param(["--seeds", "1"], "--seeds", marks=pytest.mark.slow),
        pytest.param(["--budget", "-1"], "--budget", marks=pytest.mark.slow),
        (["--cause", "bad-luck"], "bad-luck"),
        (["-o", COLLAPSED / "reports"], "inspected"),
    ],
)
def test_options_that_make_no_sense_are_refused(
    tmp_path: Path, call: Call, options: list[str | Path], said: str
) -> None:
    before = digest(COLLAPSED)
    code, _, err = call("reproduce", COLLAPSED, "-o", tmp_path, *options)
    assert (code, said in err) == (2, True)
    assert digest(COLLAPSED) == before
