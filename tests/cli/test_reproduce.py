"""`mlxdoctor reproduce`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mlxdoctor.cli import main
from tests.conftest import RUNS


@pytest.mark.model
def test_a_healthy_run_has_nothing_to_reproduce(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["reproduce", str(RUNS / "healthy-ordinary"), "-o", str(tmp_path)]) == 0
    assert "nothing to reproduce" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())


@pytest.mark.model
def test_the_collapse_is_confirmed_and_continued(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["reproduce", str(RUNS / "collapse-frequent-token"), "-o", str(tmp_path)]
    assert main([*command, "--seeds", "2", "--iters", "30"]) == 1
    assert "confirmed: learning-rate-too-high" in capsys.readouterr().out
    folder = tmp_path / "collapse-frequent-token"
    results = sorted((folder / "reproduction").glob("*/result.json"))
    times = [one.stat().st_mtime_ns for one in results]
    assert len(results) == 6
    assert main([*command, "--seeds", "2", "--iters", "30"]) == 1
    assert [one.stat().st_mtime_ns for one in results] == times
    summary = json.loads((folder / "reproduction" / "reproduction.json").read_text())
    verdicts = {
        one["cause"]: one["verdict"]
        for one in summary["experiments"]
        if one["experiment"] == "verdict"
    }
    assert verdicts == {"learning-rate-too-high": "confirmed", "scale-too-large": "refuted"}
    assert "**confirmed**" in (folder / "report.md").read_text()


def test_an_unknown_cause_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = str(RUNS / "rate-too-low" / "train.log")
    assert main(["reproduce", run, "-o", str(tmp_path), "--cause", "bad-luck"]) == 2
    assert "bad-luck" in capsys.readouterr().err


def test_nothing_is_written_into_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    run = RUNS / "collapse-frequent-token"
    assert main(["reproduce", str(run), "-o", str(run / "reports")]) == 2
    assert "inspected" in capsys.readouterr().err
