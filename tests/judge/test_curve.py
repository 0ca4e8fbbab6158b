"""What a curve of a log says by the others beside it."""

import numpy as np
import pytest

from mlxdoctor.evidence.logs.series import Segment, Series
from mlxdoctor.judge.curve import ends_together, is_warm_up, loss_figures

NAN = float("nan")


def segment(**columns: list[float]) -> Segment:
    return Segment(
        {name: Series(np.arange(1, len(c) + 1), np.array(c)) for name, c in columns.items()}, 1, 99
    )


@pytest.mark.parametrize(
    ("bad", "losses", "hurts"),
    [
        # A loss scaler looks for its scale at first, and overflows now and then.
        ([0, 1, 17], [3.0 - 0.1 * at for at in range(25)], False),
        ([5, 11, 17], [3.0 - 0.1 * at for at in range(25)], True),
        ([0, 1, 17], [3.0] * 25, True),
        ([0, 1, 17], [3.0] * 24 + [NAN], True),
    ],
)
def test_gradients_that_do_harm(bad: list[int], losses: list[float], hurts: bool) -> None:
    norms = [NAN if at in bad else 4.2 for at in range(25)]
    run = segment(train_loss=losses, grad_norm=norms)
    assert loss_figures(run, "grad_norm")["hurts"] is hurts


def test_ends_that_lie_together() -> None:
    assert ends_together(segment(train_loss=[3.0, 0.5], val_loss=[3.0, 0.6]))
    assert not ends_together(segment(train_loss=[3.0, 0.3], val_loss=[3.0, 0.6]))
    # Without a training loss nothing lies apart.
    assert ends_together(segment(val_loss=[3.0, 0.6]))


@pytest.mark.parametrize(
    ("rates", "rises"),
    [
        ([float(f"{1e-5 * at / 2000:.1e}") for at in range(5, 301, 5)], True),
        ([1e-5, 1e-4, 2e-4], True),
        ([1e-5] + [2e-4] * 9, False),
        ([1e-4], False),
    ],
)
def test_a_rate_that_still_rises(rates: list[float], rises: bool) -> None:
    assert is_warm_up(segment(learning_rate=rates).series["learning_rate"]) is rises
