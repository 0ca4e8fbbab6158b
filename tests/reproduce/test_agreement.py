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


@pytest.mark.parametrize(
    ("reports", "agrees", "compared"),
    [
        # The rerun is averaged over the iterations between reports.
        ([(2, 3.0), (4, 3.001)], True, (2, 4, 4)),
        ([(2, 3.0 + 0.9 * SAME_STEP)], True, (1, 2, 2)),
        ([(2, 3.0 + 1.1 * SAME_STEP)], False, (1, 2, 2)),
        ([(2, 3.0), (4, 9.98), (6, 3.5)], False, (3, 6, 4)),
        # Reports beyond the rerun are left out.
        ([(4, 3.0), (8, 3.0), (12, 99.0)], True, (2, 8, 8)),
    ],
)
def test_reports_are_held_against_the_rerun(
    reports: list[tuple[int, float]], agrees: bool, compared: tuple[int, int, int]
) -> None:
    same = agreement(log(*reports), RERUN)
    assert same is not None
    assert (same.agrees, (same.reports, same.last, same.iteration)) == (agrees, compared)
    place = f"at iteration {compared[2]} the log has" if not agrees else "to within"
    assert place in same.sentence


def test_nan_agrees_with_nan_and_with_nothing_else() -> None:
    broken = replace(RERUN, losses=(math.nan,) * 8)
    same, other = (agreement(log((2, loss)), broken) for loss in (math.nan, 3.0))
    assert same is not None
    assert other is not None
    assert (same.agrees, other.agrees, other.difference) == (True, False, math.inf)


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
