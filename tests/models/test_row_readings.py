"""The loss of rows under several readings, counted by hand."""

import math
from dataclasses import replace

import pytest

from mlxdoctor.models.readings import MeanLoss, Reading, mean_loss
from tests.measured_rows import Losses, measured_rows

#: 4 prompt targets (the first token has none), 6 of the answer, end, line break, padding.
MODEL = Losses(prompt=1.0, answer=2.0, end=3.0, other=4.0, padding=5.0)
ROWS = measured_rows(MODEL, None, 3)


@pytest.mark.parametrize(
    ("reading", "total", "tokens"),
    [
        (Reading(True, "padding"), 12 + 3 + 4 + 5, 9),
        (Reading(True, "row"), 12 + 3 + 4, 8),
        (Reading(True, "end"), 12 + 3, 7),
        (Reading(True, "answer"), 12, 6),
        (Reading(True, "others"), 12 + 4, 7),
        (Reading(True, "others+padding"), 12 + 4 + 5, 8),
        (Reading(False, "padding"), 4 + 12 + 3 + 4 + 5, 13),
        (Reading(False, "answer"), 4 + 12, 10),
    ],
)
def test_what_a_reading_covers(reading: Reading, total: float, tokens: int) -> None:
    mean = mean_loss(ROWS, "base", reading)
    assert mean.value == pytest.approx(total / tokens)
    assert (mean.tokens, mean.rows) == (3 * tokens, 3)


@pytest.mark.parametrize(("shift", "tokens"), [(0, 8), (2, 8), (3, 8)])
def test_a_shift_moves_the_input_and_not_the_targets(shift: int, tokens: int) -> None:
    rows = measured_rows(replace(MODEL, at_shift={shift: 0.5}), None, 2)
    mean = mean_loss(rows, "base", Reading(True, "row", shift))
    assert mean.value == pytest.approx(0.5)
    assert mean.tokens == 2 * tokens


def test_a_row_that_fills_the_limit_has_no_padding() -> None:
    full = [replace(row, is_padded=False) for row in ROWS]
    assert mean_loss(full, "base", Reading(True, "padding")).tokens == 3 * 8


def test_a_model_that_was_not_measured_has_no_loss() -> None:
    mean = mean_loss(ROWS, "tuned", Reading(True))
    assert math.isnan(mean.value)
    assert mean.rows == 0


def test_the_mean_is_over_targets_and_its_spread_over_rows() -> None:
    rows = measured_rows(MODEL, None, 2, spread=0.2)
    mean = mean_loss(rows, "base", Reading(True, "answer"))
    assert mean.value == pytest.approx(2.0)
    assert mean.spread == pytest.approx(0.2 / math.sqrt(2), rel=1e-4)


def test_nothing_is_uncertain_where_all_rows_were_measured_and_validated() -> None:
    mean = MeanLoss(1.0, 0.5, 40, 400)
    assert mean.uncertainty(40, 40) == 0.0
    assert mean.uncertainty(80, 80) == pytest.approx(0.5 * math.sqrt(1 / 40 - 1 / 80))
    assert mean.uncertainty(40, 10) == pytest.approx(0.5 * math.sqrt(1 / 10 - 1 / 40))
