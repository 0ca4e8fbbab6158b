"""The smallest language model that layers can be converted in, and how examples are run."""

from collections.abc import Callable
from types import ModuleType

import mlx.core as mx
from mlx import nn
from mlx.utils import tree_flatten

TOKENS = mx.array([[1, 5, 2, 7, 3, 6], [4, 0, 6, 2, 5, 1]])


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q_proj = nn.Linear(8, 8, bias=False)
        self.v_proj = nn.Linear(8, 8, bias=False)

    def __call__(self, x: mx.array) -> mx.array:
        return x + self.v_proj(nn.relu(self.q_proj(x)))


class TinyModel(nn.Module):
    """Tokens (batch, length) in, logits (batch, length, 8) out."""

    def __init__(self, layers: int = 2) -> None:
        super().__init__()
        self.embed = nn.Embedding(8, 8)
        self.layers = [Layer() for _ in range(layers)]
        self.head = nn.Linear(8, 8, bias=False)

    def __call__(self, tokens: mx.array) -> mx.array:
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def loss_fn(model: nn.Module, inputs: mx.array, targets: mx.array) -> mx.array:
    """The mean over all tokens."""
    return nn.losses.cross_entropy(model(inputs), targets, reduction="mean")


def run(text: str) -> ModuleType:
    """What an example defines, executed as a module of its own."""
    module = ModuleType("example")
    exec(compile(text, "example.py", "exec"), module.__dict__)
    return module


def weights(model: nn.Module) -> dict[str, mx.array]:
    """Copies of a model's parameters, by name."""
    return {name: mx.array(value) for name, value in tree_flatten(model.parameters())}


def changed(model: nn.Module, before: dict[str, mx.array]) -> set[str]:
    """The names of the parameters that are no longer what they were."""
    after = tree_flatten(model.parameters())
    return {name for name, value in after if not mx.array_equal(value, before[name]).item()}


def raised(work: Callable[[], object]) -> str:
    """The name of the exception that some work ends with; empty where it ends well."""
    try:
        work()
    except Exception as error:
        return type(error).__name__
    return ""
