"""Whether beta can weigh preferences.

What it finds. A beta of zero, below zero, or hundreds of times what is usual.

Why it matters. In DPO, CPO, KTO and ORPO beta multiplies all that is to be learned from a pair. At
zero the loss is a constant; below zero the rejected answer is the better one; at hundreds a
difference of a hundredth of a nat already counts as learned, and training stops there.

How it is measured. The configuration's beta and method, or the log's name of the method.

When it is wrong. In GRPO, PPO and their like beta weighs the distance from the reference, and zero
is a choice: those runs are left out. SimPO's usual betas are ten times larger.

What to do. Begin with a beta of 0.1.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from mlxdoctor.check import DoesNotArise, Inconclusive, check, limit
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.training_log import TrainingLog
from mlxdoctor.finding import Measurement, Severity, Sign, Symptom
from mlxdoctor.measure.policy_curves import method_of, of_pairs

_USUAL = "a beta of 0.01 to 1"


@dataclass(frozen=True)
class Limits:
    """When beta is far from usual."""

    large: float = limit(20.0, unit="beta", source="twice the largest that SimPO's authors use")
    absurd: float = limit(
        100.0, unit="beta", source="a hundredth of a nat counts as a pair that was learned"
    )
    small: float = limit(
        1e-4, unit="beta", source="a hundredth of the smallest usual one: hardly a gradient"
    )


@check(
    codes={
        "beta-zero": Symptom.error(
            "beta is 0, so that preferences have no weight",
            expected=_USUAL,
            fix="set beta to 0.1",
        ),
        "beta-negative": Symptom.error(
            "beta is below 0, so that the rejected answer is the better one",
            expected=_USUAL,
            fix="set beta to 0.1",
        ),
        "beta-large": Symptom.warning(
            "beta is far above what is usual", expected=_USUAL, fix="set beta to 0.1"
        ),
        "beta-small": Symptom.info("beta is far below what is usual", expected=_USUAL),
    },
    limits=Limits(),
)
def preference_settings(
    config: TrainingConfig, log: TrainingLog | None, limits: Limits
) -> Iterator[Sign]:
    """Judge the configured beta."""
    method = method_of(log, config)
    if not of_pairs(method):
        raise DoesNotArise("the run was not trained on preferences")
    stated = config.values.get("beta", config.values.get("dpo_beta"))
    if stated is None:
        raise Inconclusive("the configuration states no beta")
    try:
        beta = float(stated)
    except (TypeError, ValueError):
        raise Inconclusive("the configuration's beta is no number") from None
    measured: dict[str, Measurement] = {"beta": beta if math.isfinite(beta) else str(beta)}
    name = method.replace("_", " ").upper()
    if beta == 0.0:
        text = f"beta is 0, and {name} multiplies by it all that a pair could teach."
        yield Sign("beta-zero", text, measured)
    elif beta < 0.0:
        text = f"beta is {beta:g}: below 0, {name} makes the rejected answer the likelier one."
        yield Sign("beta-negative", text, measured)
    elif beta >= limits.large or math.isnan(beta):
        text = (
            f"beta is {beta:g}, where 0.01 to 1 is usual: the smallest difference counts as "
            "learned, and the rest of the run teaches nothing."
        )
        absurd = not beta < limits.absurd
        yield Sign("beta-large", text, measured, severity=Severity.ERROR if absurd else None)
    elif beta < limits.small:
        yield Sign("beta-small", f"beta is {beta:g}, where 0.01 to 1 is usual.", measured)
