"""Whose validation loss was reported, on rows made to order and on a real run."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from mlxdoctor.api import diagnose
from mlxdoctor.evidence.metrics import ReportedMetrics
from mlxdoctor.finding import Outcome
from mlxdoctor.models.validation import ValidationRows
from tests.conftest import FIXTURES, RUNS, check_called
from tests.given import outcome
from tests.measured_rows import Losses, measured_rows

reported_loss = check_called("reported-loss")

BASE, TUNED = (Losses(one, one, one, one, one) for one in (5.0, 4.0))


def judged(
    folder: Path, figures: dict[str, Any], count: int = 40, tuned: Losses | None = TUNED
) -> Outcome:
    path = folder / "eval_results.json"
    path.write_text(json.dumps(figures))
    rows = measured_rows(BASE, tuned, count, spread=0.4)
    evidence = ValidationRows((), count, count, (), lambda _, wanted: rows[:wanted])
    return outcome(reported_loss, ReportedMetrics.read([path]), evidence)


@pytest.mark.parametrize(
    ("figures", "status"),
    [
        ({"valid_loss": 5.04}, "found"),
        ({"eval_loss": 4.96}, "found"),
        ({"results": {"perplexity": math.exp(5.0)}}, "found"),
        ({"valid_loss": 5.06}, "inconclusive"),
        ({"valid_loss": 4.04}, "passed"),
        ({"valid_ppl": math.exp(4.0)}, "passed"),
        ({"base_loss": 5.0, "train_loss": 5.0, "test_loss": 5.0}, "skipped"),
    ],
)
def test_whose_figure_it_is(tmp_path: Path, figures: dict[str, Any], status: str) -> None:
    found = judged(tmp_path, figures)
    assert found.status == status, found.reason
    assert [one.severity for one in found.findings] == (["error"] if status == "found" else [])
    assert bool(found.seen) is (status == "passed")


@pytest.mark.parametrize(("tuned", "status"), [(4.81, "inconclusive"), (4.79, "found")])
def test_losses_that_hardly_differ_tell_nothing(tmp_path: Path, tuned: float, status: str) -> None:
    near = Losses(tuned, tuned, tuned, tuned, tuned)
    assert judged(tmp_path, {"valid_loss": 5.0}, tuned=near).status == status


def test_a_few_rows_or_one_model_tell_nothing(tmp_path: Path) -> None:
    assert judged(tmp_path, {"valid_loss": 5.0}, count=7).status == "inconclusive"
    assert judged(tmp_path, {"valid_loss": 5.0}, tuned=None).status == "inconclusive"


@pytest.mark.slow
def test_of_a_real_run_without_a_log() -> None:
    folder = RUNS / "evaluated-without-adapter"
    paths = [
        folder / name
        for name in ("adapters.safetensors", "adapter_config.json", "evaluation.json")
        if (folder / name).exists()
    ]
    report = diagnose(
        paths,
        base=FIXTURES / "base",
        data=FIXTURES / "data" / "geography",
        select=["reported-loss"],
    )
    assert [one.code for one in report.findings] == ["reported-loss.of-the-base"]
    assert report.root is not None
    assert report.root.cause.id == "evaluated-without-adapter"


def test_where_nothing_was_reported_there_is_nothing_to_be_the_bases() -> None:
    report = diagnose([RUNS / "healthy-ordinary"], allow_model=False, select=["reported-loss"])
    (outcome,) = (one for one in report.outcomes if one.check == "reported-loss")
    assert (outcome.status, outcome.arises) == ("skipped", False)
