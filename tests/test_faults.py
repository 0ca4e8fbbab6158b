"""What happens when the world around fails: a full disk, a kill, Ctrl-C, a closed pipe, no home."""

import json
import os
import resource
import shutil
import signal
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from mlxdoctor.api import diagnose
from mlxdoctor.evidence.training_log import TrainingLog
from mlxdoctor.safety import atomic
from mlxdoctor.safety.errors import InputError
from mlxdoctor.twin.records import METRICS_FILE, StepRecord, ValidationRecord, add_metrics, to_line
from tests.conftest import RUNS
from tests.processes import python

RUN = RUNS / "evaluated-without-adapter"
QUICK = ("--no-generate", "--select", "loss-trend,metric-consistency")
#: Bytes that a file may have in the process: less than a report.
FULL = 2000

#: Runs the command line.
mlxdoctor = partial(python, "-m", "mlxdoctor")


def one_line(done: subprocess.CompletedProcess[str]) -> str:
    """The one line that a failure prints."""
    lines = [line for line in done.stderr.splitlines() if line.startswith("mlxdoctor:")]
    assert "Traceback" not in done.stderr, done.stderr
    assert len(lines) == 1, done.stderr
    return lines[0]


def no_room() -> None:
    # As on a full disk, a write fails half way; the signal would end the process first.
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (FULL, FULL))


@pytest.mark.slow
def test_a_full_disk_is_one_sentence_and_leaves_the_old_report(tmp_path: Path) -> None:
    folder = tmp_path / "evaluated-without-adapter"
    folder.mkdir()
    old = folder / "report.json"
    old.write_text("the report before")
    command = ("diagnose", RUN, *QUICK, "--format", "json", "-o", tmp_path)
    done = mlxdoctor(*command, preexec_fn=no_room)
    assert done.returncode == 2
    assert "cannot be written (File too large)" in one_line(done)
    assert old.read_text() == "the report before"
    assert [path.name for path in folder.iterdir()] == ["report.json"]


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_standard_output_on_a_full_disk(tmp_path: Path) -> None:
    with Path("/dev/full").open("w") as full:
        done = mlxdoctor(
            *("diagnose", RUN, *QUICK, "--stdout", "json"),
            capture_output=False,
            stdout=full,
            stderr=subprocess.PIPE,
        )
    assert done.returncode == 2
    assert "standard output cannot be written (No space left on device)" in one_line(done)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_metrics_that_cannot_be_written_are_one_sentence(tmp_path: Path) -> None:
    (tmp_path / METRICS_FILE).symlink_to("/dev/full")
    with pytest.raises(InputError, match=r"cannot be written \(No space left"):
        add_metrics(tmp_path, ValidationRecord(1, 2.0, 0.1))


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [("checks",), ("diagnose", RUN, *QUICK, "--stdout", "json")])
def test_a_closed_pipe_ends_it_without_a_word(arguments: tuple[Any, ...]) -> None:
    read, write = os.pipe()
    os.close(read)
    try:
        done = mlxdoctor(*arguments, capture_output=False, stdout=write, stderr=subprocess.PIPE)
    finally:
        os.close(write)
    assert done.stderr == ""
    assert done.returncode == 141


@pytest.mark.parametrize("failure", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_write_that_fails_leaves_nothing_behind(
    failure: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "report.md"
    target.write_text("old")

    def fail(*_: Any) -> None:
        raise failure

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(type(failure)):
        atomic.replace_file(target, b"new")
    assert [path.name for path in tmp_path.iterdir()] == ["report.md"]
    assert target.read_text() == "old"


def test_metrics_cut_at_any_byte_are_read(tmp_path: Path) -> None:
    lines = [
        to_line(StepRecord(one, 3.0 - one / 4, 1e-4, 1.5, 8, 8 * one, 0.1, 0.2))
        for one in (1, 2, 3)
    ]
    whole = "".join(lines).encode()
    path = tmp_path / "metrics.jsonl"
    first = len(lines[0])
    for size in range(first, len(whole) + 1):
        path.write_bytes(whole[:size])
        # A last line whose end alone is missing is whole.
        complete = whole[:size].count(b"}")
        series = TrainingLog.read([path]).main.get("train_loss")
        assert series.iterations.tolist() == [1, 2, 3][:complete]


@pytest.mark.slow
@pytest.mark.parametrize("where", ["reports", "reports/evaluated-without-adapter"])
def test_a_file_in_the_way_of_the_report(where: str, tmp_path: Path) -> None:
    path = tmp_path / where
    path.parent.mkdir(exist_ok=True)
    path.write_text("mine")
    done = mlxdoctor("diagnose", RUN, *QUICK, "-o", tmp_path / "reports")
    assert done.returncode == 2
    assert "cannot be written" in one_line(done)
    assert path.read_text() == "mine"


NOWHERE = "/proc/nowhere"


@pytest.mark.slow
@pytest.mark.parametrize(
    "environment",
    [
        {"HOME": None},
        {"HOME": NOWHERE, "XDG_CACHE_HOME": None, "XDG_CONFIG_HOME": None, "HF_HOME": None},
        {"TMPDIR": NOWHERE},
    ],
)
def test_without_a_home_or_a_folder_for_temporary_files(
    environment: dict[str, str | None], tmp_path: Path
) -> None:
    done = mlxdoctor(
        "diagnose", RUN, "--no-generate", "-o", tmp_path / "reports", environment=environment
    )
    assert "Traceback" not in done.stderr
    assert done.returncode == 1, done.stderr
    assert (tmp_path / "reports" / RUN.name / "report.md").is_file()


def test_a_user_whom_the_system_does_not_know_has_no_home(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(cls: type[Path]) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", classmethod(nobody))
    report = diagnose([RUN], allow_model=False, select=["loss-trend"])
    assert report.outcomes


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_terminal_that_lacks_the_characters(encoding: str, tmp_path: Path) -> None:
    folder = tmp_path / "größe-数"
    shutil.copytree(RUN, folder)
    environment = {"PYTHONIOENCODING": encoding, "PYTHONUTF8": "0"}
    for arguments in (
        ("diagnose", folder, *QUICK, "-o", tmp_path / "reports"),
        ("diagnose", folder, *QUICK, "--stdout", "markdown"),
        ("inspect", folder),
        ("explain", "loss-trend"),
    ):
        done = mlxdoctor(*arguments, environment=environment)
        assert "Traceback" not in done.stderr, done.stderr
        assert done.returncode in (0, 1, 3), done.stderr
    done = mlxdoctor("diagnose", folder, *QUICK, "--stdout", "json", environment=environment)
    assert done.stdout.isascii()
    assert json.loads(done.stdout)["name"] == "größe-数"
