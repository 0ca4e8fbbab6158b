"""How far the adapter moves the model.

What it finds. Updates as large as the weights they are added to; updates too small to
change any output; a B that was still moving straight ahead when training ended; a layer
that takes most of the update; updates that use one direction only; and updates larger
than the stated rate could have made.

Why it matters. A LoRA update is a correction. Once it is several times the weight
itself, the base model is overwritten, and what is left prints one token or noise,
whatever the loss says. An update below the rounding of the weights is no update. Once a
run has learned what lies nearest, its gradients turn and B goes to and fro; one whose B
still went straight at the end had only begun, however its loss looks.

How it is measured. For every module ‖ΔW‖ = scale·‖A·B‖, by Frobenius norm, from r × r
products. With the base model at hand it is divided by ‖W‖ and the median over the
modules is judged. Without it, ‖W‖ is taken to be that of a matrix of rms 1/sqrt(inputs),
and errors are given only where sound runs are far from it. Modules whose B is zero are
left out: they have no update. One module is judged by itself where its update is many times
its weights and the median module's. The bound on B is that of Adam: no step exceeds 7.3 times
the rate with its default momenta, with or without bias correction. The length of a straight
way is what those momenta make of a gradient that never changes; the root mean square of B over
it, median over modules, tells how straight B went. A schedule's rates only shorten the way.

When it is wrong. Small models bear relatively larger updates than large ones. DoRA
rescales the sum afterwards. A resumed run may have moved further than its own rate
allows, so resumed runs are not held to it. A run of a few dozen updates goes straight
at any rate, and is not judged by that.

What to do. If the update is too large, lower rate × scale. If it
is too small, look at rate, scale and the number of updates. `mlxdoctor inspect` shows
every module.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isfinite, sqrt
from statistics import median

import numpy as np

from mlxdoctor.check import Cost, Inconclusive, NotApplicable, check, limit
from mlxdoctor.evidence.adapter import Adapter
from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.exhibits import DriftByLayer
from mlxdoctor.finding import Severity, Sign, Symptom
from mlxdoctor.judge import update_size
from mlxdoctor.measure.exhibited import drift_shown
from mlxdoctor.measure.weights.drift import ModuleDrift, module_drifts


@dataclass(frozen=True)
class Limits(update_size.Limits):
    """Thresholds of `weight-drift`, all on the median over modules unless they say more."""

    negligible: float = limit(
        2e-3,
        unit="‖ΔW‖/‖W‖, median over modules",
        source="half a unit of bfloat16's last place is 2^-9; a run at a rate of 1e-7 that "
        "did not lower its loss reached 1.4e-3, one at 1e-6 that barely learned 1.4e-2",
        false_alarms="0 of 19 healthy runs",
    )
    nominal_negligible: float = limit(
        5e-4,
        unit="‖ΔW‖/sqrt(min(in, out)), median over modules",
        source="a quarter of the limit with the base model",
        false_alarms="0 of 19 healthy runs",
    )
    nothing: float = limit(
        4e-4,
        unit="‖ΔW‖/‖W‖, median over modules, for an error",
        source="a fifth of the limit above; the answers of such adapters are the base model's",
        false_alarms="0 of 19 healthy runs: 0.1 at least",
    )
    nominal_nothing: float = limit(
        1e-4,
        unit="‖ΔW‖/sqrt(min(in, out)), median over modules, for an error",
        source="as `nothing`",
        false_alarms="0 of 19 healthy runs: 0.03 at least",
    )
    lone: float = limit(
        10.0,
        unit="‖ΔW‖ of one module over ‖W‖, or over sqrt(min(in, out)) without the base model",
        source="ten times what sound runs reach",
        false_alarms="0 of 24 runs of the fixtures that ended finite: sound ones reach 1.1",
    )
    lone_ratio: float = limit(
        10.0,
        unit="that of one module over the median module's",
        source="1.5 to 2.3 in 24 runs of the fixtures, sound and failed",
    )
    dominance: float = limit(
        5.0,
        unit="update of the largest layer over the median layer's",
        source="healthy runs reach 1.6, collapsed ones 2.4",
        false_alarms="0 of 19 healthy runs",
    )
    layers_to_compare: int = limit(4, unit="layers", source="a median of fewer means little")
    collapsed_rank: float = limit(
        1.2,
        unit="stable rank, median over modules",
        source="healthy runs of rank 8 are at 2.8 or more",
        false_alarms="0 of 19 healthy runs",
    )
    rank_to_collapse: int = limit(4, unit="rank", source="rank 2 has little to lose")
    adam_step: float = limit(
        7.3,
        unit="largest step over the rate",
        source="(1-β1)/sqrt(1-β2)/sqrt(1-β1²/β2) at β1 0.9, β2 0.999, by Cauchy–Schwarz",
        false_alarms="none possible for a run with those momenta that was not resumed",
    )
    straight: float = limit(
        0.27,
        unit="rms of B over the straight way, median over modules",
        source="150 updates of three base models: 0.36 to 0.54 at a hundredth of a sound rate or "
        "less, 0.33 at a thirtieth, 0.21 at a tenth, 0.15 at a fifth; sound ones 0.14 at most",
        false_alarms="0 of 98 healthy runs of three base models",
    )
    enough_updates: int = limit(
        50, unit="updates", source="sound runs reach 0.2 after 20 updates, 0.14 after 60"
    )


@check(
    codes={
        "exploded": Symptom.error(
            "the update is several times the weights: the base model is overwritten",
            fix="lower learning rate × scale, and train again from the base model",
        ),
        "large": Symptom.warning(
            "the update is larger than the weights it is added to",
            fix="lower learning rate × scale, and train again from the base model",
        ),
        "negligible": Symptom.warning(
            "the update is too small to change any output",
            fix="raise learning rate × scale, or train for more updates",
        ),
        "one-module-overwritten": Symptom.error(
            "the update of one module is out of all proportion",
            fix="look at how this module's factors were saved or changed, and use a sound save",
        ),
        "dominated-by-one-layer": Symptom.info(
            "one layer takes most of the update",
            fix="check whether gradients reach the other layers",
        ),
        "rank-collapsed": Symptom.info(
            "the update uses about one direction of its rank",
            fix="none by itself; with a failed run, look at the rate",
        ),
        "straight": Symptom.warning(
            "B was still moving straight ahead at the end: it had only begun to learn",
            fix="raise the learning rate, or train for more updates",
        ),
        "beyond-the-rate": Symptom.warning(
            "B is larger than the stated rate and updates could have made it",
            fix="check that the configuration belongs to this adapter",
        ),
    },
    cost=Cost.WEIGHTS,
    limits=Limits(),
    rerun_symptom=True,
)
def weight_drift(
    adapter: Adapter, config: TrainingConfig | None, base: BaseModel | None, limits: Limits
) -> Iterator[Sign | DriftByLayer]:
    """Judge the size of the update, module by module."""
    if not adapter.modules:
        raise NotApplicable("the adapter holds no pair of LoRA factors to multiply")
    drifts = module_drifts(adapter, config, base)
    yield drift_shown(drifts)
    if not all(drift.statistics.is_finite for drift in drifts):
        raise Inconclusive("some factors are not finite, so that they have no norm")
    drifts = tuple(drift for drift in drifts if not drift.statistics.b_is_zero)
    if not drifts:
        raise NotApplicable("every B is zero: there is no update to measure")
    if config is not None and (updates := _adam_updates(config)) is not None:
        yield from _against_the_rate(drifts, config, updates, limits)
    yield from _spread(drifts, limits)
    if not isfinite(drifts[0].scale):
        raise Inconclusive(
            "the scale of the update is not stated: the adapter_config.json is needed"
        )
    relatives = [one.relative for one in drifts if one.relative is not None]
    yield from _relative(drifts, relatives, limits) if relatives else _nominal(drifts, limits)
    yield from _lone(drifts, limits)


def _largest(drifts: Sequence[ModuleDrift]) -> str:
    def size(one: ModuleDrift) -> float:
        return one.relative if one.relative is not None else one.nominal

    return max(drifts, key=size).module.name


def _relative(
    drifts: Sequence[ModuleDrift], sizes: Sequence[float], limits: Limits
) -> Iterator[Sign]:
    middle, largest = median(sizes), max(sizes)
    measured = {
        "median_relative_norm": middle,
        "largest_relative_norm": largest,
        "modules": len(sizes),
        "scale": drifts[0].scale,
    }
    if middle >= limits.large:
        is_exploded = middle >= limits.exploded
        ends = "the base model is overwritten" if is_exploded else "it outweighs the base model"
        yield Sign(
            "exploded" if is_exploded else "large",
            f"The update is {middle:.3g} times as large as the weights it is added to (median of "
            f"{len(sizes)} modules, at most {largest:.3g}): {ends}.",
            measured,
            where=_largest(drifts),
            expected=f"an update below {limits.large:g} times the weights; often below 0.5",
        )
    elif middle < limits.negligible:
        yield Sign(
            "negligible",
            f"The update is {middle:.2g} of the weights it is added to (median of {len(sizes)} "
            "modules), too small to change what the model says.",
            measured,
            where=_largest(drifts),
            severity=Severity.ERROR if middle < limits.nothing else None,
            expected=f"at least {limits.negligible:g} of the weights",
        )


def _nominal(drifts: Sequence[ModuleDrift], limits: Limits) -> Iterator[Sign]:
    middle = median(one.nominal for one in drifts)
    measured = {
        "median_nominal_norm": middle,
        "median_update_norm": median(one.norm for one in drifts),
        "modules": len(drifts),
        "scale": drifts[0].scale,
    }
    if middle >= limits.nominal_large:
        yield Sign(
            "exploded" if middle >= limits.nominal_exploded else "large",
            f"The update is about {middle:.3g} times as large as weights of these shapes usually "
            f"are (median of {len(drifts)} modules).",
            measured,
            where=_largest(drifts),
            expected=f"below {limits.nominal_large:g} times the usual norm",
            fix="lower learning rate × scale; name the base model to have this measured exactly",
        )
    elif middle < limits.nominal_negligible:
        yield Sign(
            "negligible",
            f"The update is about {middle:.2g} of what weights of these shapes usually are (median "
            f"of {len(drifts)} modules), too small to change what the model says.",
            measured,
            where=_largest(drifts),
            severity=Severity.ERROR if middle < limits.nominal_nothing else None,
            expected=f"at least {limits.nominal_negligible:g} of the usual norm",
        )


def _lone(drifts: Sequence[ModuleDrift], limits: Limits) -> Iterator[Sign]:
    """A module whose update is out of all proportion, to its weights and to the others'."""
    # Modules are compared by one measure: the weights of all of them, or of none.
    relatives = [one.relative for one in drifts if one.relative is not None]
    is_relative = len(relatives) == len(drifts)
    sizes = relatives if is_relative else [one.nominal for one in drifts]
    middle, size = median(sizes), max(sizes)
    module = drifts[sizes.index(size)]
    if size < limits.lone or size < limits.lone_ratio * middle:
        return
    what = "the weights it is added to" if is_relative else "usual weights"
    yield Sign(
        "one-module-overwritten",
        f"The update of {module.module.name} is {size:.3g} times as large as {what}, the median "
        f"module's {middle:.2g} times.",
        {"relative_norm": size, "median_relative_norm": middle, "modules": len(sizes)},
        where=module.module.name,
        expected=f"below {limits.lone:g} times, in every module",
    )


def _spread(drifts: Sequence[ModuleDrift], limits: Limits) -> Iterator[Sign]:
    squares: dict[int, float] = defaultdict(float)
    for one in drifts:
        if one.module.layer is not None:
            squares[one.module.layer] += one.statistics.frobenius**2
    if len(squares) >= limits.layers_to_compare:
        layer, square = max(squares.items(), key=lambda item: item[1])
        middle = median(squares.values())
        ratio = sqrt(square / middle) if middle > 0 else float("inf")
        if ratio >= limits.dominance:
            yield Sign(
                "dominated-by-one-layer",
                f"Layer {layer} is moved {ratio:.3g} times as far as the median layer.",
                {"layer": layer, "ratio": ratio, "layers": len(squares)},
                where=f"layer {layer}",
                expected=f"less than {limits.dominance:g} times the median layer",
            )
    ranks = [
        one.statistics.stable_rank for one in drifts if one.module.rank >= limits.rank_to_collapse
    ]
    if ranks and median(ranks) < limits.collapsed_rank:
        yield Sign(
            "rank-collapsed",
            f"The update's stable rank is {median(ranks):.3g} (median of {len(ranks)} modules): "
            "nearly all of it is one direction.",
            {"median_stable_rank": median(ranks), "modules": len(ranks)},
            expected=f"a stable rank of at least {limits.collapsed_rank:g}",
        )


def _adam_updates(config: TrainingConfig) -> int | None:
    """How many updates of Adam with its default momenta made B from zero; None if unknown."""
    if config.optimizer not in ("adam", "adamw") or config.resume_adapter_file:
        return None
    if config.optimizer_config.get("betas") is not None or not config.describes_training:
        return None
    if not config.learning_rate or config.iters is None:
        return None
    return config.iters // max(config.grad_accumulation_steps or 1, 1)


def _straight_way(updates: int, *, corrected: bool) -> float:
    """How far Adam goes under a gradient that never changes, in rates."""
    if corrected:
        return float(updates)
    steps = np.arange(1, updates + 1)
    return float(((1 - 0.9**steps) / np.sqrt(1 - 0.999**steps)).sum())


def _against_the_rate(
    drifts: Sequence[ModuleDrift], config: TrainingConfig, updates: int, limits: Limits
) -> Iterator[Sign]:
    rate = config.learning_rate or 0.0
    sizes = [one.statistics.b_norm / sqrt(max(one.module.b.size, 1)) for one in drifts]
    # Uphill is as far.
    bound = limits.adam_step * abs(rate) * updates
    largest, module = max(zip(sizes, (one.module.name for one in drifts), strict=True))
    if largest > bound:
        yield Sign(
            "beyond-the-rate",
            f"B has a root mean square of {largest:.3g}, and {updates:g} updates at a rate of "
            f"{rate:g} cannot take any element further than {bound:.3g}: it was trained with "
            "another rate, for longer, or from another start.",
            {"rms_b": largest, "bound": bound, "learning_rate": rate, "updates": updates},
            where=module,
            expected=f"at most {bound:.3g}",
        )
    # The gradient of pairs and rewards keeps its direction for longer: not measured there.
    elif updates >= limits.enough_updates and not config.of_preferences:
        corrected = bool(config.optimizer_config.get("bias_correction"))
        way = abs(rate) * _straight_way(updates, corrected=corrected)
        straightness = median(sizes) / way
        if straightness >= limits.straight:
            yield Sign(
                "straight",
                f"B went {straightness:.0%} as far in {updates} updates as it could have gone in "
                "a straight line: its gradients had hardly turned when training ended, so that it "
                "had only begun to learn.",
                {"straightness": straightness, "updates": updates, "learning_rate": rate},
                expected=f"less than {limits.straight:.0%}",
            )
