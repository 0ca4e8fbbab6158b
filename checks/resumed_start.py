"""A resumed run that does not begin where the earlier one ended.

What it finds. A first validation loss that is the base model's, although the run was resumed
from an adapter; one that lies far above where the earlier run was at that point; and a learning
rate that begins several times higher than the earlier run's ended.

Why it matters. What was resumed shows before the first update: a loss back at the base model's
means that nothing of the adapter was taken up, one in between that a part was. mlx-lm says
nothing of either. It keeps neither the optimiser's state nor the place in the schedule: at a
high rate, the first steps of a fresh Adam undo what was learned.

How it is measured. The first validation loss of the resumed run against the earlier run's first
one and the one nearest before the checkpoint that was resumed from: its log lies beside that
checkpoint, or comes before this run's in the same file. What counts is the part of the earlier
fall that is lost. Runs on other data or with another mask have other losses and are not compared.

When it is wrong. With few validation batches each run draws others: the tolerance is a few
tenths of a nat. A file that was resumed from and has been replaced since misleads.

What to do. Compare the names in both files (the check `resume` does), give the run the keys,
layers and rank of the adapter, and let its rate begin where the earlier one ended.
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

_GONE = "resume with the keys, layers and rank of the adapter that was resumed from"


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
    base: float = limit(
        0.9,
        unit="share of the earlier fall that is lost",
        source="5 runs that dropped every tensor lost 0.99 to 1.00, 4 that dropped half 0.35 to "
        "0.61",
    )
    jump: float = limit(
        0.15,
        unit="share of the earlier fall that is lost",
        source="the same runs",
        false_alarms="0 of 12 resumed runs that took up all, which lose 0.02 at most",
    )
    rate: float = limit(
        3.0, unit="times the earlier rate", source="a rate this much higher undoes a converged run"
    )


@check(
    codes={
        "from-the-base": Symptom.error(
            "the resumed run begins at the base model's loss", fix=_GONE
        ),
        "level-jump": Symptom.error(
            "the resumed run begins far above where the earlier one was", fix=_GONE
        ),
        "rate-jump": Symptom.warning(
            "the resumed run begins with a rate several times the earlier one's last",
            fix="give the resumed run a schedule that begins where the earlier one ended",
        ),
    },
    limits=Limits(),
)
def resumed_start(
    earlier: EarlierRun, log: TrainingLog, config: TrainingConfig, limits: Limits
) -> Iterator[Sign]:
    """Compare the start of a resumed run with the earlier run."""
    yield from _rate(earlier, log, limits)
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
    at_base = lost >= limits.base
    yield Sign(
        "from-the-base" if at_base else "level-jump",
        f"The run was resumed where the validation loss had fallen from {first:.3f} to "
        f"{reached:.3f}, and begins at {start:.3f}: "
        + ("what was learned before is gone." if at_base else f"{lost:.0%} of that is gone."),
        {"start": start, "earlier_first": first, "earlier_reached": reached, "lost": lost},
        expected=f"a first validation loss near {reached:.3f}",
        onset=0,
    )


def _levels(earlier: EarlierRun) -> tuple[float, float] | None:
    """The earlier run's validation loss before its first update, and at the checkpoint."""
    first, losses = earlier.segment.base_val_loss, earlier.segment.get("val_loss")
    if first is None or losses is None or len(losses.values) < 2:
        return None
    known = np.isfinite(losses.values)
    if earlier.iteration is not None:
        # Through a callback the loss is reported one iteration early.
        known &= losses.iterations <= earlier.iteration
    known[0] = False
    if not known.any() or not isfinite(first):
        return None
    return first, float(losses.values[known][-1])


def _rate(earlier: EarlierRun, log: TrainingLog, limits: Limits) -> Iterator[Sign]:
    before, after = earlier.segment.get("learning_rate"), log.main.get("learning_rate")
    if before is None or after is None or not len(before) or not len(after):
        return
    kept = before.values
    if earlier.iteration is not None:
        kept = kept[before.iterations <= earlier.iteration]
    last, now = (float(kept[-1]) if len(kept) else 0.0), float(after.values[0])
    if not 0.0 < last * limits.rate <= now:
        return
    yield Sign(
        "rate-jump",
        f"The learning rate had come down to {last:.3g} where the run was resumed, and begins "
        f"again at {now:.3g}, with an optimiser that has forgotten its averages.",
        {"earlier_rate": last, "rate": now, "ratio": now / last},
        expected=f"about {last:.3g}",
        onset=int(after.iterations[0]),
    )
