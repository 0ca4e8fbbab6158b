"""Whether the step, learning rate times scale, is a usual one for the model's size.

What it finds. A rate of zero, one below it and one that is no number, a step far above or below
what is usual for a model of this size, and a scale that looks like an alpha.

Why it matters. What moves a LoRA model is the rate times the scale. mlx-lm multiplies the update
by `scale` (20 by default), where PEFT uses alpha / rank (1 or 2): a rate taken over from PEFT
makes steps ten times too large, and the model is destroyed within a few of them.

How it is measured. The highest rate of the run times the scale is compared with a band that
becomes lower as the model grows. The band spans mlx-lm's advice (1e-5 to 5e-5 at scale 20 for
models of 1 to 3 billion parameters) and the best rates of published sweeps (3e-4 to 1e-3 at a
scale of 1 to 2). The size is that of the base model's files, the count in the log, or what the
model's name says ("llama-3.2-3b"). It is compared before a run as well, from the configuration
alone. Where no training loss is finite although the model was sound before the first update, a
step within the band is noted: it speaks for another cause.

When it is wrong. It is advice from other runs, not a measurement of this one: the loss decides.
A large batch, a warm-up or clipping allows more, and models much smaller than a billion
parameters take far more. Its findings are therefore no errors, a rate of zero aside.

What to do. Divide the rate so that rate times scale lies within the band, run 50 iterations and
see the loss fall before a long run.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from mlxdoctor.check import NotApplicable, check, limit
from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.mlx_lm_defaults import MLX_LM_DEFAULTS
from mlxdoctor.evidence.planned_run import PlannedRun
from mlxdoctor.evidence.training_log import TrainingLog
from mlxdoctor.finding import Severity, Sign, Symptom
from mlxdoctor.judge.rate import ALPHA_LIKE, BandLimits, Step, better_scale, step_of, usual_rates
from mlxdoctor.measure.rate_range import RateRange

_POSITIVE = "a positive number"


@dataclass(frozen=True)
class Limits(BandLimits):
    """The band of rate × scale, and what else to look at."""

    alpha_like: float = limit(
        ALPHA_LIKE, unit="scale", source="mlx-lm's default is 20; alphas of 64 to 512 are common"
    )
    planned: float = limit(
        1.8,
        unit="times the highest usual step, of a run that has not begun and has no warm-up",
        source="18 plans of the ward at 2.2 times and more fail",
        false_alarms="0 of 263 sound plans, which take 1.4 times at most; 2.1 with a warm-up",
    )
    adam_steps: int = limit(
        100,
        unit="updates",
        source="Adam without bias correction steps 3.2 to 6.6 times the rate until then",
    )


@check(
    codes={
        "zero": Symptom.error("the learning rate is zero", _POSITIVE),
        "negative": Symptom.error("the learning rate is negative", _POSITIVE),
        "not-a-rate": Symptom.error("the learning rate is no number", _POSITIVE),
        "above-guideline": Symptom.info("rate × scale is above what is usual for the model's size"),
        "far-above-guideline": Symptom.warning(
            "rate × scale is several times what is usual", in_a_plan=Severity.ERROR
        ),
        "below-guideline": Symptom.info("rate × scale is below what is usual for the model's size"),
        "far-below-guideline": Symptom.warning(
            "rate × scale is a small part of what is usual", in_a_plan=Severity.ERROR
        ),
        "usual-yet-not-finite": Symptom.info(
            "rate × scale is no more than usual, and no training loss is finite",
            fix="look at the precision, and at batches without a target, before the rate",
        ),
        "scale-looks-like-alpha": Symptom.warning(
            "the scale has the size of an alpha", expected="alpha / rank, or mlx-lm's default of 20"
        ),
        "no-bias-correction": Symptom.info(
            "Adam's first steps are several times the nominal rate",
            expected="a warm-up, or bias_correction",
            fix="add `warmup` to lr_schedule, or set optimizer_config to bias_correction: true",
        ),
    },
    limits=Limits(),
)
def learning_rate(
    config: TrainingConfig,
    *,
    base: BaseModel | None,
    log: TrainingLog | None,
    planned: PlannedRun | None,
    rates: RateRange | None,
    limits: Limits,
) -> Iterator[Sign]:
    """Compare the configured step with what is usual."""
    rate = config.learning_rate
    if rate is None:
        raise NotApplicable("the configuration states no learning rate")
    if rate <= 0 or not math.isfinite(rate):
        better = _default_or_usual(usual_rates(config, base, limits, log))
        measured = {
            "learning_rate": rate if math.isfinite(rate) else str(rate),
            "advised_learning_rate": better,
        }
        symptom, message = _no_rate(rate)
        yield Sign(symptom, message, measured, fix=f"set learning_rate to {better:g}")
        return
    step, scale = step_of(config, base, limits, log), config.scale
    if step is None or scale is None:
        raise NotApplicable("the guideline is one for LoRA, and the run is not")
    is_alpha = scale >= limits.alpha_like and config.origin == "mlx-lm"
    if is_alpha:
        better = better_scale(scale, config.rank, rate, step)
        yield Sign(
            "scale-looks-like-alpha",
            f"The LoRA scale is {scale:g}: mlx-lm multiplies by it directly, and it has "
            f"the size of an alpha, which PEFT divides by the rank.",
            {"scale": scale, "rank": config.rank, "advised_scale": better},
            severity=Severity.ERROR if planned is not None and step.times_above > 1 else None,
            fix=f"set lora_parameters.scale to {better:g}",
        )
    of_preferences = config.of_preferences or (log is not None and log.is_preference)
    for sign in _against_the_band(rate, scale, step, is_alpha, limits):
        # Pairs and rewards are trained at lower rates than the guideline is for.
        lower = of_preferences and sign.symptom.endswith("below-guideline")
        if lower or (rates is not None and rates.largest is not None):
            # What was tried on this model and these rows outranks what is usual.
            yield replace(sign, severity=Severity.INFO)
        elif planned is not None and not config.warmup and step.times_above >= limits.planned:
            yield replace(sign, severity=sign.severity or Severity.ERROR)
        else:
            yield sign
    if step.parameters is not None and step.size <= step.high and _never_finite(log):
        yield Sign(
            "usual-yet-not-finite",
            f"Rate × scale is {step.size:.2g} ({rate:g} × {scale:g}), no more than is usual for "
            f"{_model(step)}, up to {step.high:.2g}; yet no report has a finite training loss: "
            "it takes more than steps of this size to break a model at once.",
            {"rate_times_scale": step.size, "highest_usual": step.high, "learning_rate": rate},
        )
    bias_corrected = bool(config.optimizer_config.get("bias_correction", False))
    updates = (config.iters or 0) // max(config.grad_accumulation_steps or 1, 1)
    is_adam = config.optimizer in ("adam", "adamw")
    if is_adam and updates and not bias_corrected and not config.warmup:
        yield Sign(
            "no-bias-correction",
            f"MLX's {config.optimizer} does not correct its bias by default, and there is "
            f"no warm-up: the first {min(updates, limits.adam_steps)} updates are 3 to 6 times "
            f"as large as the rate says.",
            {"optimizer": config.optimizer, "warmup": 0},
        )


def _no_rate(rate: float) -> tuple[str, str]:
    """The symptom of a rate that nothing is learned at, and the sentence."""
    if rate == 0:
        return "zero", "The learning rate is 0: no step changes anything."
    if math.isfinite(rate):
        return "negative", f"The learning rate is {rate:g}: each step goes up the loss, not down."
    return "not-a-rate", f"The learning rate is {rate}, which is no rate to learn at."


def _never_finite(log: TrainingLog | None) -> bool:
    """Whether a model that was sound before the first update never had a finite loss after it."""
    losses = log.main.get("train_loss") if log is not None else None
    before = log.main.base_val_loss if log is not None else None
    if losses is None or not len(losses) or before is None or not math.isfinite(before):
        return False
    return not np.isfinite(losses.values).any()


def _default_or_usual(usual: tuple[float, float] | None) -> float:
    """mlx-lm's own rate where it is usual for the model, else the middle of what is."""
    default = float(MLX_LM_DEFAULTS["learning_rate"])
    low, high = usual if usual is not None else (default, default)
    return default if low <= default <= high else float(f"{math.sqrt(low * high):.2g}")


def _against_the_band(
    rate: float, scale: float, step: Step, is_alpha: bool, limits: Limits
) -> Iterator[Sign]:
    low, high = step.low, step.high
    if low <= step.size <= high:
        return
    size = _model(step)
    is_above = step.size > high
    side, times = ("above", step.times_above) if is_above else ("below", step.times_below)
    product = f"Rate × scale is {step.size:.2g} ({rate:g} × {scale:g})"
    message = f"{product}: the lowest usual value for {size} is {low:.2g}."
    if is_above:
        message = (
            f"{product}: {_often(times)} times the highest usual value for {size}, {high:.2g}."
        )
    elif step.size:
        message = f"{message[:-1]}, {_often(times)} times as much."
    expected, fix, better = "a scale above 0", "set lora_parameters.scale to 20", None
    if scale:
        slowest, fastest = low / abs(scale), high / abs(scale)
        expected = f"a learning rate of {slowest:.1e} to {fastest:.1e} at this scale"
        better = step.better_rate(lower=is_above)
        fix = f"set learning_rate to {better:g}"
    if is_alpha and is_above:
        # One thing at a time: a scale that is an alpha accounts for the size of the step.
        expected, fix, better = f"rate × scale up to {high:.2g}", "correct the scale first", None
    yield Sign(
        f"{'far-' if times >= limits.far else ''}{side}-guideline",
        message,
        {
            "learning_rate": rate,
            "scale": scale,
            "rate_times_scale": step.size,
            "guideline": (low, high),
            "times": times if math.isfinite(times) else None,
            "parameters": step.parameters,
            "advised_learning_rate": better,
        },
        # Without the model's size the band may be off by a power of ten.
        severity=None if step.parameters is not None else Severity.INFO,
        expected=expected,
        fix=fix,
    )


def _model(step: Step) -> str:
    if step.parameters is None:
        return "a model of unknown size (taken for a billion parameters)"
    return f"a model of {_in_words(step.parameters)} parameters (by {step.size_from})"


def _often(times: float) -> str:
    return f"{times:.3g}" if times < 1000 else f"{times:,.0f}"


def _in_words(parameters: float) -> str:
    for unit, name in ((1e9, " billion"), (1e6, " million"), (1e3, " thousand")):
        if parameters >= unit:
            return f"{parameters / unit:.3g}{name}"
    return f"{parameters:.0f}"
