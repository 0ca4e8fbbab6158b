"""The temperature at which tokens were drawn, of draws that are made here."""

import numpy as np
import pytest

from mlxdoctor.engines.sampling import LOWEST, fit_draws

LOGITS = np.random.default_rng(1).normal(0, 3, (400, 50)).astype(np.float32)


def drawn(temperature: float) -> np.ndarray:
    """One token of each row of logits, by the Gumbel-max trick."""
    noise = np.random.default_rng(2).gumbel(size=LOGITS.shape)
    return (LOGITS / temperature + noise).argmax(axis=1)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_the_temperature_of_draws(temperature: float) -> None:
    draws = fit_draws(LOGITS, drawn(temperature))
    assert draws.temperature == pytest.approx(temperature, rel=0.1)
    assert draws.least_temperature < temperature
    assert draws.p_value > 0.01


def test_tokens_that_are_no_draws() -> None:
    draws = fit_draws(LOGITS, LOGITS.argmin(axis=1))
    assert draws.p_value < 1e-6


def test_the_likeliest_tokens() -> None:
    draws = fit_draws(LOGITS, LOGITS.argmax(axis=1))
    assert (draws.count, draws.others) == (400, 0)
    assert draws.temperature < 2 * LOWEST
