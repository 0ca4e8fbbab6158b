import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest

from mlxdoctor.api import diagnose
from mlxdoctor.evidence.metrics import ReportedMetrics
from mlxdoctor.evidence.training_log import TrainingLog
from mlxdoctor.models.generations import RecordedGenerations
from mlxdoctor.models.losses import TokenLosses
from tests.checks.log_evidence import LogWriter
from tests.conftest import FIXTURES, RUNS, check_called
from tests.given import findings, outcome
from tests.measured_rows import Losses, measured_rows

metric_consistency = check_called("metric-consistency")
OF_BASE, OTHER = "metric-consistency.base-reported", "metric-consistency.not-this-model"


def log(folder: Path, first: float, last: float) -> TrainingLog:
    return LogWriter(folder).losses([1.0] * 3, {1: first, 30: last})


def reported(folder: Path, figures: dict[str, Any]) -> ReportedMetrics:
    path = folder / "evaluation.json"
    path.write_text(json.dumps(figures))
    return ReportedMetrics.read([path])


@pytest.mark.parametrize(
    ("losses", "figures", "severity"),
    [
        # The incident: exp(2.036) reported, 9.997 at the end.
        ((2.036, 9.997), {"perplexity": 7.66}, "error"),
        # As close as batches allow.
        ((2.0, 1.2), {"loss": 2.09}, "error"),
        ((2.0, 1.2), {"loss": 2.11}, None),
        # Losses too close to tell apart.
        ((2.0, 1.69), {"loss": 2.0}, "error"),
        ((2.0, 1.71), {"loss": 2.0}, None),
        # A few batches of short answers are no precise figure.
        ((5.264, 1.099), {"valid_loss": 5.064}, "error"),
        ((5.264, 1.099), {"results": {"valid": {"ppl": math.exp(5.064)}}}, "error"),
        # Rows of a harder file may have it.
        ((5.264, 1.099), {"test_loss": 5.064}, "warning"),
        ((5.264, 1.099), {"perplexity": math.exp(5.064)}, "warning"),
        # Neither side of a quarter of the fall.
        ((5.264, 1.099), {"valid_loss": 4.2}, None),
        ((5.264, 1.099), {"valid_loss": 6.4}, None),
        # A log that ended in NaN has nothing to be far from.
        ((5.264, math.nan), {"valid_loss": 5.064}, None),
        # The tuned model's, and one of the base by name.
        ((2.0, 1.0), {"loss": 1.02, "base_loss": 2.0, "train_loss": 2.0}, None),
    ],
)
def test_the_figure_of_the_untouched_model(
    tmp_path: Path, losses: tuple[float, float], figures: dict[str, Any], severity: str | None
) -> None:
    evidence = log(tmp_path, *losses), reported(tmp_path, figures)
    finding = findings(metric_consistency, *evidence).get(OF_BASE)
    assert (finding.severity if finding is not None else None) == severity
    if finding is not None and "perplexity" in figures:
        loss = math.log(figures["perplexity"])
        assert finding.measured["reported_loss"] == pytest.approx(loss, abs=1e-3)


@pytest.mark.parametrize(
    ("figures", "code"),
    [
        ({"accuracy_before": 0.62, "accuracy_after": 0.62}, OF_BASE),
        ({"accuracy_before": 0.62, "accuracy": 0.62, "f1_before": 0.0, "f1": 0.0}, OF_BASE),
        ({"base": {"perplexity": 7.66}, "tuned": {"perplexity": 7.66}}, OF_BASE),
        ({"baseline_loss": 2.036, "finetuned_loss": 2.036}, OF_BASE),
        # The incident: accuracy from 0.80 to 0, the voice score from 0.1167 to 0.
        (
            {"accuracy_before": 0.8, "accuracy": 0.0, "voice_score_before": 0.12, "voice_score": 0},
            "metric-consistency.worse-than-before",
        ),
        ({"accuracy_before": 1.0, "accuracy_after": 1.0}, None),
        (
            {"accuracy_before": 0.62, "accuracy_after": 0.62, "f1_before": 0.4, "f1_after": 0.5},
            None,
        ),
        ({"accuracy_before": 0.62, "f1_after": 0.62}, None),
        ({"accuracy_before": 0.6, "accuracy_after": 0.4}, None),
        ({"loss_before": 2.0, "loss_after": 0.4}, None),
    ],
)
def test_figures_before_and_after(
    tmp_path: Path, figures: dict[str, Any], code: str | None
) -> None:
    codes = findings(metric_consistency, reported(tmp_path, figures))
    assert list(codes) == ([code] if code else [])


@pytest.mark.parametrize(("perplexity", "hit"), [(7.66, True), (9000.0, False)])
def test_a_figure_far_below_the_end_of_a_logs_tail_is_of_another_model(
    tmp_path: Path, perplexity: float, hit: bool
) -> None:
    tail = LogWriter(tmp_path).losses([10.156, 10.157], {3000: 10.017}, first=2990)
    metrics = reported(tmp_path, {"perplexity": perplexity})
    assert (OTHER in findings(metric_consistency, tail, metrics)) is hit


@pytest.mark.parametrize(
    ("figures", "tuned", "count", "severity", "is_seen"),
    [
        ({"valid_loss": 5.09}, 4.0, 40, "error", False),
        ({"eval_loss": 4.91}, 4.0, 40, "error", False),
        ({"results": {"perplexity": math.exp(5.0)}}, 4.0, 40, "error", False),
        ({"valid_loss": 5.11}, 4.0, 40, None, False),
        ({"valid_loss": 4.09}, 4.0, 40, None, True),
        ({"base_loss": 5.0, "train_loss": 5.0, "test_loss": 5.0}, 4.0, 40, None, False),
        # Models that hardly differ, a few rows and one model tell nothing.
        ({"valid_loss": 5.0}, 4.71, 40, None, False),
        ({"valid_loss": 5.0}, 4.69, 40, "error", False),
        ({"valid_loss": 5.0}, 4.0, 7, None, False),
        ({"valid_loss": 5.0}, None, 40, None, False),
    ],
)
def test_whose_loss_on_the_validation_rows_a_figure_is(
    *,
    tmp_path: Path,
    figures: dict[str, Any],
    tuned: float | None,
    count: int,
    severity: str | None,
    is_seen: bool,
) -> None:
    """The check of an evaluation beside rows that both models read, without a log."""
    of_tuned = Losses(*[tuned] * 5) if tuned is not None else None
    rows = measured_rows(Losses(*[5.0] * 5), of_tuned, count, spread=0.4)
    evidence = TokenLosses((), rows, vocab_size=100)
    result = outcome(metric_consistency, reported(tmp_path, figures), evidence)
    assert [finding.severity for finding in result.findings] == ([severity] if severity else [])
    assert bool(result.seen) is is_seen


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
    assert [finding.code for finding in report.findings] == [OF_BASE]
    assert report.root.cause.id == "evaluated-without-adapter"


@pytest.mark.parametrize(
    ("printed", "severity"),
    [
        ("exact match 0/12 = 0.000", "error"),
        ("Accuracy: 5/12", "error"),
        # Half of the letters that a stricter comparison of sentences may leave.
        ("accuracy 6/12", None),
        ("exact match 12/12", None),
        ("exact_match (base) 0 of 12, exact_match 12 of 12", None),
        ("bleu 0/12", None),
    ],
)
def test_right_answers_that_are_counted_as_wrong(
    tmp_path: Path, printed: str, severity: str | None
) -> None:
    run = tmp_path / "run"
    shutil.copytree(RUNS / "healthy-ordinary", run)
    rows = [{"prompt": f"{n}?", "answer": f"Town {n}", "expected": f"Town {n} "} for n in range(12)]
    (run / "answers.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (run / "eval_out.txt").write_text(f"loading\n{printed}\n")
    report = diagnose(run, allow_model=False, select=["metric-consistency"])
    assert [one.severity.value for one in report.findings] == ([severity] if severity else [])


@pytest.mark.parametrize(
    ("right", "printed", "codes"),
    [
        (1, "exact match 1/12", ["metric-consistency.hardly-right"]),
        (6, "exact match 6/12", []),
    ],
)
def test_hardly_any_right_answer(
    tmp_path: Path, right: int, printed: str, codes: list[str]
) -> None:
    answers = [
        {
            "prompt": f"{n}?",
            "answer": "Town 0" if n >= right else f"Town {n}",
            "expected": f"Town {n}",
        }
        for n in range(1, 13)
    ]
    (tmp_path / "answers.jsonl").write_text("".join(json.dumps(row) + "\n" for row in answers))
    (tmp_path / "eval.txt").write_text(f"{printed}\n")
    metrics = ReportedMetrics.read([tmp_path / "eval.txt"])
    recorded = RecordedGenerations.read(tmp_path / "answers.jsonl")
    assert list(findings(metric_consistency, metrics, recorded)) == codes
