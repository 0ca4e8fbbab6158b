"""Paths in, report out: what the report says of the evidence, the fix, and what comes next."""

import importlib.metadata
import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest

from mlxdoctor.api import CLEAR, _is_whole, _report, diagnose
from mlxdoctor.diagnosis import Judged
from mlxdoctor.finding import Finding, Outcome, Severity, Status
from mlxdoctor.installed import UNKNOWN, version_here
from mlxdoctor.measure.logged_levels import MAX_POINTS
from mlxdoctor.run import Run
from mlxdoctor.safety.errors import InputError
from mlxdoctor.verdict import Verdict
from tests.conftest import RUNS


def report(name: str, **options: Any) -> dict[str, Any]:
    return diagnose([RUNS / name], allow_model=False, **options).to_dict()


def test_a_path_may_be_a_string_and_stand_alone() -> None:
    run = str(RUNS / "healthy-ordinary")
    alone = diagnose(run, base=f"{RUNS.parent}/base", allow_model=False).to_dict()
    again = diagnose([Path(run)], base=RUNS.parent / "base", allow_model=False).to_dict()
    assert alone["coverage"] == again["coverage"]
    assert alone["commands"] == again["commands"]


def test_an_error_that_is_answered_is_a_note_where_the_run_is_healthy(monkeypatch) -> None:
    codes = ("reach.far-above", "token-collapse.empty-answers", "adapter-presence.zero-b")
    errors = tuple(Finding(code, Severity.ERROR, f"{code}.") for code in codes)
    judged = Judged(Verdict.HEALTHY, (), (), frozenset(codes[:2]))
    monkeypatch.setattr("mlxdoctor.api.judge", lambda *_, **__: judged)
    run = Run.discover([RUNS / "healthy-ordinary"], allow_model=False)
    made = _report(run, (Outcome("reach", Status.FOUND, findings=errors),))
    assert {one.code: one.severity.value for one in made.findings} == dict(
        zip(codes, ("info", "error", "error"), strict=True)
    )


def test_every_cause_that_is_named_is_explained() -> None:
    data = report("adapter-never-attached")
    assert len(data["diagnosis"]) > 1
    assert set(data["causes"]) == {entry["cause"] for entry in data["diagnosis"]}


def test_no_path_of_this_machine_is_in_a_report() -> None:
    assert str(Path.home()) not in json.dumps(report("healthy-ordinary"), default=str)


def test_a_users_score_is_compared(tmp_path: Path) -> None:
    script = tmp_path / "quality.py"
    script.write_text(
        "def commas(prompt, output):\n    return -output.count(',') / (1 + len(output))\n"
    )
    data = report("collapse-frequent-token", score=f"{script}:commas")
    assert "score.worse-than-base" in {
        one["code"] for o in data["outcomes"] for one in o["findings"]
    }


def test_the_fix_and_the_figures_are_of_the_runs_own_numbers() -> None:
    data = report("collapse-frequent-token")
    config = json.loads((RUNS / "collapse-frequent-token" / "adapter_config.json").read_text())
    assert data["fix"]["before"] == {"learning_rate": config["learning_rate"]}
    assert data["fix"]["after"] == {"learning_rate": config["learning_rate"] / 10}
    assert '+    "learning_rate"' in data["fix"]["diff"]
    loss = data["figures"]["loss"]
    assert loss["val"]["values"][0] == pytest.approx(4.15, abs=0.005)
    assert loss["onset"] == 10
    floors = {floor["label"]: floor["value"] for floor in loss["floors"]}
    assert floors["uniform guess, ln(768)"] == pytest.approx(math.log(768))
    assert floors["the base model's own loss"] == pytest.approx(4.15, abs=0.005)


def test_a_long_curve_keeps_its_extremes_and_what_is_not_finite(tmp_path: Path) -> None:
    values = [1.0] * 20_000
    values[777], values[15_001], values[19_000] = 40.0, float("nan"), 0.1
    log = tmp_path / "long.log"
    log.write_text(
        "".join(f"Iter {i}: Train loss {v}, It/sec 1.0\n" for i, v in enumerate(values, 1))
    )
    curve = diagnose([log]).to_dict()["figures"]["loss"]["train"]
    assert len(curve["values"]) <= 3 * MAX_POINTS
    assert 40.0 in curve["values"]
    assert 0.1 in curve["values"]
    assert any(math.isnan(value) for value in curve["values"])


def test_a_source_tree_that_was_not_installed_has_no_version() -> None:
    assert version_here() == importlib.metadata.version("mlxdoctor")
    assert version_here("no-such-package") == UNKNOWN


@pytest.mark.parametrize(
    ("found", "damaged", "lacks"),
    [("reached", "", False), ("far-above", "", True), ("reached", "adapter_config.json", True)],
)
def test_a_log_that_nobody_reads_matters_where_the_end_is_unknown(
    tmp_path: Path, found: str, damaged: str, lacks: bool
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(RUNS / "healthy-ordinary", folder)
    for log in folder.glob("*.log"):
        log.write_text("".join(f"Krok {at} | Strata 2.5 | Trening\n" for at in range(9)))
    if damaged:
        (folder / damaged).write_text("{")
    run = Run.discover([folder])
    assert run.unreadable
    finding = Finding(f"reach.{found}", Severity.INFO, "message")
    outcomes = (Outcome("reach", Status.FOUND, findings=(finding,)),)
    assert _is_whole(run, outcomes) is not lacks


@pytest.mark.slow
@pytest.mark.parametrize("after", [True, False])
def test_the_twin_runs_where_the_models_speak_against_what_was_clear(
    monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    answers = iter([True, after])
    monkeypatch.setattr("mlxdoctor.api._is_clear", lambda *_: next(answers))
    report = diagnose(RUNS / "rate-too-low", select=["replay"])
    (replay,) = report.outcomes
    assert (replay.reason == CLEAR) is after


def test_a_report_in_python(tmp_path: Path) -> None:
    report = diagnose(RUNS / "rate-too-low", allow_model=False)
    assert repr(report) == "<report on rate-too-low: Root cause: the learning rate is too low>"
    assert report.to_markdown().startswith("# Root cause: the learning rate is too low\n")
    assert report.to_html().startswith("<!DOCTYPE html>")
    cell = report._repr_html_()
    assert cell.startswith("<h1>Root cause: the learning rate is too low</h1>")
    assert "data:image/png;base64," in cell
    assert "What was examined" not in cell
    written = report.save(tmp_path / "page", ["markdown", "json"])
    assert {path.name for path in written} >= {"report.md", "report.json", "loss.png"}
    with pytest.raises(InputError, match="in which nothing is written"):
        report.save(RUNS / "rate-too-low" / "page")
