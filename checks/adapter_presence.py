"""Whether the adapter's file holds a trained adapter.

What it finds. Files without a single LoRA factor although the configuration speaks of
LoRA; a whole model saved in the adapter's place; factors that were never trained, whose
B is still exactly the zero it starts at; factors without their partner; and values that
are NaN or infinite.

Why it matters. A flag such as `_has_adapter = True` proves nothing: only tensors do. An
adapter whose B is zero changes no output whatever it is loaded on, and one that holds a
NaN makes every output NaN.

How it is measured. Every value is read. B counts as zero only if each of its elements is
exactly zero. A counts as drawn if none lies outside ±1/sqrt(inputs) and its mean square
is within five standard errors of that of the uniform draw which mlx-lm and PEFT start
from. Nothing here is an estimate.

When it is wrong. An adapter saved before the first update has B at zero and is sound.
Other initialisations of A (PiSSA, Gaussian) do not have the fingerprint; that only
changes the wording. PEFT stores whole weights on purpose for `modules_to_save`.

What to do. If B is zero, find out why no gradient reached the adapter, or whether the
rate was zero. If there are no factors, check that layers were converted before training:
count them. If values are not finite, go back to the last checkpoint without them.
"""

from collections.abc import Iterator, Sequence

from mlxdoctor.check import Cost, NotApplicable, check
from mlxdoctor.evidence.adapter import Adapter
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.tensor import TensorRef, count_nonfinite
from mlxdoctor.finding import Finding, Severity

_EXAMPLES = 3


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
        "some-zero-b": "the B of some modules is exactly zero",
        "zero-a": "the A of some modules is exactly zero: they change nothing",
        "unpaired": "some factors have no partner",
        "mismatched": "the two factors of some modules cannot be multiplied",
        "non-finite": "some values are NaN or infinite",
    },
    cost=Cost.WEIGHTS,
    decisive=True,
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
    if not adapter.modules:
        yield from _no_factors(adapter, config)
    elif adapter.others:
        yield from _whole_weights(adapter, adapter.others, config)
    yield from _broken_pairs(adapter)
    yield from _zeros(adapter)


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
            Severity.WARNING,
            f"{len(adapter.unpaired)} LoRA factors have no partner in {adapter.path.name}.",
            measured={"count": len(adapter.unpaired)},
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


def _zeros(adapter: Adapter) -> Iterator[Finding]:
    pairs = list(zip(adapter.modules, adapter.statistics, strict=True))
    zero_b = [module.name for module, one in pairs if one.b_is_zero]
    zero_a = [module.name for module, one in pairs if one.a_is_zero]
    drawn = sum(one.a_is_initial for _, one in pairs)
    if zero_b and len(zero_b) == len(pairs):
        yield Finding(
            "adapter-presence.zero-b",
            Severity.ERROR,
            f"The B of all {len(pairs)} modules is exactly zero, so the adapter changes nothing"
            + ("; every A is still as it was drawn." if drawn == len(pairs) else "."),
            measured={"modules": len(pairs), "zero_b": len(zero_b), "a_as_drawn": drawn},
            expected="B moves away from zero with the first update",
            where=_examples(zero_b),
            fix="check that the learning rate is not zero and that gradients reach lora_b",
        )
        if drawn < len(pairs) and len(zero_a) < len(pairs):
            yield Finding(
                "adapter-presence.a-moved-zero-b",
                Severity.WARNING,
                f"In {len(pairs) - drawn} of {len(pairs)} modules A is not as it was drawn while B "
                "is exactly zero; training cannot do that, because A gets no gradient before B "
                "moves.",
                measured={"modules": len(pairs), "a_as_drawn": drawn},
                expected="B moves before A",
                fix="check how the adapter was saved or merged",
            )
    elif zero_b:
        yield Finding(
            "adapter-presence.some-zero-b",
            Severity.WARNING,
            f"The B of {len(zero_b)} of {len(pairs)} modules is exactly zero: they were not "
            "trained.",
            measured={"modules": len(pairs), "zero_b": len(zero_b)},
            expected="every B moves",
            where=_examples(zero_b),
            fix="check that gradients reach these modules",
        )
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
