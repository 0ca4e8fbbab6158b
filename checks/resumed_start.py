"""A resumed run that does not begin where the earlier one ended.

What it finds. A first validation loss that is the base model's although the run was resumed from an
adapter, or that lies far above where the earlier run was at that point.

Why it matters. What was resumed shows before the first update: a loss back at the base model's
means that nothing of the adapter was taken up, one in between that a part was. mlx-lm says
nothing of either.

How it is measured. The first validation loss of the resumed run against the earlier run's first
one and the one nearest before the checkpoint that was resumed from: its log lies beside that
checkpoint, or comes before this run's in the same file. What counts is the part of the earlier
fall that is lost. Runs on other data or with another mask have other losses and are not compared.

When it is wrong. With few validation batches each run draws others: the tolerance is a few
tenths of a nat. A file that was resumed from and has been replaced since misleads.

What to do. Compare the names in both files (the check `resume` does), give the run the keys,
layers and rank of the adapter.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import isfinite

import numpy as np

from mlxdoctor.check import Inconclusive, check, limit
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.resumed import EarlierRun
from mlxdoctor.evidence.training_log import TrainingLog
from mlxdoctor.finding import Sign, Symptom


@dataclass(frozen=True)
class Limits:
    """How far from the earlier run's end a resumed run may begin."""

    learned: float = limit(
        0.3, unit="nats", source="what the earlier run must have gained for its end to tell"
    )
    rise: float = limit(
        0.3,
        unit="nats above where the earlier run was",
        source="a few validation batches, drawn anew, differ by up to 0.1",
        false_alarms="0 of 12 resumed runs that took up all, which rise by 0.09 at most",
    )
    jump: float = limit(
        0.15,
        unit="share of the earlier fall that is lost",
        source="5 runs that dropped every tensor lost 0.99 to 1.00, 4 that dropped half 0.35 to "
        "0.61",
        false_alarms="0 of 12 resumed runs that took up all, which lose 0.02 at most",
    )


@check(
    codes={
        "from-the-base": Symptom.error(
            "the resumed run begins at the base model's loss, or far above the earlier run's end",
            "a first validation loss near {earlier_reached:.3f}",
            "resume with the keys, layers and rank of the adapter that was resumed from",
            says="The run was resumed where the validation loss had fallen from "
            "{earlier_first:.3f} to {earlier_reached:.3f}, and begins at {start:.3f}: {lost:.0%} "
            "of what was learned before is gone.",
        ),
    },
    limits=Limits(),
)
def resumed_start(
    earlier: EarlierRun, log: TrainingLog, config: TrainingConfig, limits: Limits
) -> Iterator[Sign]:
    """Compare the start of a resumed run with the earlier run."""
    if earlier.config is not None:
        for key in ("data", "mask_prompt", "model"):
            if getattr(earlier.config, key) != getattr(config, key):
                raise Inconclusive(f"the earlier run had another {key}, so that losses differ")
    start = log.main.base_val_loss
    levels = _levels(earlier)
    if start is None or levels is None or not isfinite(start):
        raise Inconclusive("a log lacks a validation loss from before the first update, or later")
    first, reached = levels
    fall = first - reached
    if fall < limits.learned:
        raise Inconclusive(f"the earlier run's validation loss fell by only {fall:.2g}")
    lost = (start - reached) / fall
    if lost < limits.jump or start - reached < limits.rise:
        return
    yield Sign(
        "from-the-base",
        {"start": start, "earlier_first": first, "earlier_reached": reached, "lost": lost},
        onset=0,
    )


def _levels(earlier: EarlierRun) -> tuple[float, float] | None:
    """The earlier run's validation loss before its first update, and at the checkpoint."""
    first, losses = earlier.segment.base_val_loss, earlier.segment.get("val_loss")
    if first is None or losses is None or len(losses.values) < 2:
        return None
    usable = np.isfinite(losses.values)
    if earlier.iteration is not None:
        # Through a callback the loss is reported one iteration early.
        usable &= losses.iterations <= earlier.iteration
    usable[0] = False
    if not usable.any() or not isfinite(first):
        return None
    return first, float(losses.values[usable][-1])
