"""Whether the adapter's file holds a trained adapter.

What it finds. Files without a single LoRA factor although the configuration speaks of
LoRA; a whole model saved in the adapter's place; factors that were never trained, whose
B is still exactly the zero it starts at, in all modules or in some beside others that
were trained; a B that is zero again although A has moved; factors without their partner;
values that are NaN or infinite, those in float16 apart; and values that no training
leaves: of one sign, of a handful of numbers, the same in several modules, or magnitudes
of DoRA that are not the norms that they start as.

Why it matters. A flag such as `_has_adapter = True` proves nothing: only tensors do. An
adapter whose B is zero changes no output whatever it is loaded on, and one that holds a
NaN makes every output NaN. Values that a conversion or a rounding spoilt have names and
norms in order, and the model answers with noise.

How it is measured. Every value is read. B counts as zero only if each of its elements is
exactly zero: one update moves every B that a gradient reaches. mlx-lm and PEFT draw A
uniformly within ±1/sqrt(inputs). A counts as drawn if none of its elements lies outside
and its mean square is within five standard errors of that draw's, and as moved if one
lies outside: A has no gradient while B is zero, and weight decay only makes it smaller,
so that such an A was trained together with a B that was lost. Signs and different values
are counted among the first 1,024 of a factor. A magnitude starts as the norm of a row of
weights; those of a module together have the norm of its weight, with which they are
compared where the base is at hand.

When it is wrong. An adapter saved before the first update has B at zero and is sound.
Where a model leaves modules unused (experts that no token was sent to, an image tower
without images, keys and values that later layers share) their B stays zero, and they are
not counted. Other initialisations of A (PiSSA, Gaussian) are not held to the draw if
PEFT's configuration names them. PEFT stores whole weights on purpose for
`modules_to_save`. A model that uses one module in several places has its factors several
times, which is a warning only.

What to do. If B is zero, find out why no gradient reached the adapter, or whether the
rate was zero; where only some are, look at what lies between them and the loss. If A has
moved, look at how the file was written. If there are no factors, check that layers were
converted before training: count them. If values are not finite, go back to the last
checkpoint without them. If they are not those of training, use a save of the trainer
itself, and convert or merge it anew.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from mlxdoctor.check import NotApplicable, check, limit
from mlxdoctor.engines.tensors import FactorFacts, ModuleFacts, sharing
from mlxdoctor.evidence.adapter import Adapter, LoraModule
from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.finding import Seen, Severity, Sign, Symptom, some_of
from mlxdoctor.measure.weights.adapter_facts import base_norm, factor_facts, nonfinite_values

_EXAMPLES = 3
#: What a sound model may not compute: an expert with tensors of its own, other towers than
#: the language model's, heads for further tokens, and keys and values that layers share.
_UNUSED = re.compile(
    r"\bexperts\.\d+\.|vision|visual|image|audio|speech|\bmtp\b|\b[kv]_proj$", re.IGNORECASE
)
_ANOTHER_SAVE = "use a save of the trainer itself, and convert or merge it anew"


@dataclass(frozen=True)
class Limits:
    """When values are not those of training."""

    values: int = limit(
        64, unit="values that are looked at", source="of fewer, some may be alike by chance"
    )
    one_sided: float = limit(
        0.05,
        unit="share of the rarer sign among the first values of A, median over modules",
        source="a draw around zero has half of either",
        false_alarms="0 of 100 sound adapters (reports/bypasses.md)",
    )
    few: int = limit(
        8,
        unit="different values among the first of a factor, median over modules",
        source="roundings to 1 and 2 bits leave 2 and 3; 4 bits in blocks a hundred",
        false_alarms="0 of 100 sound adapters, 10 of them in half precision",
    )
    apart: float = limit(
        2.0,
        unit="times, either way: norm of a module's magnitudes over that of its weight",
        source="they start at 1; training moves the median magnitude by 1 to 8 percent",
        false_alarms="0 of 100 sound adapters, those with DoRA among them",
    )


@check(
    codes={
        "empty": Symptom.error(
            "the file holds no tensor at all",
            says="{where} holds no tensor.",
            expected="two LoRA factors for every adapted module",
            fix="save the trainable parameters after training, and count them before it",
        ),
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
        "unpaired": Symptom.error(
            "some factors have no partner",
            says="{count} LoRA factors have no partner in {file}: a loader puts zeros or random "
            "numbers in its place.",
            expected="an A and a B for every adapted module",
            fix="save both factors; a filter on names or a failed save may have dropped one",
        ),
        "mismatched": Symptom.error(
            "the two factors of some modules cannot be multiplied",
            says="The factors of {count} modules cannot be multiplied: {shapes}.",
            expected="[{peft_layout}|A (inputs, rank) and B (rank, outputs)]",
            fix="transpose the factors into the layout of the format that their names are from",
        ),
        "not-float": Symptom.error(
            "the factors are stored in a type that adapters do not have",
            says="The factors of {count} modules are stored as {types}, and adapters as F32, F16 "
            "or BF16: without the scales that they were rounded by, nothing gives back what was "
            "trained.",
            expected="float32, float16 or bfloat16",
            fix="save the adapter again in bfloat16; an adapter is small, and is not quantised",
        ),
        "non-finite": Symptom.error(
            "some values are NaN or infinite",
            says="{values:,} values in {tensors} of {all_tensors} tensors are NaN or infinite.",
            expected="finite values only",
            fix="use the last checkpoint without them, and lower the rate before training again",
        ),
        "float16-non-finite": Symptom.warning(
            "the values that are NaN or infinite are stored in float16",
            says="{tensors} tensors with such values are stored in float16. Trained in it, numbers "
            "overflow above 65,504, and Adam's epsilon of 1e-8 is zero, so that it divides by zero "
            "wherever a gradient is small.",
            expected="factors that are trained in float32 or bfloat16",
            fix="train the adapter in float32 or bfloat16: cast what is trainable after it was "
            "attached, and leave the frozen weights as they are",
        ),
        "one-sided": Symptom.error(
            "all values of A have the same sign, which no start and no training leaves",
            says="Nearly all values of A have the same sign (median of {modules} modules: "
            "{share:.1%} have the other): A starts evenly around zero.",
            expected="about as many values below zero as above",
            fix=_ANOTHER_SAVE,
        ),
        "few-values": Symptom.error(
            "factors consist of a handful of values, which no training leaves",
            says="[All values of {constant} of {factors} factors are the same number|{factor} "
            "consists of {different:g} different values (median of {modules} modules)]: LoRA "
            "starts from random ones, and training leaves nearly all of them different.",
            expected="factors in float32, float16 or bfloat16, nearly all values different",
            fix="use a save of the trainer itself; an adapter is small, and is not quantised",
        ),
        "same-factors": Symptom.error(
            "several modules have exactly the same factors",
            says="{alike} of {modules} modules share {factor} with another one, number by number: "
            "[{reason}|each has gradients of its own].",
            expected="factors of its own for every module",
            fix=_ANOTHER_SAVE,
        ),
        "other-magnitudes": Symptom.error(
            "magnitudes of DoRA are not norms of this base model's weights",
            says="The magnitudes of {odd} of {modules} modules are below zero, all one number, or "
            "far from the norms of the base model's weights, which they start as.",
            expected="the norms of the rows of the weights, a little moved",
            fix="use a save of the trainer itself, on the base model that it was trained on",
        ),
    },
    limits=Limits(),
    rerun_symptom=True,
)
def adapter_presence(
    adapter: Adapter, config: TrainingConfig | None, base: BaseModel | None, limits: Limits
) -> Iterator[Sign | Seen]:
    """Look for LoRA factors, and for signs that they were trained."""
    file = adapter.path.name
    if not adapter.tensor_count:
        yield Sign("empty", {"tensors": 0}, where=file)
        return
    yield from _nonfinite(adapter)
    if config is not None and config.fine_tune_type == "full":
        return
    unusable = (*adapter.unpaired, *adapter.mismatched, *adapter.not_float)
    if not adapter.modules and not unusable:
        yield _no_factors(adapter, config)
    yield from _whole_weights(adapter, config)
    if adapter.unpaired:
        yield Sign(
            "unpaired",
            {"count": len(adapter.unpaired), "pairs": len(adapter.modules), "file": file},
            where=some_of(adapter.unpaired),
        )
    if adapter.mismatched:
        yield _mismatched(adapter)
    if adapter.not_float:
        yield _not_float(adapter)
    facts = factor_facts(adapter)
    yield from _zeros(facts, config)
    yield from _values(facts, limits)
    yield from _magnitudes(adapter.modules, base, limits)
    if (
        facts
        and not unusable
        and all(_is_sound(module.a) and _is_sound(module.b) for module in facts)
    ):
        yield Seen(
            "The adapter has {modules} pairs of LoRA factors, all finite and none zero.",
            {"modules": len(facts)},
        )


def _is_sound(factor: FactorFacts) -> bool:
    return factor.is_finite and not factor.is_zero


def _nonfinite(adapter: Adapter) -> Iterator[Sign]:
    bad = nonfinite_values(adapter)
    if not bad:
        return
    values = sum(bad.values())
    measured = {
        "tensors": len(bad),
        "all_tensors": adapter.tensor_count,
        "values": values,
    }
    yield Sign("non-finite", measured, where=some_of(list(bad)))
    half = [name for name in bad if adapter.tensors[name].dtype == "F16"]
    if half and 2 * len(half) >= len(bad):
        yield Sign("float16-non-finite", {"tensors": len(half)}, where=some_of(half))


def _no_factors(adapter: Adapter, config: TrainingConfig | None) -> Sign:
    if config is not None and config.fine_tune_type not in ("lora", "dora"):
        raise NotApplicable(f"the adapter is of the type {config.fine_tune_type}, not LoRA")
    return Sign(
        "no-lora-tensors",
        {
            "tensors": adapter.tensor_count,
            "parameters": adapter.parameter_count,
            "pairs": 0,
            "examples": tuple(list(adapter.tensors)[:_EXAMPLES]),
            "stated": config.fine_tune_type if config is not None else None,
        },
        where=adapter.path.name,
        severity=None if config is not None else Severity.WARNING,
    )


def _whole_weights(adapter: Adapter, config: TrainingConfig | None) -> Iterator[Sign]:
    saved = config.values.get("modules_to_save") if config is not None else None
    intended = tuple(f"{key}." for key in saved) if isinstance(saved, list) else ()
    others = [
        tensor for tensor in adapter.others if not any(key in tensor.name for key in intended)
    ]
    if not others:
        return
    severity = None
    if adapter.modules and adapter.naming == "peft":
        severity = Severity.INFO
    elif not adapter.modules and config is not None:
        severity = Severity.ERROR
    names = [tensor.name for tensor in others]
    numbers = sum(tensor.size for tensor in others)
    yield Sign(
        "full-weights",
        {
            "tensors": len(others),
            "parameters": numbers,
            "examples": tuple(names[:_EXAMPLES]),
            "file": adapter.path.name,
        },
        where=some_of(names),
        severity=severity,
    )


def _mismatched(adapter: Adapter) -> Sign:
    shapes = {
        name.split("lora_")[-1][0].upper(): tensor.shape
        for name, tensor in adapter.tensors.items()
        if f"{adapter.mismatched[0]}.lora_" in name
    }
    is_peft = adapter.naming == "peft"
    return Sign(
        "mismatched",
        {
            "count": len(adapter.mismatched),
            "shapes": ", ".join(f"{role} {shapes[role]}" for role in "AB" if role in shapes),
            "peft_layout": "A (rank, inputs) and B (outputs, rank)" if is_peft else None,
        },
        where=some_of(adapter.mismatched),
    )


def _not_float(adapter: Adapter) -> Sign:
    types = {
        tensor.dtype
        for module in adapter.not_float
        for name, tensor in adapter.tensors.items()
        if f"{module}.lora_" in name and not tensor.is_float
    }
    return Sign(
        "not-float",
        {"count": len(adapter.not_float), "types": tuple(sorted(types))},
        where=some_of(adapter.not_float),
    )


def _zeros(facts: Sequence[ModuleFacts], config: TrainingConfig | None) -> Iterator[Sign]:
    zero = [module for module in facts if module.b.is_zero]
    if not zero:
        return
    start = config.values.get("init_lora_weights") if config is not None else None
    is_uniform = start in (None, True, "true")
    moved = [module.name for module in zero if is_uniform and module.a_left_draw]
    counts = {
        "modules": len(facts),
        "zero_b": len(zero),
        "a_as_drawn": sum(module.a_is_drawn for module in zero),
    }
    if len(zero) == len(facts):
        drawn = "every" if counts["a_as_drawn"] == len(facts) else None
        where = some_of([module.name for module in zero])
        yield Sign("zero-b", {**counts, "a_drawn": drawn}, where=where)
    is_every = len(zero) == len(facts)
    if moved:
        yield Sign(
            "a-moved-zero-b",
            {**counts, "a_moved": len(moved)},
            where=some_of(moved),
            severity=Severity.WARNING if is_every else None,
        )
    if is_every:
        return
    idle = [module for module in zero if module.name not in moved]
    untrained = [module for module in idle if not _UNUSED.search(module.name)]
    if untrained:
        # Other projections of a layer stand still as well: its keys and values are not shared.
        shared = [module for module in idle if module.name.endswith(("k_proj", "v_proj"))]
        untrained = [module for module in idle if module in untrained or module in shared]
        first = _first_above(untrained, [module for module in facts if not module.b.is_zero])
        yield Sign(
            "some-zero-b",
            {
                **counts,
                "untrained": len(untrained),
                "below": first is not None,
                "first_trained": first,
                "last_untrained": first - 1 if first is not None else None,
            },
            where=some_of([module.name for module in untrained]),
        )


def _first_above(idle: Sequence[ModuleFacts], trained: Sequence[ModuleFacts]) -> int | None:
    """The first trained layer, if every module that stands still lies below it."""
    first = min((module.layer for module in trained if module.layer is not None), default=None)
    if first is None or any(module.layer is None or module.layer >= first for module in idle):
        return None
    return first


def _values(facts: Sequence[ModuleFacts], limits: Limits) -> Iterator[Sign]:
    """Values that no training leaves; what is not finite says nothing of how it was saved."""
    finite = [module for module in facts if module.is_finite]
    shares = [module.a.rarer_sign for module in finite if module.a.nonzero >= limits.values]
    if shares and (share := median(shares)) < limits.one_sided:
        yield Sign("one-sided", {"share": share, "modules": len(shares)})
    factors = [("A", module.a) for module in finite] + [("B", module.b) for module in finite]
    constant = sum(factor.is_constant for _, factor in factors)
    for letter in "AB":
        levels = [
            factor.levels
            for name, factor in factors
            if name == letter and factor.nonzero >= limits.values
        ]
        if constant or (levels and median(levels) <= limits.few):
            measured = {
                "factor": letter,
                "different": median(levels) if levels else 1,
                "modules": len(levels),
                "constant": constant or None,
                "factors": len(factors),
            }
            yield Sign("few-values", measured)
            break
    yield from _same(facts, limits)


def _same(facts: Sequence[ModuleFacts], limits: Limits) -> Iterator[Sign]:
    told = [module for module in facts if min(module.a.nonzero, module.b.size) >= limits.values]
    same_a, same_b = sharing(told, "A"), sharing(told, "B")
    reason = "a trainer leaves that only where it drew them alike or they are one module"
    for names, factor, why in (
        (same_b - same_a, "their B", None),
        (same_a & same_b, "both factors", reason),
        (same_a - same_b, "their A", reason),
    ):
        if names:
            yield Sign(
                "same-factors",
                {"alike": len(names), "modules": len(facts), "factor": factor, "reason": why},
                where=some_of(sorted(names)),
                severity=Severity.WARNING if why else None,
            )


def _magnitudes(
    modules: Sequence[LoraModule], base: BaseModel | None, limits: Limits
) -> Iterator[Sign]:
    """Most modules' magnitudes of DoRA are not norms, or those of another weight."""
    having = [module for module in modules if module.magnitude is not None]
    odd = [module.name for module in having if _are_no_norms(module, base, limits)]
    if 2 * len(odd) > len(having):
        figures = {"odd": len(odd), "modules": len(having)}
        yield Sign("other-magnitudes", figures, where=some_of(odd))


def _are_no_norms(module: LoraModule, base: BaseModel | None, limits: Limits) -> bool:
    if module.magnitude is None or not module.magnitude.is_float or not module.magnitude.size:
        return False
    values = module.magnitude.load().astype(np.float64).ravel()
    if not np.isfinite(values).all():
        return False
    is_constant = len(values) >= limits.values and np.ptp(values) == 0
    own, norm = float(np.linalg.norm(values)), base_norm(module, base)
    is_apart = norm is not None and norm > 0 and not 1 / limits.apart < own / norm < limits.apart
    return bool(is_constant or is_apart or (values < 0).mean() >= 0.5)
