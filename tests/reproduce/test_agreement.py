"""The rerun against the log, report by report."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mlxdoctor.evidence.training_log import Segment, Series, TrainingLog
from mlxdoctor.reproduce.investigate import SAME_STEP, agreement
from mlxdoctor.reproduce.observe import Change, Observation, rerun
from mlxdoctor.run import Run
from mlxdoctor.twin.rerun import Laboratory, recipe_of
from tests.conftest import RUNS

RERUN = Observation((), None, None, tuple(range(1, 9)), (4.0, 2.0) * 4, (), 1.0)


def log(*reports: tuple[int, float], axis: str = "iteration") -> TrainingLog:
    """A log with these losses."""
    iterations, values = zip(*reports, strict=True)
    series = Series(np.array(iterations, np.int64), np.array(values, np.float64))
    segment = Segment({"train_loss": series}, 1, len(reports), axis=axis)
    return TrainingLog((), "test", (segment,))


def test_the_rerun_is_averaged_over_the_iterations_between_reports() -> None:
    found = agreement(log((2, 3.0), (4, 3.001)), RERUN)
    assert found is not None
    assert found.agrees
    assert (found.reports, found.last, found.iteration) == (2, 4, 4)
    assert found.difference == pytest.approx(0.001)
    assert "to within 0.001 nats (2 reports up to iteration 4)" in found.sentence


@pytest.mark.parametrize(("off", "agrees"), [(0.9, True), (1.1, False)])
def test_the_limit_decides(off: float, agrees: bool) -> None:
    found = agreement(log((2, 3.0 + off * SAME_STEP)), RERUN)
    assert found is not None
    assert found.agrees is agrees


def test_a_difference_is_said_with_its_place() -> None:
    found = agreement(log((2, 3.0), (4, 9.98), (6, 3.5)), RERUN)
    assert found is not None
    assert not found.agrees
    assert "at iteration 4 the log has 9.980 and the rerun 3.000 (3 reports" in found.sentence


def test_reports_beyond_the_rerun_are_left_out() -> None:
    found = agreement(log((4, 3.0), (8, 3.0), (12, 99.0)), RERUN)
    assert found is not None
    assert (found.reports, found.last) == (2, 8)


def test_nan_agrees_with_nan_and_with_nothing_else() -> None:
    broken = replace(RERUN, losses=(math.nan,) * 8)
    same = agreement(log((2, math.nan)), broken)
    other = agreement(log((2, 3.0)), broken)
    assert same is not None
    assert same.agrees
    assert other is not None
    assert not other.agrees
    assert math.isinf(other.difference)


def test_what_cannot_be_compared_is_not() -> None:
    assert agreement(log((2, 3.0), axis="row"), RERUN) is None
    assert agreement(log((20, 3.0)), RERUN) is None
    assert agreement(TrainingLog((), "test", ()), RERUN) is None


@pytest.mark.slow
def test_a_calm_run_of_mlx_lm_is_made_again_step_for_step(tmp_path: Path) -> None:
    run = Run.discover([RUNS / "rate-too-low"], allow_model=False)
    recorded, recipe = run.get(TrainingLog), recipe_of(run)
    change = Change("as recorded", "rerun as recorded", 20)
    seen = rerun(Laboratory(recipe, tmp_path), change, recipe.seed)
    assert recorded is not None
    found = agreement(recorded, seen)
    assert found is not None
    assert (found.agrees, found.last) == (True, 20)
