"""The fused weights against the base plus the adapter's update.

What it finds. A fused model that lacks the update, holds it more than once or at another scale, or
holds it under quantisation noise. Other weights that were changed are looked for by `full-weights`.

Why it matters. The adapter is sound then, and what is served is not it.

How it is measured. Module by module, in blocks of rows: fused weight less base weight is
split into its part along the update scale · (A·B) transposed (for DoRA with the magnitude)
and the rest. The part along it, over all modules, is the gain: 1 where it was fused once.
The rest over the update's norm is the noise. Rounding is a squared step over 12 on average.

When it is wrong. The noise is measured in weights, not in answers: a large model may bear more of
it than the small ones that the limits were measured on, which is why noise that is small beside the
weights is only a warning; `fused-agreement` reads rows with both. An adapter that was trained
further after the fusing, or another revision of the base, looks like noise or like another scale.

What to do. Fuse again, from this base and this adapter, with `--dequantize`; or serve the
adapter beside the base model.
"""

from collections.abc import Iterator

import numpy as np

from mlxdoctor.check import DoesNotArise, Inconclusive, check
from mlxdoctor.evidence.adapter import Adapter
from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.tuned_model import TunedModel
from mlxdoctor.finding import Measurement, Severity, Sign, Symptom, some_of
from mlxdoctor.measure.weights.changed_tensors import fusions

# What follows was crossed by none of 64 sound fusions of 16 runs, unquantised or at 5 to 8 bits.
#: Gain of a module without the update: sound fusions have 0.99 to 1.00 in every module
#: (reports/fusing.md); 0 is none.
_ABSENT = 0.1
#: Gain that rounding leaves: rounding a sum of free values to 2 bits leaves 0.93; less is left
#: where the base is quantised already, and its own steps swallow the update.
_KEPT = 0.5
#: Gain away from 1: 2 bits, the worst measured rounding, moved it by 0.07.
_SCALE = 0.1
#: Noise over weights: at 4 bits at most 0.123, at 3 bits at least 0.165. A large model's update is
#: smaller beside its weights, and 4 bits are what it usually bears.
_COARSE = 0.145
#: Noise over update: at 5 to 8 bits at most 0.103, and a loss on the answers at most 0.02 nats
#: higher; at 4 bits 0.105 to 0.212, and 0.02 to 0.09 nats.
_DEGRADED = 0.105
#: The same at 3 and 2 bits: at least 0.221, and a loss 0.09 to 3.1 nats higher.
_LOST = 0.22


@check(
    codes={
        "update-lost": Symptom.error(
            "the fused weights do not hold the update as it was trained",
            says="[Rounding left {swallowed:.0%} of the adapter's update in the fused weights|The "
            "fused weights lack the adapter's update in {modules_without} of {modules} modules|The "
            "fused weights hold {wrong_gain:.2f} times the adapter's update|The fused weights "
            "differ from base plus update by {noise:.0%} of the update's size, which is "
            "{noise_over_weight:.0%} of the weights' size. Rounding explains a difference of "
            "{rounding:.0%} of the update's size].",
            expected="a gain of 1, and noise below {most:g} of the update",
            fix="fuse again from the base and this adapter, with `mlx_lm.fuse --dequantize`",
        ),
    },
)
def fused_model(
    adapter: Adapter,
    base: BaseModel,
    config: TrainingConfig,
    tuned: TunedModel | None,
) -> Iterator[Sign]:
    if tuned is None or tuned.from_adapter:
        raise DoesNotArise("there is no fused model")
    modules = fusions(adapter, config, base, tuned)
    if not modules:
        raise Inconclusive("no module with an update has a weight of one shape in both models")
    norms = [(module.intended, module.noise, module.rounding, module.weight) for module in modules]
    intended, noise, rounding, weight = np.linalg.norm(norms, axis=0).tolist()
    coarseness, noise, rounding = noise / weight, noise / intended, rounding / intended
    gain = sum(module.inner for module in modules) / intended**2
    absent = [module for module in modules if module.gain < _ABSENT]
    # A base that is quantised already rounds a part of the update back to its own steps.
    is_swallowed = rounding > _DEGRADED and gain < 1
    is_lost = is_swallowed and gain < _KEPT
    examples = sorted(modules, key=lambda module: -module.noise / module.intended)
    wrong_gain, severity = None, None
    if is_lost:
        examples = sorted(modules, key=lambda module: module.gain)
    elif absent:
        examples = absent
    elif not is_swallowed and abs(gain - 1) > _SCALE:
        wrong_gain = gain
    elif noise <= _DEGRADED:
        return
    elif noise <= _LOST or coarseness <= _COARSE:
        # Noise that is small beside the weights is what any quantised model bears.
        severity = Severity.WARNING
    shares = {"gain": gain, "noise": noise, "rounding": rounding, "noise_over_weight": coarseness}
    figures: dict[str, Measurement] = {"modules": len(modules)}
    figures |= {name: round(share, 4) for name, share in shares.items()}
    figures |= {"swallowed": figures["gain"] if is_lost else None, "most": _DEGRADED}
    figures |= {"modules_without": len(absent) or None, "wrong_gain": wrong_gain}
    where = some_of([module.name for module in examples])
    yield Sign("update-lost", figures, where=where, severity=severity)
