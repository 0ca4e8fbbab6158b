"""When a run should end: what diverges, and what is just short of it."""

from __future__ import annotations

import math

import pytest

from mlxdoctor.twin.loop import why_diverged
from mlxdoctor.twin.records import StepRecord, to_line


def diverged(losses: list[float], untouched: float | None = None) -> bool:
    return why_diverged(losses, untouched) is not None


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
    assert diverged([first] + [later] * 20, untouched) is expected


def test_a_spike_is_not_a_divergence_and_a_full_window_is_needed() -> None:
    assert not diverged([2.0] * 10 + [9.0] * 9 + [2.0], 2.0)
    assert not diverged([9.0] * 19, 2.0)
    assert not diverged([2.0] + [9.0] * 18, 2.0)
    assert diverged([2.0] + [9.0] * 19, 2.0)


def test_without_a_validation_the_first_steps_stand_in() -> None:
    assert diverged([2.0] * 5 + [4.0] * 20)
    assert not diverged([2.0, 4.0, 4.0, 4.0, 2.0] + [4.0] * 20)
    assert diverged([2.0] * 5 + [4.0] * 20, math.nan)


def test_seed_000_is_stopped_at_its_twentieth_step() -> None:
    # Its log: 1.858 untouched, means of five 2.148, 2.609, 4.104, 10.965.
    losses = [2.148] * 5 + [2.609] * 5 + [4.104] * 5 + [10.965] * 5
    assert not diverged(losses[:19], 1.858)
    assert diverged(losses, 1.858)


def test_a_loss_that_is_not_finite_ends_a_run() -> None:
    assert why_diverged([2.0, math.nan], 2.0) == "the loss of batch 2 is not finite"


def test_lines_are_json_even_where_a_figure_is_not_finite() -> None:
    line = to_line(StepRecord(1, math.nan, 1e-4, math.inf, 10, 10, 0.1, 1.0))
    assert '"train_loss": "nan"' in line
    assert '"grad_norm": "inf"' in line
    assert "grad_norm" not in to_line(StepRecord(1, 2.0, 1e-4, None, 10, 10, 0.1, 1.0))
