"""At which temperature tokens were drawn from a model's logits, and whether they can have been."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

#: Temperatures that are looked at: below, tokens are the likeliest; above, all are alike.
LOWEST, HIGHEST = 0.02, 20.0


@dataclass(frozen=True)
class Draws:
    """Tokens taken for draws from a model's distributions.

    Attributes:
        count: how many tokens.
        others: those that are not the likeliest.
        temperature: by maximum likelihood.
        least_temperature: two standard errors below it.
        p_value: of such draws at this temperature: the probability integral transforms of the
            tokens, ordered by their chance, held against the uniform distribution
            (Kolmogorov-Smirnov). Small where the tokens are not the model's.
    """

    count: int
    others: int
    temperature: float
    least_temperature: float
    p_value: float


def fit_draws(logits: NDArray[np.float32], tokens: NDArray[np.int64]) -> Draws:
    """The temperature at which tokens, (n,), were most likely drawn from logits, (n, vocabulary).

    The standard error is that of the log temperature, by the curvature of its likelihood.
    """
    from scipy.optimize import minimize_scalar
    from scipy.special import logsumexp
    from scipy.stats import kstest

    below = logits - logits.max(axis=1, keepdims=True)
    chosen = np.take_along_axis(below, tokens[:, None], axis=1)

    def loss(log_temperature: float) -> float:
        scaled = np.exp(-log_temperature)
        return float((logsumexp(below * scaled, axis=1) - chosen[:, 0] * scaled).sum())

    bounds = (np.log(LOWEST), np.log(HIGHEST))
    best = float(minimize_scalar(loss, bounds=bounds, method="bounded", options={"xatol": 0.01}).x)
    step = 0.05
    curvature = (loss(best - step) - 2 * loss(best) + loss(best + step)) / step**2
    error = 1 / np.sqrt(max(curvature, 1e-9))
    chances = np.exp(below * np.exp(-best))
    chances /= chances.sum(axis=1, keepdims=True)
    likelier = np.where(below > chosen, chances, 0).sum(axis=1)
    # A token covers the range of its chance: a place within it is drawn, always the same one.
    own = np.take_along_axis(chances, tokens[:, None], axis=1)[:, 0]
    places = likelier + own * np.random.default_rng(0).random(len(tokens))
    return Draws(
        len(tokens),
        int((chosen[:, 0] < 0).sum()),
        float(np.exp(best)),
        float(np.exp(best - 2 * error)),
        float(kstest(places, "uniform").pvalue),
    )
