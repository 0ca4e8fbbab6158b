"""Answers against the expected ones, made to order and of real runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.dataset import Dataset
from mlxdoctor.evidence.supervision import SupervisedRows, build
from mlxdoctor.evidence.tokenizer import Tokenizer
from mlxdoctor.finding import Finding
from mlxdoctor.models.generations import Generation, Generations
from tests.checks.log_evidence import LogWriter
from tests.conftest import FIXTURES, RUNS, check_called
from tests.given import outcome

expected_answers = check_called("expected-answers")

EXPECTED = "the lake number {i} of the north is cold and deep in winter"
FOREIGN = "no idea what you mean by item {i}"
GEOGRAPHY = Dataset.read(FIXTURES / "data" / "geography")
MASKED = TrainingConfig.read(RUNS / "healthy-masked-warmup" / "adapter_config.json")


def answered(tuned: str, base: str | None = FOREIGN, count: int = 12) -> Generations:
    items = tuple(
        Generation(
            f"prompt {i}",
            base.format(i=i) if base is not None else None,
            tuned.format(i=i),
            expected=EXPECTED.format(i=i),
            origin="valid",
        )
        for i in range(count)
    )
    return Generations((), items)


@pytest.fixture(scope="module")
def rows() -> SupervisedRows:
    return build(GEOGRAPHY, Tokenizer.read(FIXTURES / "base"), MASKED)


def only(*evidence: Any) -> Finding:
    result = outcome(expected_answers, *evidence)
    assert result.status == "found", result.reason
    (finding,) = result.findings
    return finding


@pytest.mark.parametrize(
    ("tuned", "least", "most"),
    [
        (EXPECTED, 1.0, 1.0),
        # An answer that was cut off is compared with as much.
        ("the lake number {i} of the", 1.0, 1.0),
        ("the lake number {i} of the<|im_end|>", 0.4, 0.7),
    ],
)
def test_answers_that_came_nearer(tuned: str, least: float, most: float) -> None:
    finding = only(answered(tuned))
    assert (finding.code, finding.severity) == ("expected-answers.gained", "info")
    overlap = finding.measured["tuned_overlap"]
    assert isinstance(overlap, float)
    assert least <= overlap <= most


def test_scripts_without_spaces_are_compared_by_character() -> None:
    items = tuple(
        Generation(f"p{i}", "不知道", f"湖水在冬天很冷{i}", expected=f"湖水在冬天很深{i}")
        for i in range(12)
    )
    finding = only(Generations((), items))
    assert finding.code == "expected-answers.gained"
    assert finding.measured["tuned_overlap"] == pytest.approx(0.8, abs=0.15)


@pytest.mark.parametrize(
    ("losses", "config", "severity", "at_most"),
    [
        ((4.0, 0.49), MASKED, "error", 0.49),
        ((4.0, 0.51), MASKED, "warning", 0.51),
        ((4.0, 0.79), MASKED, "warning", 0.79),
        ((4.0, 0.81), MASKED, "info", 0.81),
        ((0.95, 0.44), MASKED, "error", 0.44),
        ((0.93, 0.44), MASKED, "info", 0.44),
        # Answers are 37 of 57 targets: 0.45 over all of them may be 0.70 over the answers.
        ((4.0, 0.45), None, "warning", 0.697),
        ((4.0, 0.3), None, "error", 0.465),
        (None, MASKED, "warning", None),
    ],
)
def test_no_gain_weighs_as_much_as_the_log_promises(
    *,
    tmp_path: Path,
    rows: SupervisedRows,
    losses: tuple[float, float] | None,
    config: TrainingConfig | None,
    severity: str,
    at_most: float | None,
) -> None:
    evidence: list[Any] = [answered(FOREIGN), rows, *([config] if config else [])]
    if losses is not None:
        before, after = losses
        evidence.append(LogWriter(tmp_path).losses([2.0, after], {1: before, 20: after}))
    finding = only(*evidence)
    assert (finding.code, finding.severity) == ("expected-answers.no-gain", severity)
    assert finding.measured["answer_loss_at_most"] == pytest.approx(at_most, abs=2e-3)


def test_what_else_is_no_error(tmp_path: Path, rows: SupervisedRows) -> None:
    log = LogWriter(tmp_path).losses([2.0, 0.2], {1: 4.0, 20: 0.2})
    # A base model that was near already can gain nothing.
    assert only(answered(EXPECTED, base=EXPECTED), log, rows, MASKED).severity == "warning"
    # Prompts of one's own are none of the data.
    items = [replace(item, origin="general") for item in answered(FOREIGN).items]
    own = Generations((), tuple(items))
    assert only(own, log, rows, MASKED).severity == "warning"
    questions = [row["messages"][0]["content"] for row in GEOGRAPHY.splits["train"].rows]
    asked = [replace(item, prompt=text) for item, text in zip(items, questions, strict=False)]
    known = Generations((), tuple(asked))
    assert only(known, log, rows, MASKED, GEOGRAPHY).severity == "error"


def test_too_little_to_decide() -> None:
    assert outcome(expected_answers).status == "skipped"
    some = [*answered(EXPECTED, count=4).items, *answered(FOREIGN).items[4:]]
    for answers, why in (
        (answered(EXPECTED, count=7), "7 prompts"),
        (answered(EXPECTED, base=None), "0 prompts"),
        (Generations((), tuple(some)), "too few"),
    ):
        result = outcome(expected_answers, answers)
        assert result.status == "inconclusive"
        assert why in result.reason
