"""The model before the step: what is trainable, and whether it is what it says it is."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import mlx.core as mx
from mlx import nn
from mlx.utils import tree_flatten, tree_map

from mlxdoctor.evidence.adapter import ADAPTER_LEAVES
from mlxdoctor.measure.training_step.values import State
from mlxdoctor.models.load import count_parameters
from mlxdoctor.safety.quoting import cut

#: MLX's own bookkeeping: a class that replaces it hides what is trained.
BOOKKEEPING = ("trainable_parameters", "parameters", "freeze", "unfreeze", "update")
#: Attributes whose name has one of these words speak of an adapter.
CLAIMS = ("adapter", "lora", "peft")


def read_state(model: nn.Module, expect: str | None) -> State:
    """Count and compare; nothing is computed or changed."""
    # The base class's: an override may say anything.
    every = dict(tree_flatten(nn.Module.parameters(model)))
    trainable = {name for name, _ in tree_flatten(nn.Module.trainable_parameters(model))}
    # People's own layers write lora_A.
    leaves = {name: name.rpartition(".") for name in every}
    lower = {f"{owner}.{leaf.lower()}": name for name, (owner, _, leaf) in leaves.items()}
    owners = (name.removesuffix(".lora_a") for name in lower if name.endswith(".lora_a"))
    adapters = tuple(owner for owner in owners if f"{owner}.lora_b" in lower)
    own = {lower.get(f"{owner}.{leaf}") for owner in adapters for leaf in ADAPTER_LEAVES}
    return State(
        *count_parameters(model),
        adapters=adapters,
        half_adapters=tuple(
            owner
            for owner in adapters
            if (lower[f"{owner}.lora_a"] in trainable) != (lower[f"{owner}.lora_b"] in trainable)
        ),
        outside={name: every[name].size for name in sorted(trainable) if name not in own},
        claims=tuple(_claims(model)),
        overrides=tuple(
            each for each in BOOKKEEPING if getattr(type(model), each) != getattr(nn.Module, each)
        ),
        expect=expect,
    )


def _claims(model: nn.Module) -> Iterator[str]:
    """Plain attributes that say that there is an adapter: a flag, a count, a configuration."""
    for name, value in {**vars(model), **dict(model)}.items():
        plain = isinstance(value, bool | int | str | dict) and not isinstance(value, nn.Module)
        if plain and value and any(word in name.lower() for word in CLAIMS):
            yield f"{name}={cut(repr(value), 40)}"


@contextmanager
def handed_back(model: nn.Module, optimizer: Any | None) -> Iterator[None]:
    """Put everything back afterwards: parameters, what is frozen, modes, optimizer, randomness."""
    # Arrays are never changed in place in MLX, so that keeping the old ones costs nothing.
    kind = type(model)
    modules = [(each, dict(each), set(each._no_grad), each.training) for each in model.modules()]
    arrays = nn.Module.parameters(model)
    random: Any = mx.random.state
    first, second = random[0].tolist()
    try:
        with kept_state(optimizer):
            yield
    finally:
        model.__class__ = kind
        for module, content, frozen, training in modules:
            module.clear()
            dict.update(module, content)
            module._no_grad, module._training = frozen, training
        # What modules hold in lists and dicts of their own.
        nn.Module.update(model, arrays)
        # MLX's state can't be assigned; its seed of 64 bits becomes the key's two halves.
        mx.random.seed((first << 32) | second)


@contextmanager
def kept_state(optimizer: Any | None) -> Iterator[None]:
    """Put an optimizer's state back afterwards."""
    if optimizer is None:
        yield
        return
    held, started = optimizer.state, getattr(optimizer, "_initialized", None)
    is_its_own = held is optimizer.state
    state = tree_map(lambda array: array, held)
    try:
        yield
    finally:
        # One of several optimizers may have none that can be set.
        with suppress(AttributeError):
            if is_its_own:
                # A compiled step holds this very dict.
                held.clear()
                held.update(state)
            optimizer.state = held if is_its_own else state
            optimizer._initialized = started
