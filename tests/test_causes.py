"""The knowledge base as a file: one table adds a cause."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import mlxdoctor.causes
from mlxdoctor.causes import load_causes, parse_causes
from mlxdoctor.diagnosis import rank
from mlxdoctor.finding import Finding, Outcome, Severity, Status
from mlxdoctor.twin.readings import readings
from tests.conftest import RUNS, Call

SHIPPED = Path(mlxdoctor.causes.__file__).with_name("causes.toml").read_text("utf-8")
ADDED = """
[causes.cosmic-rays]
title = "Cosmic rays"
summary = "a bit flipped"
explanation = "Something from far away went through the memory."
remedy = "Train again, in a cellar."
prior = 5.0
change = { key = "batch_size", set = 3 }
proof = ["loss-trend.diverged"]
"""


@pytest.fixture
def _added(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The shipped file with one table more."""
    monkeypatch.setattr(mlxdoctor.causes, "parse_causes", lambda text: parse_causes(text + ADDED))
    load_causes.cache_clear()
    yield
    load_causes.cache_clear()


@pytest.mark.usefixtures("_added")
def test_one_table_adds_a_cause(call: Call) -> None:
    log = RUNS / "collapse-frequent-token" / "train.log"
    code, printed, _ = call("diagnose", log, "--stdout", "json")
    report = json.loads(printed)
    assert code == 1
    assert report["diagnosis"][0]["cause"] == "cosmic-rays"
    assert report["causes"]["cosmic-rays"]["title"] == "Cosmic rays"
    code, explained, _ = call("explain", "cosmic-rays")
    assert code == 0
    assert "+4.0  loss-trend.diverged" in explained
    assert "Train again, in a cellar." in explained
    assert "set batch_size to 3" in explained


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('strong = ["loss-trend.divergd"]', "causes.toml: no check reports loss-trend.divergd;"),
        ('ruled_out_by = [["replay.x"]]', "causes.toml: no check reports replay.x;"),
        ('leave_out = ["data-quality.x"]', "no check reports data-quality.x;"),
    ],
)
def test_what_a_cause_misspells_is_told(
    line: str, said: str, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    monkeypatch.setattr(
        "mlxdoctor.cli.explain.load_causes", lambda: parse_causes(SHIPPED + ADDED + line)
    )
    code, _, err = call("explain", "cosmic-rays")
    assert (code, said in err) == (2, True)


def test_of_too_few_rows_no_fewer_iterations_are_advised() -> None:
    cause = load_causes().causes["overfitting"]
    proof = {"learned-targets.memorised": Severity.ERROR}
    for severity in (Severity.INFO, Severity.WARNING):
        seen = cause.seen_with(proof | {"data-quality.few-rows": severity})
        assert seen.title.startswith("There are too few rows")
        assert seen.change is None
    assert cause.seen_with(proof).change == cause.change
    # Before a training nothing was learned yet.
    planned = cause.seen_with({"data-quality.few-rows": Severity.ERROR})
    assert "would be learned by heart" in planned.title


def test_every_reading_of_a_faulty_trainer_explains_effects() -> None:
    knowledge = load_causes()
    faulty = {f"replay.{reading.code}" for reading in readings() if not reading.sound}
    assert [code for code in sorted(faulty) if not knowledge.explains(code)] == []


def test_effects_speak_for_no_other_cause_than_what_explains_them() -> None:
    """A rate that seems too high is none where the log is that of a trainer of another loss."""

    def causes(*codes: str) -> list[str]:
        findings = tuple(Finding(code, Severity.ERROR, code) for code in codes)
        outcomes = [Outcome("some", Status.FOUND, findings=findings)]
        return [listed.cause.id for listed in rank(outcomes, load_causes())]

    effects = ("weight-drift.exploded", "loss-trend.diverged")
    assert causes(*effects)[0] == "learning-rate-too-high"
    assert causes(*effects, "replay.summed") == ["summed-loss"]
    assert causes(*effects, "reach.rate-too-high") == ["learning-rate-too-high"]
