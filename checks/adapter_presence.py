"""Whether the adapter's file holds a trained adapter.

What it finds. Files without a single LoRA factor although the configuration speaks of
LoRA; a whole model saved in the adapter's place; factors that were never trained, whose
B is still exactly the zero it starts at, in all modules or in some beside others that
were trained; a B that is zero again although A has moved; factors without their partner;
and values that are NaN or infinite, those in float16 apart.

Why it matters. A flag such as `_has_adapter = True` proves nothing: only tensors do. An
adapter whose B is zero changes no output whatever it is loaded on, and one that holds a
NaN makes every output NaN.

How it is measured. Every value is read. B counts as zero only if each of its elements is
exactly zero: one update moves every B that a gradient reaches. mlx-lm and PEFT draw A
uniformly within ±1/sqrt(inputs). A counts as drawn if none of its elements lies outside
and its mean square is within five standard errors of that draw's, and as moved if one
lies outside: A has no gradient while B is zero, and weight decay only makes it smaller,
so that such an A was trained together with a B that was lost.

When it is wrong. An adapter saved before the first update has B at zero and is sound.
Where a model leaves modules unused (experts that no token was sent to, an image tower
without images, keys and values that later layers share) their B stays zero, and a note
says so. Other initialisations of A (PiSSA, Gaussian) are not held to the draw if PEFT's
configuration names them. PEFT stores whole weights on purpose for `modules_to_save`.

What to do. If B is zero, find out why no gradient reached the adapter, or whether the
rate was zero; where only some are, look at what lies between them and the loss. If A has
moved, look at how the file was written. If there are no factors, check that layers were
converted before training: count them. If values are not finite, go back to the last
checkpoint without them.
"""

import re
from collections.abc import Iterator, Sequence

import numpy as np

from mlxdoctor.check import Cost, NotApplicable, check
from mlxdoctor.evidence.adapter import Adapter, LoraModule
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.tensor import TensorRef, count_nonfinite
from mlxdoctor.finding import Seen, Severity, Sign, Symptom, some_of
from mlxdoctor.measure.weights.spectrum import ModuleStatistics, adapter_statistics

_EXAMPLES = 3
#: Of fewer values nobody can say that they should differ; bytes that are looked at first.
_FEWEST_VALUES, _FIRST_BYTES = 16, 256
#: What a sound model may not compute: an expert with tensors of its own, other towers than
#: the language model's, heads for further tokens, and keys and values that layers share.
_UNUSED = re.compile(
    r"\bexperts\.\d+\.|vision|visual|image|audio|speech|\bmtp\b|\b[kv]_proj$", re.IGNORECASE
)
_Pair = tuple[LoraModule, ModuleStatistics]


@check(
    codes={
        "empty": Symptom.error(
            "the file holds no tensor at all",
            expected="two LoRA factors for every adapted module",
            fix="save the trainable parameters after training, and count them before it",
        ),
        "no-lora-tensors": Symptom.error(
            "the file holds no pair of LoRA factors",
            expected="two LoRA factors for every adapted module",
            fix="convert the layers before training, and check that trainable_parameters() names "
            "lora_a and lora_b",
        ),
        "full-weights": Symptom.warning(
            "the file holds whole weights where only factors belong",
            expected="LoRA factors only",
            fix="freeze the model before attaching the adapter, and save only trainable parameters",
        ),
        "zero-b": Symptom.error(
            "every B is exactly zero: the adapter changes nothing",
            expected="B moves away from zero with the first update",
            fix="check that the learning rate is not zero and that gradients reach lora_b",
        ),
        "a-moved-zero-b": Symptom.warning(
            "every B is zero although A is no longer as it was drawn",
            expected="B moves before A",
            fix="check how the adapter was saved or merged",
        ),
        "some-zero-b": Symptom.error(
            "some modules were trained, and the B of others is exactly zero",
            expected="every B moves with the first update",
            fix="check that gradients reach these modules, and that the optimiser has them",
        ),
        "some-a-moved-zero-b": Symptom.error(
            "the B of some modules is zero again although their A has moved",
            expected="B moves before A",
            fix="check how the adapter was saved or merged, and use an earlier file",
        ),
        "unused-zero-b": Symptom.info(
            "the B of modules that a model can leave unused is zero",
            expected="a B that moves, unless the rows never used the module",
            fix="none, if the rows were not meant to use them",
        ),
        "zero-a": Symptom.warning(
            "the A of some modules is exactly zero: they change nothing",
            expected="A starts uniform within ±1/sqrt(inputs)",
            fix="initialise A at random; with A and B both zero neither gets a gradient",
        ),
        "unpaired": Symptom.error(
            "some factors have no partner",
            expected="an A and a B for every adapted module",
            fix="save both factors; a filter on names or a failed save may have dropped one",
        ),
        "mismatched": Symptom.error(
            "the two factors of some modules cannot be multiplied",
            expected="A (inputs, rank) and B (rank, outputs)",
            fix="transpose the factors into the layout of the format that their names are from",
        ),
        "not-float": Symptom.error(
            "the factors are stored in a type that adapters do not have",
            expected="float32, float16 or bfloat16",
            fix="save the adapter again in bfloat16; an adapter is small, and is not quantised",
        ),
        "non-finite": Symptom.error(
            "some values are NaN or infinite",
            expected="finite values only",
            fix="use the last checkpoint without them, and lower the rate before training again",
        ),
        "values-alike": Symptom.error(
            "all values of a factor are the same number, which no training leaves",
            expected="factors that were drawn at random, and trained",
            fix="look for what wrote this file; use a save of the trainer itself",
        ),
        "float16-non-finite": Symptom.warning(
            "the values that are NaN or infinite are stored in float16",
            expected="factors that are trained in float32 or bfloat16",
            fix="train the adapter in float32 or bfloat16: cast what is trainable after it was "
            "attached, and leave the frozen weights as they are",
        ),
    },
    cost=Cost.WEIGHTS,
    rerun_symptom=True,
)
def adapter_presence(adapter: Adapter, config: TrainingConfig | None) -> Iterator[Sign | Seen]:
    """Look for LoRA factors, and for signs that they were trained."""
    file = adapter.path.name
    if not adapter.tensor_count:
        yield Sign("empty", f"{file} holds no tensor.", where=file)
        return
    yield from _nonfinite(adapter)
    yield from _alike(adapter)
    if config is not None and config.fine_tune_type == "full":
        return
    if not (adapter.modules or adapter.unpaired or adapter.mismatched or adapter.not_float):
        yield _no_factors(adapter, config)
    yield from _whole_weights(adapter, config)
    if adapter.unpaired:
        yield Sign(
            "unpaired",
            f"{len(adapter.unpaired)} LoRA factors have no partner in {file}: a "
            "loader puts zeros or random numbers in its place.",
            {"count": len(adapter.unpaired), "pairs": len(adapter.modules)},
            where=some_of(adapter.unpaired),
        )
    if adapter.mismatched:
        is_peft = adapter.naming == "peft"
        yield Sign(
            "mismatched",
            f"The factors of {len(adapter.mismatched)} modules cannot be multiplied: "
            f"{_shapes(adapter, adapter.mismatched[0])}.",
            {"count": len(adapter.mismatched)},
            where=some_of(adapter.mismatched),
            expected="A (rank, inputs) and B (outputs, rank)" if is_peft else None,
        )
    if adapter.not_float:
        yield _not_float(adapter)
    yield from _zeros(adapter, config)
    yield from _sound(adapter)


def _sound(adapter: Adapter) -> Iterator[Seen]:
    stats = adapter_statistics(adapter)
    if not stats or adapter.unpaired or adapter.mismatched or adapter.not_float:
        return
    if not any(
        one.a_nonfinite or one.b_nonfinite or one.a_is_zero or one.b_is_zero for one in stats
    ):
        yield Seen(
            f"The adapter has {len(stats)} pairs of LoRA factors, all finite and none zero.",
            {"modules": len(stats)},
        )


def _not_float(adapter: Adapter) -> Sign:
    types = {
        one.dtype
        for module in adapter.not_float
        for name, one in adapter.tensors.items()
        if f"{module}.lora_" in name and not one.is_float
    }
    return Sign(
        "not-float",
        f"The factors of {len(adapter.not_float)} modules are stored as "
        f"{' and '.join(sorted(types))}, and adapters as F32, F16 or BF16: without the scales that "
        "they were rounded by, nothing gives back what was trained.",
        {"count": len(adapter.not_float), "types": tuple(sorted(types))},
        where=some_of(adapter.not_float),
    )


def _nonfinite(adapter: Adapter) -> Iterator[Sign]:
    counts: dict[str, int] = {}
    for module, one in zip(adapter.modules, adapter_statistics(adapter), strict=True):
        counts |= {module.a.name: one.a_nonfinite, module.b.name: one.b_nonfinite}
    for name, tensor in adapter.tensors.items():
        if name not in counts:
            counts[name] = count_nonfinite(tensor)
    bad = [name for name, count in counts.items() if count]
    if bad:
        values = sum(counts.values())
        share = values / max(adapter.parameter_count, 1)
        yield Sign(
            "non-finite",
            f"{values:,} values in {len(bad)} of {adapter.tensor_count} tensors are NaN or "
            "infinite.",
            {"tensors": len(bad), "values": values, "share_of_values": share},
            where=some_of(bad),
        )
    half = [name for name in bad if adapter.tensors[name].dtype == "F16"]
    if half and 2 * len(half) >= len(bad):
        yield Sign(
            "float16-non-finite",
            f"{len(half)} tensors with such values are stored in float16. Trained in it, numbers "
            "overflow above 65,504, and Adam's epsilon of 1e-8 is zero, so that it divides by zero "
            "wherever a gradient is small.",
            {"tensors": len(half), "non_finite_tensors": len(bad)},
            where=some_of(half),
        )


def _alike(adapter: Adapter) -> Iterator[Sign]:
    """Factors with one value throughout; a B of zeros is what LoRA starts from."""
    found = [
        tensor.name
        for module in adapter.modules
        for tensor in (module.a, module.b)
        if _is_constant(tensor)
    ]
    if found:
        yield Sign(
            "values-alike",
            f"All values of {len(found)} of {2 * len(adapter.modules)} factors are the same "
            "number: LoRA starts from random ones, and no training makes them alike.",
            {"factors": len(found), "modules": len(adapter.modules)},
            where=some_of(found),
        )


def _is_constant(tensor: TensorRef) -> bool:
    if tensor.size < _FEWEST_VALUES:
        return False
    # The first few tell of nearly every factor that its values differ.
    first = next(tensor.blocks(_FIRST_BYTES))
    if first[0] == 0 or not np.all(first == first[0]):
        return False
    return bool(np.all(tensor.load() == first[0]))


def _no_factors(adapter: Adapter, config: TrainingConfig | None) -> Sign:
    if config is not None and config.fine_tune_type not in ("lora", "dora"):
        raise NotApplicable(f"the adapter is of the type {config.fine_tune_type}, not LoRA")
    said = f"the configuration says {config.fine_tune_type}" if config else "it is an adapter file"
    return Sign(
        "no-lora-tensors",
        f"{adapter.path.name} holds {adapter.tensor_count:,} tensors and not one complete pair of "
        f"LoRA factors, although {said}.",
        {
            "tensors": adapter.tensor_count,
            "parameters": adapter.parameter_count,
            "pairs": 0,
            "examples": tuple(list(adapter.tensors)[:_EXAMPLES]),
        },
        where=adapter.path.name,
        severity=None if config is not None else Severity.WARNING,
    )


def _whole_weights(adapter: Adapter, config: TrainingConfig | None) -> Iterator[Sign]:
    saved = config.values.get("modules_to_save") if config is not None else None
    intended = tuple(f"{key}." for key in saved) if isinstance(saved, list) else ()
    others = [one for one in adapter.others if not any(key in one.name for key in intended)]
    if not others:
        return
    severity = None
    if adapter.modules and adapter.naming == "peft":
        severity = Severity.INFO
    elif not adapter.modules and config is not None:
        severity = Severity.ERROR
    names = [one.name for one in others]
    numbers = sum(one.size for one in others)
    yield Sign(
        "full-weights",
        f"{adapter.path.name} holds {len(others):,} tensors with {numbers:,} numbers that are no "
        "LoRA factors: weights of the model itself were saved, so they were trainable.",
        {
            "tensors": len(others),
            "parameters": numbers,
            "share_of_file": numbers / max(adapter.parameter_count, 1),
            "examples": tuple(names[:_EXAMPLES]),
        },
        where=some_of(names),
        severity=severity,
    )


def _shapes(adapter: Adapter, module: str) -> str:
    found = {
        name.split("lora_")[-1][0].upper(): one.shape
        for name, one in adapter.tensors.items()
        if f"{module}.lora_" in name
    }
    return ", ".join(f"{role} {found[role]}" for role in "AB" if role in found)


def _zeros(adapter: Adapter, config: TrainingConfig | None) -> Iterator[Sign]:
    pairs = list(zip(adapter.modules, adapter_statistics(adapter), strict=True))
    zero_b = [pair for pair in pairs if pair[1].b_is_zero]
    zero_a = [module.name for module, one in pairs if one.a_is_zero]
    moved = _moved(zero_b, config)
    if zero_b and len(zero_b) == len(pairs):
        drawn = sum(one.a_is_initial for _, one in zero_b)
        yield Sign(
            "zero-b",
            f"The B of all {len(pairs)} modules is exactly zero, so the adapter changes nothing"
            + ("; every A is still as it was drawn." if drawn == len(pairs) else "."),
            {"modules": len(pairs), "zero_b": len(zero_b), "a_as_drawn": drawn},
            where=some_of([module.name for module, _ in zero_b]),
        )
        if moved:
            yield Sign(
                "a-moved-zero-b",
                f"In {len(moved)} of {len(pairs)} modules A lies outside the draw it started from "
                "while B is exactly zero; training cannot do that, because A gets no gradient "
                "before B moves.",
                {"modules": len(pairs), "a_as_drawn": drawn, "a_moved": len(moved)},
            )
    elif zero_b:
        yield from _some_zero(zero_b, pairs, moved)
    if zero_a:
        yield Sign(
            "zero-a",
            f"The A of {len(zero_a)} of {len(pairs)} modules is exactly zero, so they change "
            "nothing.",
            {"modules": len(pairs), "zero_a": len(zero_a)},
            where=some_of(zero_a),
            severity=Severity.ERROR if len(zero_a) == len(pairs) else None,
        )


def _moved(pairs: Sequence[_Pair], config: TrainingConfig | None) -> list[str]:
    """Those whose A lies outside the draw, where the draw is known to be the uniform one."""
    start = config.values.get("init_lora_weights") if config is not None else None
    if start not in (None, True, "true"):
        return []
    return [module.name for module, one in pairs if one.a_draw == "beyond"]


def _some_zero(
    zero_b: Sequence[_Pair], pairs: Sequence[_Pair], erased: Sequence[str]
) -> Iterator[Sign]:
    idle = [(module, one) for module, one in zero_b if module.name not in erased]
    unused = [module.name for module, _ in idle if _UNUSED.search(module.name)]
    if len(unused) < len(idle):
        # Other projections of a layer stand still as well: its keys and values are not shared.
        unused = [name for name in unused if not name.endswith(("k_proj", "v_proj"))]
    untrained = [(module, one) for module, one in idle if module.name not in unused]
    counts = {"modules": len(pairs), "zero_b": len(zero_b)}
    if erased:
        yield Sign(
            "some-a-moved-zero-b",
            f"The B of {len(erased)} of {len(pairs)} modules is exactly zero although their A "
            "lies outside the draw it started from: they were trained, and their B was lost.",
            {**counts, "a_moved": len(erased)},
            where=some_of(erased),
        )
    if untrained:
        drawn = sum(one.a_is_initial for _, one in untrained)
        trained = [module for module, one in pairs if not one.b_is_zero]
        first = _first_above([module for module, _ in untrained], trained)
        yield Sign(
            "some-zero-b",
            f"The B of {len(untrained)} of {len(pairs)} modules is exactly zero while others were "
            "trained: no gradient reached them"
            + (f"; all of them lie before layer {first}." if first else "."),
            {
                **counts,
                "untrained": len(untrained),
                "a_as_drawn": drawn,
                "below": first is not None,
            },
            where=some_of([module.name for module, _ in untrained]),
            fix=f"look for what stops gradients on their way down to layer {first - 1}"
            if first
            else None,
        )
    if unused:
        yield Sign(
            "unused-zero-b",
            f"The B of {len(unused)} of {len(pairs)} modules is exactly zero, all of a kind that "
            "a model can leave unused.",
            {**counts, "unused": len(unused)},
            where=some_of(unused),
        )


def _first_above(idle: Sequence[LoraModule], trained: Sequence[LoraModule]) -> int | None:
    """The first trained layer, if every module that stands still lies below it."""
    first = min((one.layer for one in trained if one.layer is not None), default=None)
    if first is None or any(one.layer is None or one.layer >= first for one in idle):
        return None
    return first
