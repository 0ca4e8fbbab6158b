"""The loss of rows over several sets of targets, counted by hand."""

import math

import pytest

from mlxdoctor.models.losses import MeanLoss, Targets, mean_loss
from tests.measured_rows import Losses, measured_rows

#: 4 prompt targets (the first token has none), 6 of the answer, end, line break, padding.
MODEL = Losses(prompt=1.0, answer=2.0, end=3.0, other=4.0, padding=5.0)
ROWS = measured_rows(MODEL, None, 3)


@pytest.mark.parametrize(
    ("targets", "total", "tokens"),
    [
        (Targets(True, "padding"), 12 + 3 + 4 + 5, 9),
        (Targets(True, "row"), 12 + 3 + 4, 8),
        (Targets(True, "end"), 12 + 3, 7),
        (Targets(False, "padding"), 4 + 12 + 3 + 4 + 5, 13),
    ],
)
def test_what_targets_cover(targets: Targets, total: float, tokens: int) -> None:
    mean = mean_loss(ROWS, "base", targets)
    assert mean.value == pytest.approx(total / tokens)
    assert mean.rows == 3


def test_nothing_is_uncertain_where_all_rows_were_measured() -> None:
    mean = MeanLoss(1.0, 0.5, 40)
    assert mean.uncertainty(40) == 0.0
    assert mean.uncertainty(80) == pytest.approx(0.5 * math.sqrt(1 / 40 - 1 / 80))
