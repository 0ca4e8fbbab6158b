"""Answers against the expected ones, made to order and of real runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.dataset import Dataset
from mlxdoctor.evidence.supervision import SupervisedRows, build
from mlxdoctor.evidence.tokenizer import Tokenizer
from mlxdoctor.evidence.training_log import TrainingLog
from mlxdoctor.finding import Finding, Outcome
from mlxdoctor.models.generations import Generation, Generations
from mlxdoctor.run import Run
from tests.checks.log_evidence import LogWriter
from tests.conftest import FIXTURES, RUNS, check_called, expected, run_names
from tests.given import outcome

expected_answers = check_called("expected-answers")

EXPECTED = "the lake number {i} of the north is cold and deep in winter"
FOREIGN = "no idea what you mean by item {i}"
PART = "the lake number {i} may well be somewhere"


def answered(
    tuned: str, base: str = FOREIGN, count: int = 12, origin: str = "valid"
) -> Generations:
    items = tuple(
        Generation(
            f"prompt {i}",
            base.format(i=i),
            tuned.format(i=i),
            expected=EXPECTED.format(i=i),
            origin=origin,
        )
        for i in range(count)
    )
    return Generations((), items)


@pytest.fixture(scope="module")
def rows() -> SupervisedRows:
    config = TrainingConfig.read(RUNS / "healthy-masked-warmup" / "adapter_config.json")
    tokenizer = Tokenizer.read(FIXTURES / "base")
    return build(Dataset.read(FIXTURES / "data" / "geography"), tokenizer, config)


@pytest.fixture(scope="module")
def masked() -> TrainingConfig:
    return TrainingConfig.read(RUNS / "healthy-masked-warmup" / "adapter_config.json")


@pytest.fixture
def log(tmp_path: Path) -> Callable[[float, float], TrainingLog]:
    def write(before: float, after: float) -> TrainingLog:
        return LogWriter(tmp_path).losses([2.0, after], {1: before, 20: after})

    return write


def only(found: Outcome) -> Finding:
    assert found.status == "found", found.reason
    (one,) = found.findings
    return one


def test_answers_that_came_nearer() -> None:
    finding = only(outcome(expected_answers, answered(EXPECTED)))
    assert (finding.code, finding.severity) == ("expected-answers.gained", "info")
    assert finding.measured["tuned_overlap"] == 1.0


@pytest.mark.parametrize(
    ("losses", "severity"),
    [
        ((4.0, 0.49), "error"),
        ((4.0, 0.51), "warning"),
        ((4.0, 0.79), "warning"),
        ((4.0, 0.81), "info"),
        ((0.95, 0.44), "error"),
        ((0.93, 0.44), "info"),
    ],
)
def test_no_gain_weighs_as_much_as_the_log_promises(
    log: Callable[[float, float], TrainingLog],
    rows: SupervisedRows,
    masked: TrainingConfig,
    losses: tuple[float, float],
    severity: str,
) -> None:
    same = answered(FOREIGN)
    finding = only(outcome(expected_answers, same, log(*losses), rows, masked))
    assert (finding.code, finding.severity) == ("expected-answers.no-gain", severity)
    assert finding.measured["answer_loss_at_most"] == pytest.approx(losses[1])


def test_an_unmasked_loss_says_less_of_the_answers(
    log: Callable[[float, float], TrainingLog], rows: SupervisedRows
) -> None:
    same = answered(FOREIGN)
    # Answers are 37 of 57 targets: 0.45 over all of them may be 0.70 over the answers.
    finding = only(outcome(expected_answers, same, log(4.0, 0.45), rows))
    assert finding.severity == "warning"
    assert finding.measured["answer_loss_at_most"] == pytest.approx(0.697, abs=2e-3)
    assert only(outcome(expected_answers, same, log(4.0, 0.3), rows)).severity == "error"


def test_no_gain_without_a_log_is_a_warning() -> None:
    assert only(outcome(expected_answers, answered(FOREIGN))).severity == "warning"


def test_prompts_of_ones_own_are_no_error(
    log: Callable[[float, float], TrainingLog], rows: SupervisedRows, masked: TrainingConfig
) -> None:
    same = answered(FOREIGN, origin="general")
    evidence = (log(4.0, 0.2), rows, masked)
    assert only(outcome(expected_answers, same, *evidence)).severity == "warning"
    data = Dataset.read(FIXTURES / "data" / "geography")
    asked = [row["messages"][0]["content"] for row in data.splits["train"].rows]
    known = replace(
        same,
        items=tuple(
            replace(one, prompt=text) for one, text in zip(same.items, asked, strict=False)
        ),
    )
    assert only(outcome(expected_answers, known, *evidence, data)).severity == "error"


def test_a_base_model_that_was_near_already_can_gain_nothing(
    log: Callable[[float, float], TrainingLog], rows: SupervisedRows, masked: TrainingConfig
) -> None:
    good = answered(EXPECTED, base=EXPECTED)
    finding = only(outcome(expected_answers, good, log(4.0, 0.2), rows, masked))
    assert (finding.code, finding.severity) == ("expected-answers.no-gain", "warning")


def test_too_little_to_decide() -> None:
    assert outcome(expected_answers, answered(EXPECTED, count=7)).status == "inconclusive"
    assert outcome(expected_answers).status == "skipped"
    alone = answered(EXPECTED)
    alone = replace(alone, items=tuple(replace(one, base=None) for one in alone.items))
    assert outcome(expected_answers, alone).status == "inconclusive"
    some = answered(FOREIGN)
    mixed = tuple(
        replace(one, tuned=EXPECTED.format(i=i) if i < 4 else one.tuned)
        for i, one in enumerate(some.items)
    )
    unclear = outcome(expected_answers, replace(some, items=mixed))
    assert unclear.status == "inconclusive"
    assert "too few" in unclear.reason


def test_an_answer_cut_off_is_compared_with_as_much() -> None:
    finding = only(outcome(expected_answers, answered("the lake number {i} of the")))
    assert finding.code == "expected-answers.gained"
    assert finding.measured["tuned_overlap"] == 1.0
    ended = answered("the lake number {i} of the<|im_end|>")
    assert only(outcome(expected_answers, ended)).measured["tuned_overlap"] < 0.7


def test_scripts_without_spaces_are_compared_by_character() -> None:
    items = tuple(
        Generation(f"p{i}", "不知道", f"湖水在冬天很冷{i}", expected=f"湖水在冬天很深{i}")
        for i in range(12)
    )
    finding = only(outcome(expected_answers, Generations((), items)))
    assert finding.code == "expected-answers.gained"
    assert 0.6 < finding.measured["tuned_overlap"] < 0.95


OF_RUNS = {
    "adapter-never-attached": "error",
    "adapter-not-loaded": "error",
    "b-never-trained": "error",
    "targets-too-long": "error",
    "end-token-flood": "error",
    "answers-empty": "warning",
    "no-supervised-tokens": "warning",
    "rate-far-too-high-nan": "warning",
    "collapse-frequent-token": "info",
    "gradients-blocked": "info",
    "rate-too-low": "info",
    "scale-too-large": "info",
}


@pytest.mark.parametrize("name", run_names())
def test_the_fixture_runs(name: str) -> None:
    found = expected_answers.run(Run.discover([RUNS / name], allow_model=False))
    lost = {one.severity for one in found.findings if one.code == "expected-answers.no-gain"}
    assert lost == ({OF_RUNS[name]} if name in OF_RUNS else set())
    if expected(name)["verdict"] == "healthy":
        assert [one.code for one in found.findings] == ["expected-answers.gained"]
