"""The learning rate in the log is not the one that was asked for.

What it finds. A rate that is 0 in every report, or 0 from some report on; a rate that stays
constant in the log although the configuration has a schedule that would have moved it, and a
constant rate that differs from the configured one.

Why it matters. With a rate of 0 no step changes anything. A trainer that drops the warm-up runs
its first updates, when Adam's steps are largest, at the full rate; one that drops the decay never
settles. The configuration in the folder then describes another run.

How it is measured. The rates the log prints, over the iterations it covers, against mlx-lm's
`lr_schedule` and `learning_rate`. A schedule counts as ignored only if it has a warm-up that
covers at least two reports, or a decay of which the log shows at least a third. A rate of 0 to
the end counts where it lasts for a tenth of the reports, and not where a decay led there: that is
only noted.

When it is wrong. A configuration that was edited after the run. The coloured table prints no
rate, and a rate printed to four digits hides a change of less than one in a thousand. A small
rate printed with four decimals reads 0.0000: where the loss fell at such a rate nothing is said.

What to do. Find out which value reached the optimiser, and put the schedule where the trainer
reads it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from mlxdoctor.check import Inconclusive, NotApplicable, check, limit
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.training_log import Segment, Series, TrainingLog
from mlxdoctor.finding import Measurement, Severity, Sign, Symptom, Unsought
from mlxdoctor.measure.losses.trend import fit

#: Which argument of a schedule is the number of steps it decays over.
_DECAY_STEPS = {"cosine_decay": 1, "linear_schedule": 2}


@dataclass(frozen=True)
class Limits:
    """When a logged rate contradicts the configuration."""

    enough: int = limit(4, unit="reports", source="fewer may all lie after the warm-up")
    warmup_reports: int = limit(2, unit="reports within the warm-up", source="one may round")
    decay_share: float = limit(
        1 / 3, unit="of the decay seen", source="a cosine has lost 25% by then: beyond rounding"
    )
    zero_reports: int = limit(3, unit="reports", source="a warm-up begins, a decay ends at 0")
    zero_share: float = limit(
        0.1, unit="share of the reports, at the end", source="a decay ends at 0 in its last reports"
    )
    decayed: float = limit(
        0.05,
        unit="of the highest rate, at the last report above 0",
        source="what a decay has left",
    )
    fell: float = limit(
        0.05, unit="share of the first loss", source="as loss-trend's unmoved: it did learn"
    )
    coarse: float = limit(
        1e-4, unit="rate", source="the last digit of four decimals: a small rate may round to 0"
    )
    tolerance: float = limit(0.01, unit="relative", source="logs print four digits")


@check(
    codes={
        "zero": Symptom.error(
            "the learning rate is 0 in every report",
            expected="a rate above 0",
            fix="Set the learning rate; look for a schedule whose number of steps is 0, or that "
            "begins after the run ends.",
        ),
        "zero-to-the-end": Symptom.warning(
            "the learning rate is 0 from some report to the end",
            expected="a rate above 0 to the last updates",
            fix="Give the schedule as many steps as the run has updates; nothing was learned in "
            "the rest.",
        ),
        "ignored": Symptom.warning(
            "the rate is constant although a schedule was configured",
            expected="a rate that follows the schedule",
            fix="Put lr_schedule where the trainer reads it: at the top level of the YAML.",
        ),
        "other-rate": Symptom.warning(
            "the logged rate is not the configured one",
            fix="Make sure that log and configuration are of the same run.",
        ),
    },
    limits=Limits(),
)
def learning_rate_schedule(
    log: TrainingLog, config: TrainingConfig | None, limits: Limits
) -> Iterator[Sign | Unsought]:
    """Look for rates of 0, and compare the rates of the log with the configuration."""
    rates = log.main.get("learning_rate")
    if rates is None:
        raise NotApplicable("the log prints no learning rate")
    yield from _zero(log.main, rates, limits)
    if config is None:
        why = "no adapter_config.json and no training configuration was found; name one"
        yield Unsought(("ignored", "other-rate"), why)
        return
    if config.origin != "mlx-lm" or log.main.axis not in ("iteration", "step"):
        raise NotApplicable("the configuration is not that of an mlx-lm run")
    finite = rates.finite.values
    if len(finite) < limits.enough:
        raise Inconclusive(f"{len(finite)} logged rates are too few")
    if not finite.any() or np.ptp(finite) > limits.tolerance * float(np.max(np.abs(finite))):
        return
    logged, onset = float(np.median(finite)), int(rates.iterations[0])
    schedule, asked = config.lr_schedule, config.learning_rate
    if schedule is not None:
        if _would_move(schedule, config.warmup, config.grad_accumulation_steps or 1, rates, limits):
            yield Sign(
                "ignored",
                f"The learning rate is {logged:.3g} in all {len(finite)} reports although the "
                f"configuration asks for {schedule.get('name')} with {config.warmup} warm-up "
                "updates.",
                {"logged": logged, "schedule": str(schedule.get("name")), "warmup": config.warmup},
                onset=onset,
            )
    elif asked is None or config.is_default("learning_rate"):
        return
    elif abs(logged - asked) > limits.tolerance * abs(asked):
        yield Sign(
            "other-rate",
            f"The log says {logged:.3g} in every report; the configuration says {asked:.3g}.",
            {"logged": logged, "configured": asked},
            expected=f"{asked:.3g}",
            onset=onset,
        )


def _zero(segment: Segment, rates: Series, limits: Limits) -> Iterator[Sign]:
    values = rates.values
    above = np.flatnonzero(values != 0.0)
    last = int(above[-1]) if len(above) else -1
    count, reports = len(values) - last - 1, len(values)
    if count < limits.zero_reports or count < limits.zero_share * reports:
        return
    onset = int(rates.iterations[last + 1])
    measured: dict[str, Measurement] = {"zero_reports": count, "reports": reports}
    if last < 0:
        if not _fell(segment, limits):
            message = f"The learning rate is 0 in all {reports} reports: no step changed anything."
            yield Sign("zero", message, measured, onset=onset)
        return
    highest, before = float(np.nanmax(values)), float(values[last])
    has_decayed = before <= limits.decayed * highest
    # Printed with four decimals, say, a rate that decays is 0.0001 and then 0.
    is_coarse = float(np.min(values[above])) >= limits.coarse and highest < 10 * limits.coarse
    yield Sign(
        "zero-to-the-end",
        f"The learning rate is 0 in the last {count} of {reports} reports, from {segment.unit} "
        f"{onset} on; the report before has {before:.3g}.",
        measured | {"rate_before": before, "highest_rate": highest},
        onset=onset,
        severity=Severity.INFO if has_decayed or is_coarse else None,
    )


def _fell(segment: Segment, limits: Limits) -> bool:
    """Whether the loss fell, so that a rate of 0 must be a small one that was rounded."""
    losses = segment.get("train_loss")
    curve = fit(losses.iterations, losses.values) if losses is not None else None
    if curve is None or curve.points < limits.zero_reports or curve.start <= 0.0:
        return False
    fall = curve.start - curve.end
    return fall >= limits.fell * curve.start and fall > 2.0 * curve.noise


def _would_move(
    schedule: Mapping[str, Any], warmup: int, accumulation: int, rates: Series, limits: Limits
) -> bool:
    updates = rates.iterations / accumulation
    if int(np.sum(updates < warmup)) >= limits.warmup_reports:
        return True
    name, arguments = schedule.get("name"), schedule.get("arguments")
    if name not in _DECAY_STEPS or not isinstance(arguments, list):
        return False
    steps = arguments[_DECAY_STEPS[name] :][:1]
    if not steps or not isinstance(steps[0], int | float) or steps[0] <= 0:
        return False
    if name == "linear_schedule" and arguments[0] == arguments[1]:
        return False
    seen = float(updates[-1] - max(float(updates[0]), float(warmup)))
    return seen >= limits.decay_share * steps[0]
