"""Whether the reference of a preference run stayed what it was.

What it finds. Rewards of pairs that are exactly zero in every report, although the adapter's
weights, or the log-likelihoods in the log, moved: the reference is the very model that is trained.

Why it matters. A preference loss compares the policy with a frozen copy of where it began. Without
the copy there is nothing to hold it: the loss stays at ln 2, and each step pushes the model away
just as hard as the first.

How it is measured. The rewards of chosen and rejected answers in the log against the size of the
adapter's B, which begins at zero.

When it is wrong. A beta of 0 prints zeros too, but then nothing is trained, and B stays zero.

What to do. Load the reference on its own, freeze it, and see that its log-likelihoods do not
change from report to report. With LoRA, switch the adapter off for the reference.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from mlxdoctor.check import Cost, DoesNotArise, Inconclusive, check, limit
from mlxdoctor.evidence.adapter import Adapter
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.training_log import TrainingLog
from mlxdoctor.finding import Measurement, Sign, Symptom
from mlxdoctor.measure.policy_curves import course, policy_curves
from mlxdoctor.measure.weights.adapter_facts import factor_facts


@dataclass(frozen=True)
class Limits:
    """When a model moved although its rewards did not."""

    reports: int = limit(5, unit="reports", source="as many as show that it is no first batch")
    moved: float = limit(
        1e-4,
        unit="root mean square of B",
        source="ten steps of Adam at 1e-5; rewards of sound runs moved by then",
    )
    likelier: float = limit(
        0.5, unit="nats", source="a sound rate moves a short answer by several in ten updates"
    )
    noises: float = limit(
        4.0,
        unit="noise of one report",
        source="answers of other lengths have other log-likelihoods, by tens of nats",
    )


@check(
    codes={
        "moves-with-policy": Symptom.error(
            "the reference is the model that is trained",
            expected="rewards that leave 0 as the model moves away from its reference",
            fix="Load the reference model on its own and freeze it; for LoRA, compute its "
            "log-likelihoods with the adapter switched off.",
        ),
    },
    cost=Cost.WEIGHTS,
    limits=Limits(),
)
def reference_model(
    log: TrainingLog, adapter: Adapter | None, config: TrainingConfig | None, limits: Limits
) -> Iterator[Sign]:
    """Hold rewards of exactly zero against what moved."""
    if not log.is_preference:
        raise DoesNotArise("the run was not trained on preferences")
    curves = policy_curves(log, config)
    if curves.samples or curves.has_reference is False:
        raise DoesNotArise("the run has no reference that pairs are rewarded against")
    both = [curves.of("chosen"), curves.of("rejected")]
    known = [one for one in both if one is not None]
    if len(known) < 2:
        raise Inconclusive("the log holds no rewards of chosen and rejected answers")
    reports = min(len(one) for one in known)
    if reports < limits.reports:
        raise Inconclusive(f"the log holds only {reports} reports of rewards")
    if any(one.values.any() for one in known):
        return
    measured: dict[str, Measurement] = {"reports": reports}
    likely = curves.of("chosen_logps")
    went = course(likely) if likely is not None else None
    if went is not None and abs(went.change) >= max(limits.likelier, limits.noises * went.noise):
        measured |= {"first_logps": went.first, "last_logps": went.last}
        what = (
            f"the log-likelihood of the chosen answers went from {went.first:.3f} to "
            f"{went.last:.3f}"
        )
    elif adapter is not None and (size := _size_of_b(adapter)) >= limits.moved:
        measured["rms_b"] = size
        what = f"the adapter's B, which began at zero, now has a root mean square of {size:.2g}"
    elif adapter is None and likely is None:
        raise Inconclusive("neither the adapter nor log-likelihoods say whether the model moved")
    else:
        return
    yield Sign(
        "moves-with-policy",
        f"The rewards of chosen and rejected answers are exactly 0 in all {reports} reports, and "
        f"{what}: the reference moves with the model.",
        measured,
    )


def _size_of_b(adapter: Adapter) -> float:
    """The root mean square of all elements of B; 0 where there are none."""
    factors = [one.b for one in factor_facts(adapter) if one.b.is_finite]
    count = sum(one.size for one in factors)
    return math.sqrt(sum(one.norm**2 for one in factors) / count) if count else 0.0
