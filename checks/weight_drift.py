"""How far the adapter moves the model.

What it finds. Updates as large as the weights they are added to; updates too small to
change any output; a module whose update is out of all proportion; and a B that was still
moving straight ahead when training ended.

Why it matters. A LoRA update is a correction. Once it is several times the weight
itself, the base model is overwritten, and what is left prints one token or noise,
whatever the loss says. An update below the rounding of the weights is no update. Once a
run has learned what lies nearest, its gradients turn and B goes to and fro; one whose B
still went straight at the end had only begun, however its loss looks.

How it is measured. For every module ‖ΔW‖ = scale·‖A·B‖, by Frobenius norm, from r × r
products. With the base model at hand it is divided by ‖W‖ and the median over the
modules is judged. Without it, or where weights are next to nothing, ‖W‖ is taken to be that of a
matrix of rms 1/sqrt(inputs), and errors are given only where sound runs are far from it. Modules
whose B is zero are left out: they have no update. One module is judged by itself where its update
is many times its weights and the median module's. A gradient that never changed would
take B a known distance under Adam's default momenta; the root mean square of B over that distance,
median over modules, is how straight B went. A schedule's rates only shorten the distance.

When it is wrong. Small models bear relatively larger updates than large ones. DoRA rescales the sum
afterwards. A resumed run may have moved further than its own rate allows, so resumed runs are not
held to it. A run of a few dozen updates goes straight at any rate, and is not judged by that.

What to do. If the update is too large, lower rate × scale. If it is too small, look at rate, scale
and the number of updates. `mlxdoctor inspect` shows every module.
"""

from collections.abc import Iterator, Sequence
from math import isfinite
from statistics import median

from mlxdoctor.check import Inconclusive, NotApplicable, check
from mlxdoctor.engines.tensors import ModuleFacts, quantity_of, size_of, straight_way
from mlxdoctor.evidence.adapter import Adapter
from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.finding import Severity, Sign, Symptom
from mlxdoctor.judge.save_flaws import EXPLODED, NOMINAL_LARGE
from mlxdoctor.measure.weights.adapter_facts import adapter_facts

#: Without the base model an update is called too small at a quarter of the limit.
_NOMINAL_SHARE = 0.25
#: Below this share of the limits an update is nothing: such adapters' answers are the base's. That
#: of sound runs is 50 times the limit at least.
_NOTHING = 0.2
#: ‖ΔW‖ of one module over ‖W‖, and over the median module's: ten times what sound runs reach, 1.1
#: of the weights and 2.3 of the median module.
_LONE = 10.0
#: Updates after which sound runs no longer go straight: 0.2 of the way after 20, 0.14 after 60.
_ENOUGH_UPDATES = 50

#: ‖ΔW‖/‖W‖ for a warning: 1.7 in healthy runs at most, 2.0 to 2.8 in three at five times a sound
#: scale; runs at 1.8 to 2.9 are impaired, some not for good. Crossed by 0 of 98 healthy runs of
#: three base models. From `EXPLODED` on it is an error.
LARGE = 1.8
#: ‖ΔW‖/sqrt(min(in, out)) for an error, without the base model: a run damaged by its scale is at
#: 7.1, one that repeats one token at 23; sound weights of large models are smaller than such
#: weights, and their updates are, too. Crossed by 0 of 19 healthy runs, 0 of 126 sound runs of four
#: base models: 0.9 at most. From `NOMINAL_LARGE` on it is a warning.
NOMINAL_EXPLODED = 5.0
#: ‖ΔW‖/‖W‖: half a unit of bfloat16's last place is 2^-9; a run at a rate of 1e-7 that did not
#: lower its loss reached 1.4e-3, one at 1e-6 that barely learned 1.4e-2. Crossed by 0 of 19 healthy
#: runs.
NEGLIGIBLE = 2e-3
#: Rms of B over the straight way. 150 updates of three base models: 0.36 to 0.54 at a hundredth of
#: a sound rate or less, 0.33 at a thirtieth, 0.21 at a tenth, 0.15 at a fifth; sound ones 0.14 at
#: most. Crossed by 0 of 98 healthy runs of three base models.
STRAIGHT = 0.27


@check(
    codes={
        "exploded": Symptom.error(
            "the update is larger than the weights it is added to",
            says="The update is [{median_relative_norm:.3g} times as large as the weights it is "
            "added to|about {median_nominal_norm:.3g} times as large as weights of these shapes "
            "usually are] (median of {modules} modules[, at most {largest_relative_norm:.3g}]): "
            "[the base model is overwritten{overwritten}|it outweighs the base model].",
            expected="an update below {most:g} times the weights; often below 0.5",
            fix="lower learning rate × scale, and train again from the base model",
        ),
        "negligible": Symptom.warning(
            "the update is too small to change any output",
            says="The update is [{median_relative_norm:.2g} of the weights it is added to|about "
            "{median_nominal_norm:.2g} of what weights of these shapes usually are] (median of "
            "{modules} modules), too small to change what the model says.",
            expected="at least {least:g} of the weights",
            fix="raise learning rate × scale, or train for more updates",
        ),
        "one-module-overwritten": Symptom.error(
            "the update of one module is out of all proportion",
            says="The update of {where} is {relative_norm:.3g} times as large as "
            "{usual} weights, the median module's {median_relative_norm:.2g} times.",
            expected="below {most:g} times, in every module",
            fix="look at how this module's factors were saved or changed, and use a sound save",
        ),
        "straight": Symptom.warning(
            "B was still moving straight ahead at the end: it had only begun to learn",
            says="In {updates} updates B moved {straightness:.0%} as far as it could have moved in "
            "a straight line. Its gradients had hardly changed direction, so the adapter had only "
            "begun to learn.",
            expected="less than {most:.0%}",
            fix="raise the learning rate, or train for more updates",
        ),
    },
    rerun_symptom=True,
)
def weight_drift(
    adapter: Adapter, config: TrainingConfig | None, base: BaseModel | None
) -> Iterator[Sign]:
    if not adapter.modules:
        raise NotApplicable("the adapter holds no pair of LoRA factors to multiply")
    facts = adapter_facts(adapter, config, base)
    if not all(module.is_finite for module in facts):
        raise Inconclusive("some factors are not finite, so that they have no norm")
    facts = tuple(module for module in facts if not module.b.is_zero)
    if not facts:
        raise NotApplicable("every B is zero: there is no update to measure")
    if config is not None:
        yield from _straight(facts, config)
    if not isfinite(facts[0].scale):
        why = "the scale of the update is not stated: the adapter_config.json is needed"
        raise Inconclusive(why)
    yield from _size(facts)


def _size(facts: Sequence[ModuleFacts]) -> Iterator[Sign]:
    quantity = quantity_of(facts)
    is_relative = quantity == "relative"
    sizes = [(size_of(module, quantity), module.name) for module in facts]
    middle, (largest, name) = median(size for size, _ in sizes), max(sizes)
    least = NEGLIGIBLE * (1.0 if is_relative else _NOMINAL_SHARE)
    exploded, large = (EXPLODED, LARGE) if is_relative else (NOMINAL_EXPLODED, NOMINAL_LARGE)
    measured = {
        "median_relative_norm" if is_relative else "median_nominal_norm": middle,
        "largest_relative_norm": largest if is_relative else None,
        "modules": len(sizes),
        "scale": facts[0].scale,
        "most": large,
        "least": least,
    }
    if middle >= large:
        is_far = middle >= exploded
        severity = None if is_far else Severity.WARNING
        figures = {**measured, "overwritten": "" if is_far else None}
        yield Sign("exploded", figures, where=name, severity=severity)
    elif middle < least:
        severity = Severity.ERROR if middle < least * _NOTHING else None
        yield Sign("negligible", measured, where=name, severity=severity)
    if largest >= _LONE and largest >= _LONE * middle:
        norms = {"relative_norm": largest, "median_relative_norm": middle, "most": _LONE}
        usual = {"usual": "its" if is_relative else "usual"}
        yield Sign("one-module-overwritten", {**norms, **usual}, where=name)


def _straight(facts: Sequence[ModuleFacts], config: TrainingConfig) -> Iterator[Sign]:
    """Whether B went straight, where Adam with its default momenta made it from zero."""
    is_adam = config.optimizer in ("adam", "adamw") and not config.optimizer_config.get("betas")
    is_known = is_adam and config.describes_training and not config.resume_adapter_file
    # The gradient of pairs and rewards keeps its direction for longer: not measured there.
    if not is_known or config.of_preferences or not config.learning_rate or config.iters is None:
        return
    updates = config.iters // max(config.grad_accumulation_steps or 1, 1)
    if updates < _ENOUGH_UPDATES:
        return
    corrected = bool(config.optimizer_config.get("bias_correction"))
    # A negative rate takes B as far, the other way.
    way = abs(config.learning_rate) * straight_way(updates, bias_correction=corrected)
    straightness = median(module.b.rms for module in facts) / way
    # B that went further than the stated rate takes it was trained with another, or for longer.
    if STRAIGHT <= straightness <= 1.0:
        figures = {"updates": updates, "straightness": straightness, "most": STRAIGHT}
        yield Sign("straight", {**figures, "learning_rate": config.learning_rate})
