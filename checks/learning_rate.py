"""Whether the step, learning rate times scale, is a usual one for the model's size.

What it finds. A rate that is zero, negative or not a number; a step far above or below
what is usual for a model of this size; a scale that looks like an alpha; and a log whose rate is
not the configured one, or stays constant although a schedule was configured.

Why it matters. What moves a LoRA model is the rate times the scale. mlx-lm multiplies the update
by `scale` (20 by default), where PEFT uses alpha / rank (1 or 2): a rate taken over from PEFT
makes steps ten times too large, and the model is destroyed within a few of them.

How it is measured. The highest rate of the run times the scale is compared with a band that
becomes lower as the model grows. The band spans mlx-lm's advice (1e-5 to 5e-5 at scale 20 for
models of 1 to 3 billion parameters) and the best rates of published sweeps (3e-4 to 1e-3 at a
scale of 1 to 2). The size is that of the base model's files, the count in the log, or what the
model's name says ("llama-3.2-3b"). Before a run the configuration alone is compared. A schedule
counts as ignored if it would have moved the rate within the logged reports.

When it is wrong. It is advice from other runs, not a measurement of this one: the loss decides.
A large batch, a warm-up or clipping allows more, and models much smaller than a billion
parameters take far more. Its findings are therefore no errors, except a rate of zero. A
configuration that was edited after the run describes another one.

What to do. Divide the rate so that rate times scale lies within the band, run 50 iterations and
see the loss fall before a long run.
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np

from mlxdoctor.check import NotApplicable, check
from mlxdoctor.engines.series import median
from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.mlx_lm_defaults import MLX_LM_DEFAULTS
from mlxdoctor.evidence.other_runs import PlannedRun
from mlxdoctor.evidence.training_log import Series, TrainingLog
from mlxdoctor.finding import Measurement, Severity, Sign, Symptom
from mlxdoctor.judge.curve import start_of
from mlxdoctor.judge.rate import (
    ADAM,
    ALPHA_LIKE,
    FAR,
    Band,
    better_rate,
    better_scale,
    planned_rates,
    usual_rates,
    usual_steps,
)

_ADVICE = "set learning_rate to {advised_learning_rate:g}"
_BAND = (
    "[a learning rate of {slowest:.1e} to {fastest:.1e} at this scale"
    "|rate × scale up to {highest:.2g}]"
)
_STEP = "Rate × scale is {rate_times_scale:.2g} ({learning_rate:g} × {scale:g})"
_SIZE = "a model of {size}"
_FIX = f"[{_ADVICE}|correct the scale first]"
_no_rate_at_all = partial(Symptom.error, expected="a positive number", fix=_ADVICE)
_off_the_band = partial(Symptom.warning, expected=_BAND, fix=_FIX, in_a_plan=Severity.ERROR)

#: Least step of a plan without warm-up for an error, in highest usual steps: 18 plans of the ward
#: at 2.2 and more fail; 263 sound plans take at most 1.4, or 2.1 with a warm-up.
_PLANNED = 1.8
#: Largest fall of the loss with steps far below the band, as a share of its start: 0.09 to 0.27 in
#: runs at a hundredth of a sound rate, 0.46 to 0.98 in 95 sound runs of three bases with Adam.
_SMALL_FALL = 0.35
#: Least share of that fall from the middle to the last third: 0.24 to 0.32 in the runs at a
#: hundredth of a sound rate, at most 0.09 in the sound runs.
_LATE_FALL = 0.15
#: Fewest reports in each third of such a log.
_THIRD = 3
#: Least fall from the middle to the last third, in noises of one report.
_NOISES = 3.0
#: Fewest reports of a rate: fewer may all lie after the warm-up.
_REPORTS = 4
#: Relative difference of two rates that are the same: logs print four digits.
_TOLERANCE = 0.01
#: Least change by a schedule, as a share of its highest rate: more than rounding and warm-up.
_MOVED = 0.25


@check(
    codes={
        "zero": _no_rate_at_all(
            "the learning rate is zero",
            says="The learning rate is 0: no step changes anything.",
        ),
        "not-a-rate": _no_rate_at_all(
            "the learning rate is negative, NaN or infinite",
            says="The learning rate is {learning_rate}: [each step raises the loss{up}|after one "
            "step every weight is NaN or infinite].",
        ),
        "above-guideline": _off_the_band(
            "rate × scale is above what is usual for the model's size",
            says=f"{_STEP}: {{times:,.3g}} times the highest usual value for {_SIZE}, "
            "{highest:.2g}.",
        ),
        "below-guideline": _off_the_band(
            "rate × scale is below what is usual for the model's size",
            says=f"{_STEP}: the lowest usual value for {_SIZE} is {{lowest:.2g}}[, {{times:,.3g}} "
            "times as much].[ The training loss fell by {lost:.0%}, and still fell at the end.]",
        ),
        "scale-looks-like-alpha": Symptom.warning(
            "the scale has the size of an alpha",
            "alpha / rank, or mlx-lm's default of 20",
            "set lora_parameters.scale to {advised_scale:g}",
            says="The LoRA scale is {scale:g}: mlx-lm multiplies by it directly, and it has the "
            "size of an alpha, which PEFT divides by the rank.",
        ),
        "not-the-configured": Symptom.warning(
            "the logged rate is not the configured one",
            "[{configured:.3g}|a rate that follows the schedule]",
            "Make sure that log and configuration are of the same run, and that lr_schedule is "
            "where the trainer reads it: at the top level of the YAML.",
            says="The learning rate is {logged:.3g} in all {reports:* report}; the configuration "
            "[says {configured:.3g}|asks for {schedule} with {warmup} warm-up updates].",
        ),
    },
)
def learning_rate(
    config: TrainingConfig,
    base: BaseModel | None,
    log: TrainingLog | None,
    planned: PlannedRun | None,
) -> Iterator[Sign]:
    rate = config.learning_rate
    logged = log.main.get("learning_rate") if log is not None else None
    if logged is not None and log is not None and log.main.is_counted:
        yield from _logged(logged, config)
    if rate is None:
        raise NotApplicable("the configuration states no learning rate")
    if rate <= 0 or not math.isfinite(rate):
        yield _no_rate(rate, usual_rates(config, base, log))
        return
    scale = config.scale
    if scale is None or config.fine_tune_type == "full":
        raise NotApplicable("the guideline is one for LoRA, and the run is not")
    band, step = usual_steps(config, base, log), rate * abs(scale)
    is_alpha = scale >= ALPHA_LIKE and config.origin == "mlx-lm"
    if is_alpha:
        advised = better_scale(scale, config.rank, rate, band)
        figures = {"scale": scale, "rank": config.rank, "advised_scale": advised}
        severity = Severity.ERROR if planned is not None and step > band.high else None
        yield Sign("scale-looks-like-alpha", figures, severity=severity)
    if not band.has(step):
        sign = _against_the_band(rate, scale, band, is_alpha=is_alpha)
        # Training on preferences and rewards takes lower rates.
        of_preferences = config.of_preferences or (log is not None and log.is_preference)
        is_known = band.model.parameters is not None
        if of_preferences and step < band.low:
            sign = replace(sign, severity=Severity.INFO)
        elif planned is not None and not config.warmup and step >= _PLANNED * band.high:
            sign = replace(sign, severity=Severity.ERROR if is_known else Severity.INFO)
        elif FAR * step <= band.low and (fall := _small_fall(log, config)):
            severity = Severity.ERROR if is_known else sign.severity
            sign = replace(sign, measured={**sign.measured, "lost": fall}, severity=severity)
        yield sign


def _no_rate(rate: float, usual: tuple[float, float] | None) -> Sign:
    """A rate at which nothing is learned, and the one to set: mlx-lm's own where that is usual."""
    default = float(MLX_LM_DEFAULTS["learning_rate"])
    low, high = usual or (default, default)
    advised = default if low <= default <= high else float(f"{math.sqrt(low * high):.2g}")
    is_number = math.isfinite(rate)
    figures = {"learning_rate": rate if is_number else str(rate), "up": "" if is_number else None}
    code = "not-a-rate" if rate else "zero"
    return Sign(code, {**figures, "advised_learning_rate": advised})


def _small_fall(log: TrainingLog | None, config: TrainingConfig) -> float | None:
    """How far the loss fell, as a share of its start, if that is little and it still falls."""
    if log is None or log.is_preference or not log.main.shows_start or log.resumed:
        return None
    losses = log.main.finite("train_loss")
    third = len(losses) // 3
    # Only the steps of Adam have about the size of the rate.
    if third < _THIRD or config.resume_adapter_file or config.optimizer not in ADAM:
        return None
    start = start_of(log.main)[0]
    middle = median(losses.values[-2 * third : -third])
    last = median(losses.values[-third:])
    is_late = _LATE_FALL * (start - last) <= middle - last <= start - last
    is_small = last < start and last >= (1.0 - _SMALL_FALL) * start
    is_clear = middle - last >= _NOISES * losses.facts.noise
    return 1.0 - last / start if is_late and is_small and is_clear else None


def _logged(rates: Series, config: TrainingConfig) -> Iterator[Sign]:
    """Compare a rate that is constant in the log with the configured rate."""
    values, schedule = rates.finite.values, config.lr_schedule
    if config.origin != "mlx-lm" or len(values) < _REPORTS or not values.any():
        return
    if np.ptp(values) > _TOLERANCE * float(np.max(np.abs(values))):
        return
    logged = median(values)
    measured: dict[str, Measurement] = {"logged": logged, "reports": len(values)}
    if schedule is not None:
        steps = np.maximum(rates.iterations // (config.grad_accumulation_steps or 1) - 1, 0)
        expected = planned_rates(config, int(steps.max()) + 1)
        if expected is None:
            return
        planned = np.sort(expected[steps])
        # The lowest rate is left out: it may be one report within a short warm-up.
        if planned[-1] - planned[1] < _MOVED * planned[-1]:
            return
        measured |= {"schedule": str(schedule.get("name")), "warmup": config.warmup}
    else:
        configured = config.learning_rate
        if configured is None or config.is_default("learning_rate"):
            return
        if abs(logged - configured) <= _TOLERANCE * abs(configured):
            return
        measured["configured"] = configured
    yield Sign("not-the-configured", measured, onset=int(rates.iterations[0]))


def _against_the_band(rate: float, scale: float, band: Band, *, is_alpha: bool) -> Sign:
    step = rate * abs(scale)
    is_above = step > band.high
    times = step / band.high if is_above else band.low / step if step else math.inf
    size = "unknown size (taken for a billion parameters)"
    if (parameters := band.model.parameters) is not None:
        power = min(int(math.log10(max(parameters, 1.0))) // 3, 3)
        unit = ("", " thousand", " million", " billion")[power]
        size = f"{parameters / 1000.0**power:.3g}{unit} parameters (by {band.model.size_from})"
    measured: dict[str, Measurement] = {
        "learning_rate": rate,
        "scale": scale,
        "rate_times_scale": step,
        "lowest": band.low,
        "highest": band.high,
        "guideline": (band.low, band.high),
        "parameters": parameters,
        "size": size,
        "times": times if math.isfinite(times) else None,
        "advised_learning_rate": None,
    }
    # No rate is advised where the scale is to be corrected first.
    if scale and not (is_alpha and is_above):
        low, high = band.low / abs(scale), band.high / abs(scale)
        advised = better_rate(rate, low, high, lower=is_above)
        measured |= {"slowest": low, "fastest": high, "advised_learning_rate": advised}
    return Sign(
        f"{'above' if is_above else 'below'}-guideline",
        measured,
        # Without the model's size the band may be off by a power of ten.
        severity=None if times >= FAR and parameters is not None else Severity.INFO,
        expected=None if scale else "a scale above 0",
        fix=None if scale else "set lora_parameters.scale to 20",
    )
