"""Whether a planned run would make the updates that it asks for, at the rates that it asks for.

What it finds. Before a run: accumulation over more batches than there are iterations, a warm-up
that is longer than the run, and a schedule that reaches zero long before the run ends.

Why it matters. mlx-lm takes such settings as they are. The run ends without an update, or at a
rate that nobody asked for, or trains for hours at a rate of zero.

How it is measured. mlx-lm counts a schedule in updates, and an update takes
`grad_accumulation_steps` iterations: the rate of every update follows from the definitions of
MLX's schedules.

When it is wrong. A schedule of one's own is not known here.

What to do. Count in updates: iters / grad_accumulation_steps.
"""

from collections.abc import Iterator

import numpy as np

from mlxdoctor.check import DoesNotArise, check
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.planned_run import PlannedRun
from mlxdoctor.finding import Sign, Symptom
from mlxdoctor.judge.rate import planned_rates

#: Of one update, the rate below which the schedule has ended.
_NOTHING = 1e-3


@check(
    codes={
        "no-update": Symptom.error(
            "no update would ever be made",
            expected="at most as many batches an update as there are iterations",
        ),
        "rate-not-reached": Symptom.error(
            "the warm-up lasts longer than the run",
            expected="a warm-up over a small part of the updates",
        ),
        "rate-ends-early": Symptom.warning(
            "the schedule reaches zero long before the run ends",
            expected="a schedule over as many updates as the run makes",
        ),
    },
)
def planned_schedule(planned: PlannedRun) -> Iterator[Sign]:
    """Count the updates, and follow the rate over them."""
    if planned.config.origin != "mlx-lm":
        raise DoesNotArise("the configuration is not one of mlx_lm.lora")
    yield from _updates(planned.config)


def _updates(config: TrainingConfig) -> Iterator[Sign]:
    iters, batches = config.iters, config.grad_accumulation_steps or 1
    if iters is None or iters < 1 or batches < 1:
        return
    if batches > iters:
        yield Sign(
            "no-update",
            f"grad_accumulation_steps is {batches} and the run has {iters} iterations: it would "
            "end before its first update.",
            {"grad_accumulation_steps": batches, "iters": iters},
            where="grad_accumulation_steps",
            fix=f"set grad_accumulation_steps to {max(iters // 50, 1)} or less, or iters higher",
        )
        return
    updates = iters // batches
    warmup = config.warmup
    if config.lr_schedule is None:
        return
    if warmup >= updates:
        yield Sign(
            "rate-not-reached",
            f"The warm-up is over {warmup} updates, and the run makes {updates}"
            f"{_as_updates(iters, batches)}: its rate is never reached.",
            {"warmup": warmup, "updates": updates, "advised_warmup": max(updates // 10, 1)},
            where="lr_schedule.warmup",
            fix=f"set lr_schedule.warmup to {max(updates // 10, 1)}",
        )
        return
    rates = planned_rates(config, updates)
    if rates is None or not len(rates) or not rates.max() > 0:
        return
    above = np.flatnonzero(rates > _NOTHING * rates.max())
    last = int(above[-1]) + 1
    if last <= updates * 0.8:
        yield Sign(
            "rate-ends-early",
            f"The learning rate is next to zero after update {last} of {updates}"
            f"{_as_updates(iters, batches)}: nothing is learned in the rest.",
            {"last": last, "updates": updates},
            where="lr_schedule.arguments",
            fix=f"let the schedule decay over {updates - warmup} updates",
        )


def _as_updates(iters: int, batches: int) -> str:
    """How iterations become updates, where they are not the same."""
    return f" ({iters} iterations, {batches} an update)" if batches > 1 else ""
