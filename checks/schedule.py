"""Whether the run makes the updates that it asks for, at the rates that it asks for.

What it finds. Accumulation over more batches than there are iterations, a warm-up that is longer
than the run, and a schedule that reaches zero long before the run ends.

Why it matters. mlx-lm takes such settings as they are. The run ends without an update, or at a
rate that nobody asked for, or trains for hours at a rate of zero.

How it is measured. mlx-lm counts a schedule in updates, and an update takes
`grad_accumulation_steps` iterations: the rate of every update follows from the definitions of
MLX's schedules, before a run as after it.

When it is wrong. A schedule of one's own is not known here. Where a part of the warm-up is enough
to learn, or the part before the rate was zero, the loss says so: the finding is then a warning.

What to do. Count in updates: iters / grad_accumulation_steps.
"""

from collections.abc import Iterator

import numpy as np

from mlxdoctor.check import DoesNotArise, check
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.finding import Severity, Sign, Symptom
from mlxdoctor.judge.rate import planned_rates

#: Of the highest rate: next to nothing is learned.
NOTHING = 1e-3
#: Of the updates with a rate: a fifth of the run is lost.
MOST = 0.8
#: Of the updates with a rate, or of the warm-up that is made: a run of 120 whose rate was gone
#: after 3 updates, and one of 100 whose warm-up had 20,000, learned next to nothing.
TENTH = 0.1


@check(
    codes={
        "no-update": Symptom.error(
            "no update is ever made",
            says="grad_accumulation_steps is {grad_accumulation_steps} and the run has "
            "{iters:* iteration}: it ends before its first update.",
            expected="at most as many batches an update as there are iterations",
            fix="set grad_accumulation_steps to {most} or less, or iters higher",
        ),
        "rate-not-reached": Symptom.warning(
            "the warm-up lasts longer than the run",
            says="The warm-up takes {warmup:,} updates, but the run makes only {updates:,}[ "
            "({iters:,} iterations, {batches} an update)]: the full learning rate is never "
            "reached.",
            expected="a warm-up over a small part of the updates",
            fix="set lr_schedule.warmup to {advised_warmup}",
            in_a_plan=Severity.ERROR,
        ),
        "rate-ends-early": Symptom.warning(
            "the schedule reaches zero long before the run ends",
            says="The learning rate is next to zero after update {last:,} of {updates:,}"
            "[ ({iters:,} iterations, {batches} an update)]: nothing is learned in the rest.",
            expected="a schedule over as many updates as the run makes",
            fix="let the schedule decay over {rest:,} updates",
        ),
    },
)
def schedule(config: TrainingConfig) -> Iterator[Sign]:
    if config.origin != "mlx-lm" or not config.describes_training:
        raise DoesNotArise("the configuration is not one of mlx_lm.lora")
    iters, batches = config.iters or 0, config.grad_accumulation_steps or 1
    if iters < 1 or batches < 1:
        return
    if batches > iters:
        figures = {"grad_accumulation_steps": batches, "iters": iters, "most": max(iters // 50, 1)}
        yield Sign("no-update", figures, where="grad_accumulation_steps")
        return
    if config.lr_schedule is None:
        return
    updates, warmup = iters // batches, config.warmup
    measured = {"updates": updates}
    if batches > 1:
        measured |= {"iters": iters, "batches": batches}
    if warmup >= updates:
        measured |= {"warmup": warmup, "advised_warmup": max(updates // 10, 1)}
        severity = Severity.ERROR if updates < TENTH * warmup else None
        yield Sign("rate-not-reached", measured, where="lr_schedule.warmup", severity=severity)
        return
    rates = planned_rates(config, updates)
    if rates is None or not rates.max() > 0:
        return
    last = int(np.flatnonzero(rates > NOTHING * rates.max())[-1]) + 1
    if last <= MOST * updates:
        measured |= {"last": last, "rest": updates - warmup}
        severity = Severity.ERROR if last < TENTH * updates else None
        yield Sign("rate-ends-early", measured, where="lr_schedule.arguments", severity=severity)
