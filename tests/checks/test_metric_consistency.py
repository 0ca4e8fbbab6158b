"""Reported figures against the run's own losses."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from mlxdoctor.api import diagnose
from mlxdoctor.evidence.metrics import ReportedMetrics
from mlxdoctor.evidence.training_log import TrainingLog
from mlxdoctor.finding import Outcome
from mlxdoctor.models.validation import ValidationRows
from tests.conftest import FIXTURES, RUNS, check_called
from tests.given import findings, outcome
from tests.measured_rows import Losses, measured_rows

metric_consistency = check_called("metric-consistency")


def log(tmp_path: Path, first: float, last: float) -> TrainingLog:
    path = tmp_path / "train.log"
    path.write_text(
        f"Iter 1: Val loss {first:.3f}, Val took 1.0s\n"
        + "".join(
            f"Iter {i}: Train loss 1.000, Learning Rate 1.000e-05, It/sec 1.0, "
            f"Tokens/sec 100.0, Trained Tokens {i * 100}, Peak mem 1.0 GB\n"
            for i in (10, 20, 30)
        )
        + f"Iter 30: Val loss {last:.3f}, Val took 1.0s\n"
    )
    return TrainingLog.read([path])


def reported(tmp_path: Path, **figures: Any) -> ReportedMetrics:
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
        metric_consistency, log(tmp_path, 2.0, 1.2), reported(tmp_path, loss=2.0 + off)
    )
    assert ("metric-consistency.base-reported" in found) is hit


@pytest.mark.parametrize(
    ("figures", "severity"),
    [
        ({"valid_loss": 5.064}, "error"),
        ({"eval_loss": 5.064}, "error"),
        ({"results": {"valid": {"ppl": math.exp(5.064)}}}, "error"),
        # Rows of a harder file may have it.
        ({"test_loss": 5.064}, "warning"),
        ({"perplexity": math.exp(5.064)}, "warning"),
        # Neither side of a quarter of the fall.
        ({"valid_loss": 4.2}, None),
        ({"valid_loss": 6.4}, None),
        ({"valid_loss": 1.3}, None),
    ],
)
def test_a_few_batches_of_short_answers_are_no_precise_figure(
    tmp_path: Path, figures: dict[str, Any], severity: str | None
) -> None:
    found = findings(metric_consistency, log(tmp_path, 5.264, 1.099), reported(tmp_path, **figures))
    finding = found.get("metric-consistency.base-reported")
    assert (finding.severity if finding is not None else None) == severity
    # A log that ended in NaN has nothing to be far from.
    broken = findings(
        metric_consistency, log(tmp_path, 5.264, math.nan), reported(tmp_path, **figures)
    )
    assert "metric-consistency.base-reported" not in broken


@pytest.mark.parametrize(("last", "hit"), [(1.69, True), (1.71, False)])
def test_losses_too_close_to_tell_apart(tmp_path: Path, last: float, hit: bool) -> None:
    found = findings(metric_consistency, log(tmp_path, 2.0, last), reported(tmp_path, loss=2.0))
    assert ("metric-consistency.base-reported" in found) is hit


def test_a_figure_of_the_tuned_model_and_one_of_the_base_by_name_pass(tmp_path: Path) -> None:
    metrics = reported(tmp_path, loss=1.02, base_loss=2.0, train_loss=2.0)
    assert outcome(metric_consistency, log(tmp_path, 2.0, 1.0), metrics).status == "passed"


def test_nothing_to_compare(tmp_path: Path) -> None:
    assert outcome(metric_consistency).status == "skipped"
    assert outcome(metric_consistency, log(tmp_path, 2.0, 1.0)).status == "skipped"


def alone(tmp_path: Path, figures: dict[str, object]) -> dict[str, object]:
    path = tmp_path / "evaluation.json"
    path.write_text(json.dumps(figures))
    return dict(findings(metric_consistency, ReportedMetrics.read([path])))


@pytest.mark.parametrize(
    "figures",
    [
        {"accuracy_before": 0.62, "accuracy_after": 0.62},
        {"accuracy_before": 0.62, "accuracy": 0.62, "f1_before": 0.0, "f1": 0.0},
        {"base": {"perplexity": 7.66}, "tuned": {"perplexity": 7.66}},
        {"baseline_loss": 2.036, "finetuned_loss": 2.036},
    ],
)
def test_equal_figures_before_and_after_are_of_one_model(
    tmp_path: Path, figures: dict[str, object]
) -> None:
    assert list(alone(tmp_path, figures)) == ["metric-consistency.base-reported"]


@pytest.mark.parametrize(
    "figures",
    [
        {"accuracy_before": 1.0, "accuracy_after": 1.0},
        {"accuracy_before": 0.62, "accuracy_after": 0.62, "f1_before": 0.4, "f1_after": 0.5},
        {"accuracy_before": 0.62, "f1_after": 0.62},
        {"accuracy_before": 0.6, "accuracy_after": 0.4},
        {"loss_before": 2.0, "loss_after": 0.4},
    ],
)
def test_other_figures_before_and_after_say_nothing(
    tmp_path: Path, figures: dict[str, object]
) -> None:
    assert not alone(tmp_path, figures)


def test_scores_that_fell_by_half_are_an_error(tmp_path: Path) -> None:
    # The incident: accuracy from 0.80 to 0, the voice score from 0.1167 to 0.
    found = alone(
        tmp_path,
        {"accuracy_before": 0.8, "accuracy": 0.0, "voice_score_before": 0.12, "voice_score": 0.0},
    )
    assert list(found) == ["metric-consistency.worse-than-before"]


@pytest.mark.parametrize(("perplexity", "hit"), [(7.66, True), (9000.0, False)])
def test_a_figure_far_below_the_end_of_a_logs_tail_is_of_another_model(
    tmp_path: Path, perplexity: float, hit: bool
) -> None:
    path = tmp_path / "train.log"
    path.write_text(
        "Iter 2990: Train loss 10.156, Learning Rate 2.000e-04, It/sec 0.1\n"
        "Iter 3000: Train loss 10.157, Learning Rate 2.000e-04, It/sec 0.1\n"
        "Iter 3000: Val loss 10.017, Val took 60.2s\n"
    )
    found = findings(
        metric_consistency, TrainingLog.read([path]), reported(tmp_path, perplexity=perplexity)
    )
    assert ("metric-consistency.not-this-model" in found) is hit


BASE, TUNED = (Losses(*[loss] * 5) for loss in (5.0, 4.0))


def of_rows(
    folder: Path, figures: dict[str, Any], count: int = 40, tuned: Losses | None = TUNED
) -> Outcome:
    """The check of an evaluation beside rows that both models read, without a log."""
    rows = measured_rows(BASE, tuned, count, spread=0.4)
    evidence = ValidationRows((), count, count, (), lambda _, wanted: rows[:wanted])
    return outcome(metric_consistency, reported(folder, **figures), evidence)


@pytest.mark.parametrize(
    ("figures", "severity", "is_seen"),
    [
        ({"valid_loss": 5.09}, "error", False),
        ({"eval_loss": 4.91}, "error", False),
        ({"results": {"perplexity": math.exp(5.0)}}, "error", False),
        ({"valid_loss": 5.11}, None, False),
        ({"valid_loss": 4.09}, None, True),
        ({"valid_ppl": math.exp(4.0)}, None, True),
        ({"base_loss": 5.0, "train_loss": 5.0, "test_loss": 5.0}, None, False),
    ],
)
def test_whose_loss_on_the_validation_rows_a_figure_is(
    tmp_path: Path, figures: dict[str, Any], severity: str | None, is_seen: bool
) -> None:
    found = of_rows(tmp_path, figures)
    assert found.status != "crashed", found.reason
    assert [one.severity for one in found.findings] == ([severity] if severity else [])
    assert bool(found.seen) is is_seen


@pytest.mark.parametrize(("tuned", "hit"), [(4.71, False), (4.69, True)])
def test_models_that_hardly_differ_tell_nothing(tmp_path: Path, tuned: float, hit: bool) -> None:
    assert bool(of_rows(tmp_path, {"valid_loss": 5.0}, tuned=Losses(*[tuned] * 5)).findings) is hit


def test_a_few_rows_or_one_model_tell_nothing(tmp_path: Path) -> None:
    assert not of_rows(tmp_path, {"valid_loss": 5.0}, count=7).findings
    assert not of_rows(tmp_path, {"valid_loss": 5.0}, tuned=None).findings


@pytest.mark.slow
def test_a_real_run_without_a_log() -> None:
    folder = RUNS / "evaluated-without-adapter"
    names = ("adapters.safetensors", "adapter_config.json", "evaluation.json")
    report = diagnose(
        [folder / name for name in names],
        base=FIXTURES / "base",
        data=FIXTURES / "data" / "geography",
        select=["metric-consistency"],
    )
    assert [one.code for one in report.findings] == ["metric-consistency.base-reported"]
    assert report.root is not None
    assert report.root.cause.id == "evaluated-without-adapter"
