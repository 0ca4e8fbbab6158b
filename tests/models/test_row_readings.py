"""The loss of rows under several readings, counted by hand."""

import math

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


def test_nothing_is_uncertain_where_all_rows_were_measured_and_validated() -> None:
    mean = MeanLoss(1.0, 0.5, 40, 400)
    assert mean.uncertainty(40, 40) == 0.0
    assert mean.uncertainty(80, 80) == pytest.approx(0.5 * math.sqrt(1 / 40 - 1 / 80))
    assert mean.uncertainty(40, 10) == pytest.approx(0.5 * math.sqrt(1 / 10 - 1 / 40))
