"""When a run should end: each rule, and what is just short of it."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from mlxdoctor.train.settings import Extras
from mlxdoctor.train.step_records import StepRecord, ValidationRecord, to_line
from mlxdoctor.train.stopping import (
    DivergenceLimits,
    TrainingProgress,
    after_step,
    after_validation,
    diverged,
    why_stop,
)

LIMITS = DivergenceLimits()


def step(iteration: int, loss: float, skipped: bool = False) -> StepRecord:
    figures = (iteration, loss, 1e-4, 1.0, 10, 10 * iteration, int(skipped), 0.1, 1.0)
    return StepRecord(*figures, skipped_this=skipped)


def after(losses: list[float], untouched: float | None = None) -> TrainingProgress:
    progress = TrainingProgress()
    if untouched is not None:
        progress = after_validation(progress, ValidationRecord(0, untouched, 0.1))
    for iteration, loss in enumerate(losses, start=1):
        progress = after_step(progress, step(iteration, loss), LIMITS)
    return progress


@pytest.mark.parametrize(
    ("untouched", "first", "later", "expected"),
    [
        (2.0, 2.0, 2.51, True),
        (2.0, 2.0, 2.49, False),  # not half a nat
        (4.0, 4.0, 4.61, True),
        (4.0, 4.0, 4.59, False),  # not 15%
        (2.0, 3.0, 3.4, False),  # the training rows are harder than those validated
        (3.0, 0.5, 3.4, False),  # the first batch was an easy one
    ],
)
def test_a_run_diverges_once_it_is_well_above_the_untouched_model(
    untouched: float, first: float, later: float, expected: bool
) -> None:
    assert diverged(after([first] + [later] * 20, untouched), LIMITS) is expected


def test_a_spike_is_not_a_divergence_and_a_full_window_is_needed() -> None:
    assert not diverged(after([2.0] * 10 + [9.0] * 9 + [2.0], 2.0), LIMITS)
    assert not diverged(after([9.0] * 19, 2.0), LIMITS)
    assert not diverged(after([2.0] + [9.0] * 18, 2.0), LIMITS)
    assert diverged(after([2.0] + [9.0] * 19, 2.0), LIMITS)


def test_without_a_validation_the_first_steps_stand_in() -> None:
    assert diverged(after([2.0] * 5 + [4.0] * 20), LIMITS)
    assert not diverged(after([2.0, 4.0, 4.0, 4.0, 2.0] + [4.0] * 20), LIMITS)


def test_seed_000_is_stopped_at_its_twentieth_step() -> None:
    # Its log: 1.858 untouched, means of five 2.148, 2.609, 4.104, 10.965.
    losses = [2.148] * 5 + [2.609] * 5 + [4.104] * 5 + [10.965] * 5
    assert why_stop(after(losses[:19], 1.858), Extras(), LIMITS) is None
    ending = why_stop(after(losses, 1.858), Extras(), LIMITS)
    assert ending is not None
    assert ending[0] == "diverged"
    assert why_stop(after(losses, 1.858), Extras(stop_on_divergence=False), LIMITS) is None
    assert why_stop(after(losses, 1.858), Extras(mode="parity"), LIMITS) is None


def test_skipped_batches_are_counted_and_their_losses_forgotten() -> None:
    progress = after_step(after([2.0] * 3), step(4, math.nan, skipped=True), LIMITS)
    assert progress.recent == (2.0, 2.0, 2.0)
    assert (progress.iteration, progress.skipped) == (4, 1)
    assert why_stop(progress, Extras(max_skipped=1), LIMITS) is None
    ending = why_stop(progress, Extras(max_skipped=0), LIMITS)
    assert ending is not None
    assert ending[0] == "too-many-skipped"


def test_patience_counts_validations_since_the_best() -> None:
    def at(*losses: float) -> TrainingProgress:
        progress = TrainingProgress()
        for number, loss in enumerate(losses):
            progress = after_validation(progress, ValidationRecord(number, loss, 0.1))
        return progress

    assert at(3.0, 2.0, 2.0, 1.9).waited == 0
    assert at(3.0, 2.0, 2.0, 2.1).waited == 2
    assert at(3.0, math.nan).waited == 1
    assert at(math.nan, 3.0).best == 3.0
    assert why_stop(at(3.0, 3.1), Extras(patience=2), LIMITS) is None
    ending = why_stop(at(3.0, 3.1, 3.1), Extras(patience=2), LIMITS)
    assert ending is not None
    assert ending[0] == "no-improvement"
    assert why_stop(at(3.0, 3.1, 3.1), Extras(), LIMITS) is None


def test_lines_are_json_even_where_a_figure_is_not_finite() -> None:
    record = replace(step(1, math.nan), grad_norm=math.inf, grad_norms={"q": math.nan})
    line = to_line(record)
    assert '"train_loss": "nan"' in line
    assert '"grad_norm": "inf"' in line
    assert '"grad_norms": {"q": "nan"}' in line
    assert "grad_norm" not in to_line(replace(record, grad_norm=None, grad_norms=None))
