"""Reported figures against the run's own losses."""

import json
import math
from pathlib import Path

import pytest

from mlxdoctor.evidence.metrics import ReportedMetrics
from mlxdoctor.evidence.training_log import TrainingLog
from mlxdoctor.measure.generations import Generation, Generations
from tests.conftest import check_called
from tests.given import findings, outcome

metric_consistency = check_called("metric-consistency")


def log(tmp_path: Path, first: float, last: float, train: float = 1.0) -> TrainingLog:
    path = tmp_path / "train.log"
    path.write_text(
        f"Iter 1: Val loss {first:.3f}, Val took 1.0s\n"
        + "".join(
            f"Iter {i}: Train loss {train:.3f}, Learning Rate 1.000e-05, It/sec 1.0, "
            f"Tokens/sec 100.0, Trained Tokens {i * 100}, Peak mem 1.0 GB\n"
            for i in (10, 20, 30)
        )
        + f"Iter 30: Val loss {last:.3f}, Val took 1.0s\n"
    )
    return TrainingLog.read([path])


def reported(tmp_path: Path, **figures: float | str) -> ReportedMetrics:
    path = tmp_path / "evaluation.json"
    path.write_text(json.dumps(figures))
    return ReportedMetrics.read([path])


def test_the_perplexity_of_the_untouched_model(tmp_path: Path) -> None:
    # The incident: exp(2.036) reported, 9.997 at the end.
    found = findings(
        metric_consistency, log(tmp_path, 2.036, 9.997), reported(tmp_path, perplexity=7.66)
    )
    finding = found["metric-consistency.base-reported"]
    assert finding.severity == "error"
    assert finding.measured["reported_loss"] == pytest.approx(2.036, abs=1e-3)


@pytest.mark.parametrize(("off", "hit"), [(0.09, True), (0.11, False)])
def test_as_close_as_batches_allow(tmp_path: Path, off: float, hit: bool) -> None:
    found = findings(
        metric_consistency, log(tmp_path, 2.0, 1.0), reported(tmp_path, loss=2.0 + off)
    )
    assert ("metric-consistency.base-reported" in found) is hit


@pytest.mark.parametrize(("last", "hit"), [(1.69, True), (1.71, False)])
def test_losses_too_close_to_tell_apart(tmp_path: Path, last: float, hit: bool) -> None:
    found = findings(metric_consistency, log(tmp_path, 2.0, last), reported(tmp_path, loss=2.0))
    assert ("metric-consistency.base-reported" in found) is hit


def test_a_figure_of_the_tuned_model_and_one_of_the_base_by_name_pass(tmp_path: Path) -> None:
    metrics = reported(tmp_path, loss=1.02, base_loss=2.0, train_loss=2.0)
    assert outcome(metric_consistency, log(tmp_path, 2.0, 1.0), metrics).status == "passed"


def test_a_log_that_ends_in_nan_is_far_from_anything(tmp_path: Path) -> None:
    found = findings(
        metric_consistency, log(tmp_path, 2.0, math.nan), reported(tmp_path, perplexity=math.exp(2))
    )
    assert "metric-consistency.base-reported" in found


@pytest.mark.parametrize(("perplexity", "hit"), [(2.718, False), (2.65, True), (3.5, True)])
def test_perplexity_is_the_exponential_of_the_loss(
    tmp_path: Path, perplexity: float, hit: bool
) -> None:
    found = findings(metric_consistency, reported(tmp_path, perplexity=perplexity, loss=1.0))
    assert ("metric-consistency.perplexity-not-exp-loss" in found) is hit


def test_bits_are_not_a_contradiction(tmp_path: Path) -> None:
    metrics = reported(tmp_path, perplexity=math.e, loss=1 / math.log(2))
    assert outcome(metric_consistency, metrics).status == "passed"


def answered(tuned: str, count: int = 8) -> Generations:
    expected = "the largest lake is deep and cold"
    return Generations(
        (), tuple(Generation(f"p{i}", "a lake", tuned, expected=expected) for i in range(count))
    )


@pytest.mark.parametrize(("train", "hit"), [(0.19, True), (0.21, False)])
def test_a_loss_near_zero_beside_nonsense(tmp_path: Path, train: float, hit: bool) -> None:
    found = findings(metric_consistency, log(tmp_path, 2.0, 0.1, train), answered("qua qua qua"))
    assert ("metric-consistency.low-loss-bad-output" in found) is hit


def test_a_loss_near_zero_beside_good_answers(tmp_path: Path) -> None:
    good = answered("the largest lake is cold and deep")
    assert outcome(metric_consistency, log(tmp_path, 2.0, 0.1, 0.05), good).status == "passed"
    few = answered("qua", count=7)
    assert outcome(metric_consistency, log(tmp_path, 2.0, 0.1, 0.05), few).status == "passed"


def test_nothing_to_compare(tmp_path: Path) -> None:
    assert outcome(metric_consistency).status == "skipped"
    assert outcome(metric_consistency, log(tmp_path, 2.0, 1.0)).status == "skipped"
