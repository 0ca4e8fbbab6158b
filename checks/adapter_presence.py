"""Whether the adapter's file holds a trained adapter.

What it finds. Files without a single LoRA factor although the configuration speaks of
LoRA; a whole model saved in the adapter's place; factors that were never trained, whose
B is still exactly the zero it starts at, in all modules or in some beside others that
were trained; a B that is zero again although A has moved; factors without their partner;
and values that are NaN or infinite.

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

from mlxdoctor.check import Cost, NotApplicable, check
from mlxdoctor.evidence.adapter import Adapter, LoraModule
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.tensor import TensorRef, count_nonfinite
from mlxdoctor.finding import Finding, Severity
from mlxdoctor.measure.weights.spectrum import ModuleStatistics

_EXAMPLES = 3
#: What a sound model may not compute: an expert with tensors of its own, other towers than
#: the language model's, heads for further tokens, and keys and values that layers share.
_UNUSED = re.compile(
    r"\bexperts\.\d+\.|vision|visual|image|audio|speech|\bmtp\b|\b[kv]_proj$", re.IGNORECASE
)
_Pair = tuple[LoraModule, ModuleStatistics]


def _examples(names: Sequence[str]) -> str:
    more = len(names) - _EXAMPLES
    return ", ".join(names[:_EXAMPLES]) + (f" and {more} more" if more > 0 else "")


def _is_full(config: TrainingConfig | None) -> bool:
    return config is not None and config.fine_tune_type == "full"


@check(
    codes={
        "empty": "the file holds no tensor at all",
        "no-lora-tensors": "the file holds no pair of LoRA factors",
        "full-weights": "the file holds whole weights where only factors belong",
        "zero-b": "every B is exactly zero: the adapter changes nothing",
        "a-moved-zero-b": "every B is zero although A is no longer as it was drawn",
        "some-zero-b": "some modules were trained, and the B of others is exactly zero",
        "some-a-moved-zero-b": "the B of some modules is zero again although their A has moved",
        "unused-zero-b": "the B of modules that a model can leave unused is zero",
        "zero-a": "the A of some modules is exactly zero: they change nothing",
        "unpaired": "some factors have no partner",
        "mismatched": "the two factors of some modules cannot be multiplied",
        "non-finite": "some values are NaN or infinite",
    },
    cost=Cost.WEIGHTS,
    decisive=True,
    rerun_symptom=True,
)
def adapter_presence(adapter: Adapter, config: TrainingConfig | None) -> Iterator[Finding]:
    """Look for LoRA factors, and for signs that they were trained."""
    if not adapter.tensor_count:
        yield Finding(
            "adapter-presence.empty",
            Severity.ERROR,
            f"{adapter.path.name} holds no tensor.",
            expected="two LoRA factors for every adapted module",
            where=adapter.path.name,
            fix="save the trainable parameters after training, and count them before it",
        )
        return
    yield from _nonfinite(adapter)
    if _is_full(config):
        return
    halves = not adapter.modules and bool(adapter.unpaired)
    if not adapter.modules and not halves:
        yield from _no_factors(adapter, config)
    elif adapter.others:
        yield from _whole_weights(adapter, adapter.others, config)
    yield from _broken_pairs(adapter)
    yield from _zeros(adapter, config)


def _no_factors(adapter: Adapter, config: TrainingConfig | None) -> Iterator[Finding]:
    certain = config is not None and config.fine_tune_type in ("lora", "dora")
    if config is not None and not certain:
        raise NotApplicable(f"the adapter is of the type {config.fine_tune_type}, not LoRA")
    said = f"the configuration says {config.fine_tune_type}" if config else "it is an adapter file"
    yield Finding(
        "adapter-presence.no-lora-tensors",
        Severity.ERROR if certain else Severity.WARNING,
        f"{adapter.path.name} holds {adapter.tensor_count:,} tensors and not one complete pair of "
        f"LoRA factors, although {said}.",
        measured={
            "tensors": adapter.tensor_count,
            "parameters": adapter.parameter_count,
            "pairs": 0,
            "examples": tuple(list(adapter.tensors)[:_EXAMPLES]),
        },
        expected="two LoRA factors for every adapted module",
        where=adapter.path.name,
        fix="convert the layers before training, and check that trainable_parameters() names "
        "lora_a and lora_b",
    )
    if adapter.others:
        yield from _whole_weights(adapter, adapter.others, config)


def _whole_weights(
    adapter: Adapter, others: Sequence[TensorRef], config: TrainingConfig | None
) -> Iterator[Finding]:
    saved = config.values.get("modules_to_save") if config is not None else None
    intended = adapter.naming == "peft" and bool(adapter.modules)
    if isinstance(saved, list):
        others = [one for one in others if not any(f"{key}." in one.name for key in saved)]
    if not others:
        return
    numbers = sum(one.size for one in others)
    severity = Severity.WARNING if adapter.modules or config is None else Severity.ERROR
    yield Finding(
        "adapter-presence.full-weights",
        Severity.INFO if intended else severity,
        f"{adapter.path.name} holds {len(others):,} tensors with {numbers:,} numbers that are no "
        "LoRA factors: weights of the model itself were saved, so they were trainable.",
        measured={
            "tensors": len(others),
            "parameters": numbers,
            "share_of_file": numbers / max(adapter.parameter_count, 1),
            "examples": tuple(one.name for one in others[:_EXAMPLES]),
        },
        expected="LoRA factors only",
        where=_examples([one.name for one in others]),
        fix="freeze the model before attaching the adapter, and save only trainable parameters",
    )


def _broken_pairs(adapter: Adapter) -> Iterator[Finding]:
    if adapter.unpaired:
        yield Finding(
            "adapter-presence.unpaired",
            Severity.ERROR,
            f"{len(adapter.unpaired)} LoRA factors have no partner in {adapter.path.name}: a "
            "loader puts zeros or random numbers in its place.",
            measured={"count": len(adapter.unpaired), "pairs": len(adapter.modules)},
            expected="an A and a B for every adapted module",
            where=_examples(adapter.unpaired),
            fix="save both factors; a filter on names or a failed save may have dropped one",
        )
    if adapter.mismatched:
        yield Finding(
            "adapter-presence.mismatched",
            Severity.ERROR,
            f"The factors of {len(adapter.mismatched)} modules cannot be multiplied: "
            f"{_shapes(adapter, adapter.mismatched[0])}.",
            measured={"count": len(adapter.mismatched)},
            expected="A (inputs, rank) and B (rank, outputs)"
            if adapter.naming == "mlx-lm"
            else "A (rank, inputs) and B (outputs, rank)",
            where=_examples(adapter.mismatched),
            fix="transpose the factors into the layout of the format that their names are from",
        )


def _shapes(adapter: Adapter, module: str) -> str:
    found = [one for name, one in adapter.tensors.items() if f"{module}.lora_" in name]
    return ", ".join(f"{one.name.split('lora_')[-1][0].upper()} {one.shape}" for one in found)


def _zeros(adapter: Adapter, config: TrainingConfig | None) -> Iterator[Finding]:
    pairs = list(zip(adapter.modules, adapter.statistics, strict=True))
    zero_b = [(module, one) for module, one in pairs if one.b_is_zero]
    zero_a = [module.name for module, one in pairs if one.a_is_zero]
    drawn = sum(one.a_is_initial for _, one in zero_b)
    moved = _moved(zero_b, config)
    if zero_b and len(zero_b) == len(pairs):
        yield Finding(
            "adapter-presence.zero-b",
            Severity.ERROR,
            f"The B of all {len(pairs)} modules is exactly zero, so the adapter changes nothing"
            + ("; every A is still as it was drawn." if drawn == len(pairs) else "."),
            measured={"modules": len(pairs), "zero_b": len(zero_b), "a_as_drawn": drawn},
            expected="B moves away from zero with the first update",
            where=_examples([module.name for module, _ in zero_b]),
            fix="check that the learning rate is not zero and that gradients reach lora_b",
        )
        if moved:
            yield Finding(
                "adapter-presence.a-moved-zero-b",
                Severity.WARNING,
                f"In {len(moved)} of {len(pairs)} modules A lies outside the draw it started from "
                "while B is exactly zero; training cannot do that, because A gets no gradient "
                "before B moves.",
                measured={"modules": len(pairs), "a_as_drawn": drawn, "a_moved": len(moved)},
                expected="B moves before A",
                fix="check how the adapter was saved or merged",
            )
    elif zero_b:
        yield from _some_zero(zero_b, pairs, moved)
    if zero_a:
        yield Finding(
            "adapter-presence.zero-a",
            Severity.ERROR if len(zero_a) == len(pairs) else Severity.WARNING,
            f"The A of {len(zero_a)} of {len(pairs)} modules is exactly zero, so they change "
            "nothing.",
            measured={"modules": len(pairs), "zero_a": len(zero_a)},
            expected="A starts uniform within ±1/sqrt(inputs)",
            where=_examples(zero_a),
            fix="initialise A at random; with A and B both zero neither gets a gradient",
        )


def _moved(pairs: Sequence[_Pair], config: TrainingConfig | None) -> list[_Pair]:
    """Those whose A lies outside the draw, where the draw is known to be the uniform one."""
    start = config.values.get("init_lora_weights") if config is not None else None
    if start not in (None, True, "true"):
        return []
    return [(module, one) for module, one in pairs if one.a_draw == "beyond"]


def _some_zero(
    zero_b: Sequence[_Pair], pairs: Sequence[_Pair], moved: Sequence[_Pair]
) -> Iterator[Finding]:
    erased = [module.name for module, _ in moved]
    idle = [module for module, one in zero_b if module.name not in erased]
    unused = [module.name for module in idle if _UNUSED.search(module.name)]
    # Where other projections of a layer stand still as well, its keys and values are not shared.
    untrained = [module for module in idle if module.name not in unused]
    if untrained:
        unused = [name for name in unused if not name.endswith(("k_proj", "v_proj"))]
        untrained = [module for module in idle if module.name not in unused]
    counts = {"modules": len(pairs), "zero_b": len(zero_b)}
    if erased:
        yield Finding(
            "adapter-presence.some-a-moved-zero-b",
            Severity.ERROR,
            f"The B of {len(erased)} of {len(pairs)} modules is exactly zero although their A "
            "lies outside the draw it started from: they were trained, and their B was lost.",
            measured={**counts, "a_moved": len(erased)},
            expected="B moves before A",
            where=_examples(erased),
            fix="check how the adapter was saved or merged, and use an earlier file",
        )
    if untrained:
        names = [module.name for module in untrained]
        zero = {module.name for module, _ in zero_b}
        trained = [module.layer for module, _ in pairs if module.name not in zero]
        below = _all_below([module.layer for module in untrained], trained)
        drawn = sum(one.a_is_initial for module, one in zero_b if module.name in names)
        first = min(layer for layer in trained if layer is not None) if below else None
        yield Finding(
            "adapter-presence.some-zero-b",
            Severity.ERROR,
            f"The B of {len(names)} of {len(pairs)} modules is exactly zero while others were "
            "trained: no gradient reached them"
            + (f"; all of them lie before layer {first}." if below else "."),
            measured={**counts, "untrained": len(names), "a_as_drawn": drawn, "below": below},
            expected="every B moves with the first update",
            where=_examples(names),
            fix=f"look for what stops gradients on their way down to layer {(first or 1) - 1}"
            if below
            else "check that gradients reach these modules, and that the optimiser has them",
        )
    if unused:
        yield Finding(
            "adapter-presence.unused-zero-b",
            Severity.INFO,
            f"The B of {len(unused)} of {len(pairs)} modules is exactly zero, all of a kind that "
            "a model can leave unused.",
            measured={**counts, "unused": len(unused)},
            expected="a B that moves, unless the rows never used the module",
            where=_examples(unused),
            fix="none, if the rows were not meant to use them",
        )


def _all_below(zero: Sequence[int | None], trained: Sequence[int | None]) -> bool:
    """Whether every module that stands still lies in a layer before all trained ones."""
    low = [layer for layer in zero if layer is not None]
    high = [layer for layer in trained if layer is not None]
    return len(low) == len(zero) and bool(high) and max(low) < min(high)


def _nonfinite(adapter: Adapter) -> Iterator[Finding]:
    counts: dict[str, int] = {}
    in_pairs: set[str] = set()
    for module, one in zip(adapter.modules, adapter.statistics, strict=True):
        in_pairs.update((module.a.name, module.b.name))
        counts[module.a.name], counts[module.b.name] = one.a_nonfinite, one.b_nonfinite
    for name, tensor in adapter.tensors.items():
        if name not in in_pairs:
            counts[name] = count_nonfinite(tensor)
    bad = [name for name, count in counts.items() if count]
    if bad:
        elements = sum(counts.values())
        yield Finding(
            "adapter-presence.non-finite",
            Severity.ERROR,
            f"{elements:,} values in {len(bad)} of {adapter.tensor_count} tensors are NaN or "
            "infinite.",
            measured={
                "tensors": len(bad),
                "values": elements,
                "share_of_values": elements / max(adapter.parameter_count, 1),
            },
            expected="finite values only",
            where=_examples(bad),
            fix="use the last checkpoint without them, and lower the rate before training again",
        )
