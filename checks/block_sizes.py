"""Whether modules of one block have sizes that go together.

What it finds. Blocks whose q_proj, k_proj and v_proj read inputs of different sizes, or whose
gate_proj, up_proj and down_proj do not fit each other.

Why it matters. Such factors were named wrongly, turned round or exchanged: no model has modules of
these sizes, and mlx-lm refuses them on any.

How it is measured. Sizes are read off the factors' shapes, in the file's header, and need no base
model. What reads the same vector has the same number of inputs, and what leads back to it as many
outputs: so it is in all of 79 architectures of mlx-lm of which a model could be built. Names that
are not there are not compared.

When it is wrong. An architecture that mlx-lm does not have may use these names for something else.

What to do. See how the tensors were named and turned round, with `mlxdoctor inspect`; use a save of
the trainer itself.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping

from mlxdoctor.check import NotApplicable, check
from mlxdoctor.evidence.adapter import Adapter, LoraModule
from mlxdoctor.finding import Sign, Symptom, some_of

#: What reads the same vector, and the two that read it beside the one that leads back.
_SAME_INPUTS = ("q_proj", "k_proj", "v_proj")
_GATES, _BACK = ("gate_proj", "up_proj"), "down_proj"


@check(
    codes={
        "disagree": Symptom.error(
            "modules of one block have sizes that no model has",
            expected="q_proj, k_proj and v_proj with the same inputs; gate_proj and up_proj alike",
            fix="see how the tensors were named and turned round; use a save of the trainer itself",
        )
    }
)
def block_sizes(adapter: Adapter) -> Iterator[Sign]:
    """Hold the sizes of a block's modules against each other."""
    if not adapter.modules:
        raise NotApplicable("the adapter holds no pair of LoRA factors")
    blocks: dict[str, dict[str, LoraModule]] = defaultdict(dict)
    for one in adapter.modules:
        block, _, name = one.name.rpartition(".")
        blocks[block][name] = one
    odd = [(block, names) for block, found in blocks.items() if (names := _disagreeing(found))]
    if odd:
        block, names = odd[0]
        shown = ", ".join(
            f"{name} maps {one.in_features} to {one.out_features}"
            for name in names
            if (one := blocks[block][name])
        )
        yield Sign(
            "disagree",
            f"The sizes of {len(odd)} of {len(blocks)} blocks do not go together: in {block}, "
            f"{shown}.",
            {
                "disagreeing": len(odd),
                "blocks": len(blocks),
                "sizes": tuple(
                    size
                    for name in names
                    for size in (blocks[block][name].in_features, blocks[block][name].out_features)
                ),
            },
            where=some_of([one for one, _ in odd]),
        )


def _disagreeing(modules: Mapping[str, LoraModule]) -> tuple[str, ...]:
    """The names among a block's modules that do not go together; none where all do."""
    readers = tuple(one for one in _SAME_INPUTS if one in modules)
    if len({modules[one].in_features for one in readers}) > 1:
        return readers
    gates = tuple(one for one in _GATES if one in modules)
    sizes = {(modules[one].in_features, modules[one].out_features) for one in gates}
    if gates and _BACK in modules:
        sizes.add((modules[_BACK].out_features, modules[_BACK].in_features))
        gates = (*gates, _BACK)
    return gates if len(sizes) > 1 else ()
