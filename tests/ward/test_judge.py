"""Which runs were hurt, against closed forms of Student's distribution."""

import math
from typing import Any

import pytest

from fixtures.lab.judged import is_hurt
from fixtures.lab.ward.study import label_of, learned

#: One-sided, 5% shared out over three figures.
P = 0.05 / 3
#: Student's t of one degree of freedom is Cauchy's; of two, t / sqrt(2 + t^2) is 1 - 2p.
CAUCHY = 1 / math.tan(math.pi * P)
TWO_DEGREES = math.sqrt(2) * (1 - 2 * P) / math.sqrt(1 - (1 - 2 * P) ** 2)
BASE = {"loss": 5.0, "similarity": 0.3}


def figures(loss: float, similarity: float = 0.8, stops: float = 1.0) -> dict[str, float]:
    return {"loss": loss, "similarity": similarity, "stops": stops}


@pytest.mark.parametrize(
    ("losses", "edge"),
    [
        ([1.0, 1.2], 1.1 + CAUCHY * math.sqrt(0.02) * math.sqrt(1 + 1 / 2)),
        ([1.0, 1.1, 1.2], 1.1 + TWO_DEGREES * 0.1 * math.sqrt(1 + 1 / 3)),
        # A spread of nothing is not believed.
        ([1.0] * 3, 1.0 + TWO_DEGREES * 0.01 * math.sqrt(1 + 1 / 3)),
    ],
)
def test_one_and_two_degrees_of_freedom(losses: list[float], edge: float) -> None:
    sound = [figures(loss) for loss in losses]
    assert is_hurt(figures(edge + 1e-6), sound)
    assert not is_hurt(figures(edge - 1e-6), sound)


@pytest.mark.parametrize(
    ("measured", "hurt"),
    [
        (figures(0.2), False),
        (figures(1.0, similarity=0.95), False),
        (figures(1.0, similarity=0.5), True),
        (figures(1.0, stops=0.5), True),
        ({**figures(1.0), "loss": None}, True),
        (figures(math.nan), True),
    ],
)
def test_better_is_not_hurt_and_worse_in_any_figure_is(
    measured: dict[str, float | None], hurt: bool
) -> None:
    assert is_hurt(measured, [figures(1.0)] * 3) is hurt


@pytest.mark.parametrize(
    ("measured", "sound"),
    [
        (figures(2.49, similarity=0.31), True),
        (figures(2.51, similarity=0.31), False),
        (figures(2.49, similarity=0.29), False),
        ({**figures(1.0), "loss": None}, False),
    ],
)
def test_a_sound_run_halves_the_loss_and_answers_better(
    measured: dict[str, float | None], sound: bool
) -> None:
    assert learned(measured, BASE) is sound


@pytest.mark.parametrize(
    ("cause", "harms", "loss", "label"),
    [
        (None, None, 1.0, "healthy"),
        (None, None, 4.0, "not sound"),
        ("bad-data", "model", 4.0, "faulty"),
        ("bad-data", "model", 1.0, "equivalent"),
        ("evaluated-without-adapter", "report", 1.0, "faulty"),
    ],
)
def test_labels(cause: str | None, harms: str | None, loss: float, label: str) -> None:
    truth: dict[str, Any] = {"cause": cause, "harms": harms, "measured": figures(loss)}
    assert label_of(truth, [figures(1.0), figures(1.01), figures(0.99)], BASE) == label
