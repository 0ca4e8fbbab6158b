"""The fused weights against the base plus the adapter's update.

What it finds. A fused model that lacks the update, holds it more than once or at another
scale, or holds it under quantisation noise; other weights that were changed by more than
rounding. Where nothing is fused yet, what fusing into a quantised base would cost.

Why it matters. The adapter is sound then, and what is served is not it.

How it is measured. Module by module, in blocks of rows: fused weight less base weight is
split into its part along the update scale · (A·B) transposed (for DoRA with the magnitude)
and the rest. The part along it, over all modules, is the gain: 1 where it was fused once.
The rest over the update's norm is the noise. Rounding is a squared step over 12 on average.

When it is wrong. The noise is measured in weights, not in answers: a large model may bear
more of it than the small ones that the limits were measured on, which is why noise that is
small beside the weights is only a warning; `fused-agreement` reads rows with both. An
adapter that was trained further after the fusing, or another revision of the base, looks
like noise or like another scale.

What to do. Fuse again, from this base and this adapter, with `--dequantize`; or serve the
adapter beside the base model.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import isfinite, sqrt

from mlxdoctor.check import Cost, DoesNotArise, Inconclusive, check, limit
from mlxdoctor.evidence.adapter import Adapter
from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.tuned_model import TunedModel
from mlxdoctor.finding import Sign, Symptom
from mlxdoctor.measure.weights.drift import module_scale
from mlxdoctor.measure.weights.fused import ModuleFusion, fusions, rounding_changes
from mlxdoctor.measure.weights.spectrum import adapter_statistics

_EXAMPLES = 3
_AGAIN = "fuse again from the base and this adapter, with `mlx_lm.fuse --dequantize`"


@dataclass(frozen=True)
class Limits:
    """How far fused weights may be from base plus update."""

    absent: float = limit(
        0.1,
        unit="gain",
        source="sound fusions have 0.99 to 1.00 in every module (reports/fusing.md); 0 is none",
        false_alarms="0 of 64 sound fusions of 16 runs, unquantised or at 5 to 8 bits",
    )
    kept: float = limit(
        0.5,
        unit="gain",
        source="rounding a sum of free values to 2 bits leaves 0.93; less is left where the base "
        "is quantised already, and its own steps swallow the update",
        false_alarms="0 of 64 sound fusions",
    )
    degraded: float = limit(
        0.105,
        unit="noise over update",
        source="at 5 to 8 bits at most 0.103, and a loss on the answers at most 0.02 nats higher; "
        "at 4 bits 0.105 to 0.212, and 0.02 to 0.09 nats",
        false_alarms="0 of 64 sound fusions",
    )
    lost: float = limit(
        0.22,
        unit="noise over update",
        source="at 3 and 2 bits at least 0.221, and a loss 0.09 to 3.1 nats higher",
        false_alarms="0 of 80 fusions at 4 bits and more",
    )
    coarse: float = limit(
        0.145,
        unit="noise over weights",
        source="at 4 bits at most 0.123, at 3 bits at least 0.165. A large model's update is "
        "smaller beside its weights, and 4 bits are what it usually bears",
        false_alarms="0 of 80 fusions at 4 bits and more",
    )
    scale: float = limit(
        0.1,
        unit="gain away from 1",
        source="2 bits, the worst measured rounding, moved it by 0.07",
        false_alarms="0 of 64 sound fusions",
    )
    other: float = limit(
        2.0,
        unit="times the average of rounding",
        source="rounding alone measured 1.00 to 1.12 at 2 to 8 bits",
        false_alarms="0 of 64 sound fusions",
    )
    storing: float = limit(
        2.0**-8,
        unit="‖W' − W‖/‖W‖",
        source="one unit of bfloat16's last place",
    )


@check(
    codes={
        "update-lost": Symptom.error(
            "rounding took so much of the update that the model was hurt", fix=_AGAIN
        ),
        "update-degraded": Symptom.warning("rounding took a part of the update", fix=_AGAIN),
        "not-fused": Symptom.error("the adapter's update is not in the fused weights", fix=_AGAIN),
        "fused-twice": Symptom.error("the update is in the fused weights twice", fix=_AGAIN),
        "wrong-scale": Symptom.error(
            "the update was fused at another scale than it was trained at", fix=_AGAIN
        ),
        "other-weights-changed": Symptom.warning(
            "weights that the adapter leaves alone changed by more than rounding",
            expected="the base model's values, but for rounding",
            fix=_AGAIN,
        ),
        "fusing-would-lose": Symptom.info(
            "fusing into this quantised base would round much of the update away",
            fix="fuse with `mlx_lm.fuse --dequantize`, or serve the adapter beside the base",
        ),
    },
    cost=Cost.WEIGHTS,
    limits=Limits(),
)
def fused_model(
    adapter: Adapter,
    base: BaseModel,
    config: TrainingConfig,
    tuned: TunedModel | None,
    limits: Limits,
) -> Iterator[Sign]:
    """Compare the fused weights with base plus update, or predict what fusing would do."""
    if tuned is None or tuned.from_adapter:
        if not base.quantized:
            raise DoesNotArise("there is no fused model, and fusing into this base loses nothing")
        yield from _predicted(adapter, base, config, limits)
        return
    modules = fusions(adapter, config, base, tuned)
    if not modules:
        raise Inconclusive("no module with an update has a weight of one shape in both models")
    yield from _judged(modules, limits)
    changed = [
        (name, change)
        for name, change, rounding in rounding_changes(adapter, base, tuned)
        if change > max(limits.other * rounding, limits.storing)
    ]
    if changed:
        name, most = max(changed, key=lambda one: one[1])
        yield Sign(
            "other-weights-changed",
            f"{len(changed)} weights that the adapter does not touch differ from the base's by "
            f"more than rounding, by up to {most:.3g} of their norm.",
            {"changed": len(changed), "largest_relative_change": most},
            where=name,
        )


def _judged(modules: tuple[ModuleFusion, ...], limits: Limits) -> Iterator[Sign]:
    intended = _norm(one.intended for one in modules)
    realised = _norm(one.realised for one in modules)
    noise = _norm(one.noise for one in modules) / intended
    rounding = _norm(one.rounding for one in modules) / intended
    gain = sum(one.inner for one in modules) / intended**2
    absent = [one for one in modules if one.gain < limits.absent]
    coarseness = _norm(one.noise for one in modules) / _norm(one.weight for one in modules)
    measured = {
        "modules": len(modules),
        "gain": round(gain, 4),
        "noise": round(noise, 4),
        "rounding": round(rounding, 4),
        "cosine": round(gain * intended / realised, 4) if realised else 0.0,
        "relative_size": round(realised / intended, 4),
        "noise_over_weight": round(coarseness, 4),
        "modules_without": len(absent),
    }
    examples = sorted(modules, key=lambda one: -one.noise / one.intended)
    # A base that is quantised already rounds a part of the update back to its own steps.
    is_swallowed = rounding > limits.degraded and gain < 1
    if is_swallowed and gain < limits.kept:
        symptom, examples = "update-lost", sorted(modules, key=lambda one: one.gain)
        told = f"Rounding left {gain:.0%} of the adapter's update in the fused weights."
    elif absent:
        symptom, examples = "not-fused", absent
        told = (
            f"The fused weights lack the adapter's update in {len(absent)} of {len(modules)} "
            "modules."
        )
    elif abs(gain - 1) > limits.scale and not is_swallowed:
        symptom = "fused-twice" if abs(gain - 2) <= limits.scale else "wrong-scale"
        told = f"The fused weights hold {gain:.2f} times the adapter's update."
    elif noise > limits.degraded:
        # Noise that is small beside the weights is what any quantised model bears.
        is_lost = noise > limits.lost and coarseness > limits.coarse
        symptom = "update-lost" if is_lost else "update-degraded"
        told = (
            f"The fused weights differ from base plus update by {noise:.0%} of the update's own "
            f"size, {coarseness:.0%} of the weights'; rounding to their precision explains "
            f"{rounding:.0%} of the update."
        )
    else:
        return
    yield Sign(
        symptom,
        told,
        measured,
        where=", ".join(one.name for one in examples[:_EXAMPLES]),
        expected=f"a gain of 1, and noise below {limits.degraded:g} of the update",
    )


def _predicted(
    adapter: Adapter, base: BaseModel, config: TrainingConfig, limits: Limits
) -> Iterator[Sign]:
    update, rounding, bits = [], [], set()
    for module, statistics in zip(adapter.modules, adapter_statistics(adapter), strict=True):
        matrix = base.quantized.get(module.name)
        if matrix is None or module.magnitude is not None:
            continue
        scale = module_scale(module, config)
        update.append(scale * statistics.frobenius)
        rounding.append(matrix.rounding())
        bits.add(matrix.bits)
    size = _norm(update)
    if not size or not isfinite(size):
        raise Inconclusive("no finite update of a quantised weight to compare with its step")
    ratio = _norm(rounding) / size
    if ratio <= limits.lost:
        return
    stated = " and ".join(str(one) for one in sorted(bits))
    yield Sign(
        "fusing-would-lose",
        f"Fused into this base and quantised again to {stated} bits, the update would lie under "
        f"rounding of {ratio:.0%} of its own size.",
        {"rounding": round(ratio, 4), "bits": tuple(sorted(bits)), "modules": len(update)},
        expected=f"rounding below {limits.lost:g} of the update",
    )


def _norm(values: Iterable[float]) -> float:
    return sqrt(sum(one**2 for one in values))
