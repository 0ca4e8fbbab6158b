"""Whether the adapter's file holds a trained adapter.

What it finds. A file without LoRA factors, or with a whole model's weights; factors that were never
trained, or lack their partner; and values that are not finite, or that no start and no training
leaves.

Why it matters. A flag such as `_has_adapter = True` proves nothing: only tensors do. An
adapter whose B is zero changes no output whatever it is loaded on, and one that holds a
NaN makes every output NaN. Values that a conversion or a rounding spoilt have names and
norms in order, and the model answers with noise.

How it is measured. Every value is read. B counts as zero only if each of its elements is exactly
zero: one update moves every B that a gradient reaches. mlx-lm and PEFT draw A uniformly within
±1/sqrt(inputs). A counts as drawn if none of its elements lies outside and its mean square is
within five standard errors of that draw's, and as moved if one lies outside: A has no gradient
while B is zero, and weight decay only makes it smaller, so that such an A was trained together with
a B that was lost. Signs and different values are counted among the first 1,024 of a factor. A
magnitude starts as the norm of a row of weights; those of a module together have the norm of its
weight, with which they are compared where the base is at hand.

When it is wrong. An adapter saved before the first update has B at zero and is sound. Where a model
leaves modules unused (experts that no token was sent to, an image tower without images, keys and
values that later layers share) their B stays zero, and they are not counted. Other initialisations
of A (PiSSA, Gaussian) are not held to the draw if PEFT's configuration names them. PEFT stores
whole weights on purpose for `modules_to_save`. A model that uses one module in several places has
its factors several times, which is a warning only.

What to do. Find out why no gradient reached the adapter, whether the rate was zero, or whether
layers were converted at all: count them. Where values are spoilt, use a save of the trainer itself,
from before they were, and convert or merge it anew.
"""

import math
import re
from collections.abc import Iterator, Sequence
from statistics import median

import numpy as np

from mlxdoctor.check import NotApplicable, check
from mlxdoctor.engines.tensors import LEAST_SHARE, ModuleFacts, sharing
from mlxdoctor.evidence.adapter import PRUNED, Adapter, LoraModule
from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.finding import Measurement, Seen, Severity, Sign, Symptom, some_of
from mlxdoctor.measure.weights.adapter_facts import base_norm, factor_facts, nonfinite_values

#: What a sound model may not compute: an expert with tensors of its own, other towers than
#: the language model's, heads for further tokens, and keys and values that layers share.
_UNUSED = re.compile(
    r"\bexperts\.\d+\.|vision|visual|image|audio|speech|\bmtp\b|\b[kv]_proj$", re.IGNORECASE
)
#: Of those, what is told where other projections of its layer stand still as well.
_OF_A_LAYER = ("k_proj", "v_proj")

#: Values of a factor that are needed before they are compared: of fewer, some are alike by chance.
_VALUES = 64
# Each of the next three was crossed by none of 100 sound adapters (reports/bypasses.md).
#: Share of the rarer sign in A, median over modules: a draw around zero has half of either.
_ONE_SIDED = 0.05
#: Different values among the first of a factor, median over modules: roundings to 1 and 2 bits
#: leave 2 and 3, 4 bits in blocks a hundred.
_FEW_LEVELS = 8
#: Times, either way, from the norm of a module's magnitudes to that of its weight: they start
#: equal, and training moves the median magnitude by 1 to 8 percent.
_MAGNITUDES_APART = 2.0


@check(
    codes={
        "no-lora-tensors": Symptom.error(
            "the file holds no pair of LoRA factors",
            says="{where} holds {tensors:,} tensors and not one complete pair of LoRA factors, "
            "although [the configuration says {stated}|it is an adapter file].",
            expected="two LoRA factors for every adapted module",
            fix="convert the layers before training, and check that trainable_parameters() names "
            "lora_a and lora_b",
        ),
        "full-weights": Symptom.warning(
            "the file holds whole weights where only factors belong",
            says="{file} holds {tensors:,} tensors with {parameters:,} numbers that are no LoRA "
            "factors: weights of the model itself were saved, so they were trainable.",
            expected="LoRA factors only",
            fix="freeze the model before attaching the adapter, and save only trainable parameters",
        ),
        "zero-b": Symptom.error(
            "every B is exactly zero: the adapter changes nothing",
            says="The B of all {modules} modules is exactly zero, so the adapter changes nothing"
            "[; {a_drawn} A is still as it was drawn].",
            expected="B moves away from zero with the first update",
            fix="check that the learning rate is not zero and that gradients reach lora_b",
        ),
        "a-moved-zero-b": Symptom.error(
            "B is zero although A is no longer as it was drawn",
            says="In {a_moved} of {modules} modules A lies outside the draw it started from while "
            "B is exactly zero: training cannot do that, because A gets no gradient before B "
            "moves.",
            expected="B moves before A",
            fix="check how the adapter was saved or merged, and use an earlier file",
        ),
        "some-zero-b": Symptom.error(
            "some modules were trained, and the B of others is exactly zero",
            says="The B of {untrained} of {modules} modules is exactly zero while others were "
            "trained: no gradient reached them[; all of them lie before layer {first_trained}].",
            expected="every B moves with the first update",
            fix="[look for what stops gradients on their way down to layer {last_untrained}|"
            "check that gradients reach these modules, and that the optimiser has them]",
        ),
        "unusable-factors": Symptom.error(
            "factors without a partner, that cannot be multiplied, or of a type without values",
            says="[{unpaired} LoRA factors have no partner in {file}: a loader puts zeros or "
            "random numbers in place of the missing ones|The factors of {mismatched} modules "
            "cannot be multiplied: {shapes}|The factors of {not_float} modules are stored as "
            "{types}, and adapters as F32, F16 or BF16: without the scales that they were rounded "
            "by, nothing gives back what was trained].",
            expected="an A and a B for every adapted module, [{layout}|in a floating-point type]",
            fix="use a file that the trainer itself saved, in bfloat16. An adapter is small and is "
            "not quantised. A script that renames or transposes tensors must do so for both "
            "factors",
        ),
        "non-finite": Symptom.error(
            "some values are NaN or infinite",
            says="{values:,} values in {tensors} of {all_tensors} tensors are NaN or infinite.",
            expected="finite values only",
            fix="use the last checkpoint without them, and lower the rate before training again",
        ),
        "float16-non-finite": Symptom.warning(
            "the values that are NaN or infinite are stored in float16",
            says="{tensors} tensors with such values are stored in float16. In float16, numbers "
            "overflow above 65,504. Adam's epsilon of 1e-8 becomes zero, so Adam divides by zero "
            "wherever a gradient is small.",
            expected="factors that are trained in float32 or bfloat16",
            fix="train the adapter in float32 or bfloat16: attach the adapter, then cast its "
            "trainable parameters, and leave the frozen weights as they are",
        ),
        "untrained-values": Symptom.error(
            "values that no start and no training leaves",
            says="[Nearly all values of A have the same sign (median of {modules} modules: "
            "{share:.1%} have the opposite sign). At the start A is spread evenly around "
            "zero|{factor} consists of {different:* different value} (median of {modules} "
            "modules): LoRA starts from random values, and nearly all values still differ after "
            "training|{alike} of {modules} modules share {same} with another one, number by "
            "number: {reason}|The magnitudes of {odd} of {modules} modules are negative, all "
            "equal, or far from the norms of the base model's weights, their values at the start].",
            expected="values of its own in every factor, nearly all different, of both signs; "
            "magnitudes near the norms of the rows of the weights",
            fix="use a file that the trainer itself saved, on the base model of the training, and "
            "convert or merge it again",
        ),
    },
    rerun_symptom=True,
)
def adapter_presence(
    adapter: Adapter, config: TrainingConfig | None, base: BaseModel | None
) -> Iterator[Sign | Seen]:
    yield from _nonfinite(adapter)
    if config is not None and config.fine_tune_type == "full" and adapter.tensors:
        return
    unusable = tuple(_unusable(adapter))
    if not adapter.modules and not unusable:
        yield _no_factors(adapter, config)
    yield from _whole_weights(adapter, config)
    yield from unusable
    facts = factor_facts(adapter)
    yield from _zeros(facts, config)
    yield from _untrained_values(facts)
    yield from _same(facts)
    yield from _magnitudes(adapter.modules, base)
    factors = [factor for module in facts for factor in (module.a, module.b)]
    are_trained = all(factor.is_finite and not factor.is_zero for factor in factors)
    if factors and not unusable and are_trained:
        yield Seen(
            "The adapter has {modules} pairs of LoRA factors, all finite and none zero.",
            {"modules": len(facts)},
        )


def _nonfinite(adapter: Adapter) -> Iterator[Sign]:
    if not (bad := nonfinite_values(adapter)):
        return
    counts = {"tensors": len(bad), "values": sum(bad.values())}
    figures = {**counts, "all_tensors": len(adapter.tensors)}
    yield Sign("non-finite", figures, where=some_of(list(bad)))
    half = [name for name in bad if adapter.tensors[name].dtype == "F16"]
    if 2 * len(half) >= len(bad):
        yield Sign("float16-non-finite", {"tensors": len(half)}, where=some_of(half))


def _no_factors(adapter: Adapter, config: TrainingConfig | None) -> Sign:
    if config is not None and config.fine_tune_type not in ("lora", "dora"):
        raise NotApplicable(f"the adapter is of the type {config.fine_tune_type}, not LoRA")
    stated = config.fine_tune_type if config is not None else None
    counts = {"tensors": len(adapter.tensors), "parameters": adapter.parameter_count}
    figures: dict[str, Measurement] = {**counts, "stated": stated}
    severity = Severity.WARNING if config is None and adapter.tensors else None
    return Sign("no-lora-tensors", figures, where=adapter.path.name, severity=severity)


def _whole_weights(adapter: Adapter, config: TrainingConfig | None) -> Iterator[Sign]:
    saved = config.values.get("modules_to_save") if config is not None else None
    intended = tuple(f"{key}." for key in saved) if isinstance(saved, list) else ()
    others = [
        tensor for tensor in adapter.others if not any(key in tensor.name for key in intended)
    ]
    severity = None if config is None else Severity.ERROR
    if adapter.modules:
        severity = Severity.INFO if adapter.naming == "peft" else None
    if others:
        counts = {"tensors": len(others), "parameters": sum(tensor.size for tensor in others)}
        figures: dict[str, Measurement] = {**counts, "file": adapter.path.name}
        where = some_of([tensor.name for tensor in others])
        yield Sign("full-weights", figures, where=where, severity=severity)


def _unusable(adapter: Adapter) -> Iterator[Sign]:
    """Factors that no pair can be made of, by what is wrong with them."""
    factors = {name: tensor for name, tensor in adapter.tensors.items() if ".lora_" in name}
    first = next(iter(adapter.mismatched), "")
    shapes = sorted(
        f"{name.split('lora_')[-1][0].upper()} {tensor.shape}"
        for name, tensor in factors.items()
        if f"{first}.lora_" in name
    )
    layout = "A (inputs, rank) and B (rank, outputs)"
    if adapter.naming == "peft":
        layout = "A (rank, inputs) and B (outputs, rank)"
    types = {tensor.dtype for tensor in factors.values() if not tensor.is_float}
    figures: dict[str, dict[str, Measurement]] = {
        "unpaired": {"file": adapter.path.name},
        "mismatched": {"shapes": ", ".join(shapes), "layout": layout},
        "not_float": {"types": tuple(sorted(types))},
    }
    for fault, more in figures.items():
        if names := getattr(adapter, fault):
            yield Sign("unusable-factors", {fault: len(names), **more}, where=some_of(names))


def _zeros(facts: Sequence[ModuleFacts], config: TrainingConfig | None) -> Iterator[Sign]:
    zero = [module for module in facts if module.b.is_zero]
    if not zero:
        return
    is_every = len(zero) == len(facts)
    start = config.values.get("init_lora_weights") if config is not None else None
    is_uniform = start in (None, True, "true")
    moved = {module.name: None for module in zero if is_uniform and module.a_left_draw}
    drawn = sum(module.a_is_drawn for module in zero)
    counts = {"modules": len(facts), "zero_b": len(zero), "a_as_drawn": drawn}
    if is_every:
        figures = {**counts, "a_drawn": "every" if drawn == len(facts) else None}
        yield Sign("zero-b", figures, where=some_of([module.name for module in zero]))
    if moved:
        yield Sign(
            "a-moved-zero-b",
            {**counts, "a_moved": len(moved)},
            where=some_of(list(moved)),
            severity=Severity.WARNING if is_every or len(moved) < PRUNED * len(facts) else None,
        )
    idle = {module.name: module.layer for module in zero if module.name not in moved}
    if is_every or all(map(_UNUSED.search, idle)):
        return
    # Where other projections stand still as well, keys and values are not shared.
    untrained = [name for name in idle if not _UNUSED.search(name) or name.endswith(_OF_A_LAYER)]
    layers = [module.layer for module in facts if module.layer is not None and not module.b.is_zero]
    first = min(layers, default=0)
    is_below = all((layer := idle[name]) is not None and layer < first for name in untrained)
    measured: dict[str, Measurement] = {**counts, "untrained": len(untrained), "below": is_below}
    measured["first_trained"] = first if is_below else None
    measured["last_untrained"] = first - 1 if is_below else None
    yield Sign("some-zero-b", measured, where=some_of(untrained))


def _untrained_values(facts: Sequence[ModuleFacts]) -> Iterator[Sign]:
    """Signs and levels of the factors; what is not finite says nothing of how it was saved."""
    finite = [module for module in facts if module.is_finite]
    shares = [module.a.rarer_sign for module in finite if module.a.nonzero >= _VALUES]
    if shares and (share := median(shares)) < _ONE_SIDED:
        yield Sign("untrained-values", {"share": share, "modules": len(shares)})
    factors = {"A": [module.a for module in finite], "B": [module.b for module in finite]}
    for letter, each in factors.items():
        levels = [factor.levels for factor in each if factor.nonzero >= _VALUES]
        if levels and (level := round(median(levels))) <= _FEW_LEVELS:
            more: dict[str, Measurement] = {"factor": letter, "different": level}
            yield Sign("untrained-values", {**more, "modules": len(levels)})
            return


def _same(facts: Sequence[ModuleFacts]) -> Iterator[Sign]:
    told = [module for module in facts if min(module.a.nonzero, module.b.size) >= _VALUES]
    same_a, same_b = sharing(told, "A"), sharing(told, "B")
    gradients = "each has gradients of its own"
    drawn = "a trainer leaves that only where it drew them alike or they are one module"
    for names, factors, reason, severity in (
        (same_b - same_a, "their B", gradients, None),
        (same_a & same_b, "both factors", drawn, Severity.WARNING),
        (same_a - same_b, "their A", drawn, Severity.WARNING),
    ):
        if names:
            counts = {"alike": len(names), "modules": len(facts)}
            figures = {"same": factors, "reason": reason}
            where = some_of(sorted(names))
            yield Sign("untrained-values", {**counts, **figures}, where=where, severity=severity)


def _magnitudes(modules: Sequence[LoraModule], base: BaseModel | None) -> Iterator[Sign]:
    """Most modules' magnitudes of DoRA are not norms, or those of another weight."""
    odd = []
    having = [(each, each.magnitude) for each in modules if each.magnitude is not None]
    for module, magnitude in having:
        values = magnitude.load().astype(np.float64).ravel()
        if not values.size or not np.isfinite(values).all():
            continue
        norm = base_norm(module.name, base)
        usual = math.sqrt(min(module.in_features, module.out_features))
        # A weight that is next to nothing soon has a norm that is many times its own.
        norm = norm if norm and norm >= LEAST_SHARE * usual else None
        times = float(np.linalg.norm(values)) / norm if norm else 1.0
        are_alike = len(values) >= _VALUES and np.ptp(values) == 0
        is_off = not 1 / _MAGNITUDES_APART < times < _MAGNITUDES_APART
        if (values < 0).mean() >= 0.5 or are_alike or is_off:
            odd.append(module.name)
    if 2 * len(odd) > len(having):
        counts = {"odd": len(odd), "modules": len(having)}
        yield Sign("untrained-values", counts, where=some_of(odd))
