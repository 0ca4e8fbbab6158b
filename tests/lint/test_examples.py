"""What a rule claims, seen by running its bad example and its good one.

Of the others the probe shows it, by the trainers of `tests/probe/test_trainers.py`.
"""

from collections.abc import Callable
from functools import partial
from io import StringIO
from pathlib import Path
from types import ModuleType
from typing import Any

import mlx.core as mx
import mlx.optimizers as optim
import mlx_lm
import pytest
from mlx import nn
from mlx.utils import tree_flatten

from mlxdoctor.lint.rule import rules
from tests.probe.test_trainers import FAULTS
from tests.twin.small import small_model

TOKENS = mx.array([[1, 5, 2, 7, 3, 6], [4, 0, 6, 2, 5, 1]])


#: Tokens (batch, length) in, logits (batch, length, 8) out.
tiny_model = partial(small_model, vocab_size=8, tie_word_embeddings=False)


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


PROBED = {rule for _, rule in FAULTS.values() if rule}
#: Rule -> what the bad example shows, what the good one does, and how either is observed.
PROOFS: dict[str, tuple[object, object, Callable[[ModuleType], object]]] = {}


def proof(bad: object, good: object) -> Callable[[Callable[[ModuleType], Any]], object]:
    """Keep an observation of a rule's examples, by its name, with what each has to show."""

    def keep(observe: Callable[[ModuleType], Any]) -> object:
        PROOFS[observe.__name__.replace("_", "-")] = (bad, good, observe)
        return observe

    return keep


@pytest.fixture
def tiny_world(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """`mlx_lm.load` gives a tiny model, and files are written where they may be."""
    monkeypatch.setattr(mlx_lm, "load", lambda *_, **__: (tiny_model(), None))
    monkeypatch.setattr(mlx_lm.utils, "load", mlx_lm.load)
    monkeypatch.chdir(tmp_path)
    mx.random.seed(0)


@pytest.mark.usefixtures("tiny_world")
@pytest.mark.parametrize("code", sorted({rule.code for rule in rules()} - PROBED))
def test_the_examples_do_what_the_rule_says(code: str) -> None:
    rule = next(rule for rule in rules() if rule.code == code)
    bad, good, observe = PROOFS[code]
    assert bad != good
    assert observe(run(rule.bad)) == bad
    assert observe(run(rule.good)) == good


@proof(False, True)
def tied_by_assignment(example: ModuleType) -> bool:
    """Whether one update leaves the head's weights those of the embedding."""
    model = example.Model()
    _, gradients = nn.value_and_grad(model, lambda x: model(x).square().mean())(TOKENS)
    optim.SGD(0.1).update(model, gradients)
    weight = model.embedding.weight
    return bool(mx.array_equal(model.get("head", model.embedding).weight, weight).item())


@proof(0.0, True)
def checkpoint_of_module(example: ModuleType) -> object:
    """The gradient of a layer behind a checkpoint: zero, or some."""
    model = example.Model()
    model.layers = [nn.Linear(4, 4)]
    _, gradients = nn.value_and_grad(model, lambda x: model(x).square().mean())(mx.ones((2, 4)))
    size = mx.abs(gradients["layers"][0]["weight"]).sum().item()
    return size and size > 0.0


@proof(True, False)
def advantage_with_gradient(example: ModuleType) -> bool:
    """Whether a step down the gradient raises the log-probability of a punished sample."""
    logprobs = mx.full((1, 20), -3.0)
    gradient = mx.grad(example.policy_loss)(logprobs, logprobs, mx.array([-1.0]))
    return bool(mx.all(gradient < 0))


@proof([2, 1, 1], [2, 3, 4])
def answer_without_context(example: ModuleType) -> list[int]:
    """How many tokens the model was given at a time, of a prompt of two."""
    lengths: list[int] = []

    def model(tokens: mx.array) -> mx.array:
        lengths.append(tokens.shape[1])
        return mx.zeros((1, tokens.shape[1], 8))

    example.generate(model, [3, 5], 2)
    return lengths


@proof(True, False)
def coefficient_unused(example: ModuleType) -> bool:
    """Whatever the coefficient, the step is the same."""
    found = []
    for beta in (0.0, 5.0):
        mx.random.seed(0)
        trainer = example.Trainer(tiny_model(), optim.SGD(0.1), beta=beta)
        trainer.step(TOKENS, mx.array([-9.0, -9.5]), mx.array([1.0, -1.0]))
        found.append(trainer.model.lm_head.weight)
    return bool(mx.array_equal(*found))


@proof(("RuntimeError", False), ("", True))
def compiled_without_state(example: ModuleType) -> tuple[str, bool]:
    """After a compiled step the model's weights cannot be read, or are trained."""
    model, optimizer = tiny_model(), optim.SGD(0.1)
    before = weights(model)
    step = example.make_step(model, optimizer, lambda x, y: loss_fn(model, x, y))
    first = step(TOKENS[:, :-1], TOKENS[:, 1:]).item()
    losses = {first, step(TOKENS[:, :-1], TOKENS[:, 1:]).item()}
    error = raised(lambda: mx.eval(model.parameters()))
    return error, not error and bool(changed(model, before)) and len(losses) == 2


def pending(example: ModuleType, steps: int) -> int:
    """How many operations the weights still wait for after so many steps."""
    model = tiny_model()
    mx.eval(model.parameters())
    step = nn.value_and_grad(model, loss_fn)
    example.train(
        model,
        optim.SGD(0.1),
        lambda model, batch: step(model, batch[:, :-1], batch[:, 1:]),
        [TOKENS] * steps,
    )
    graph = StringIO()
    mx.export_to_dot(graph, model.lm_head.weight)
    return graph.getvalue().count("->")


@proof(True, False)
def loop_without_eval(example: ModuleType) -> bool:
    """What is left to compute grows with every step."""
    return pending(example, 4) > 2 * pending(example, 1)


@proof(True, False)
def mask_off_by_one(example: ModuleType) -> bool:
    """Whether the gradient reaches the logits at a row's last token, whose target is padding."""
    tokens, lengths = mx.array([[3, 5, 2, 0, 0]]), mx.array([3])

    def loss(logits: mx.array) -> mx.array:
        return example.loss_fn(lambda inputs: logits, tokens, lengths)

    gradient = mx.grad(loss)(mx.zeros((1, 4, 8)))
    trained = [bool(mx.any(gradient[0, place] != 0)) for place in range(4)]
    assert trained[:2] == [True, True]
    return trained[2]


@proof(("", set()), ("ValueError", set()))
def non_strict_load(example: ModuleType) -> tuple[str, set[str]]:
    """A file whose names all miss loads without a word, and changes nothing."""
    model = tiny_model()
    mx.save_safetensors("w.safetensors", {f"base.{k}": v + 1 for k, v in weights(model).items()})
    before = weights(model)
    return raised(lambda: example.resume(model, "w.safetensors")), changed(model, before)


@proof(True, False)
def probabilities_as_logits(example: ModuleType) -> bool:
    """Whether a model that is right and sure of it has a loss above 1."""
    loss = example.loss_fn(lambda tokens: 50.0 * mx.eye(8)[tokens], TOKENS, TOKENS)
    return loss.item() > 1.0


@proof(False, True)
def result_dropped(example: ModuleType) -> bool:
    """Whether the norm of the gradient that the optimizer got is 1."""
    model = tiny_model()
    before = weights(model)

    def large(model: nn.Module, tokens: mx.array) -> mx.array:
        return 1000 * loss_fn(model, tokens[:, :-1], tokens[:, 1:])

    example.step(model, optim.SGD(1.0), large, TOKENS)
    after = weights(model)
    squares = [mx.sum((after[name] - value) ** 2) for name, value in before.items()]
    return abs(mx.sqrt(sum(squares)).item() - 1) < 0.01


@proof(("RuntimeError", False), ("", True))
def saved_nested(example: ModuleType) -> tuple[str, bool]:
    """Nothing is written."""
    path = Path("w.safetensors")
    path.unlink(missing_ok=True)
    return raised(lambda: example.save(tiny_model(), str(path))), path.is_file()


@proof(("AttributeError", False), ("", True))
def missing_in_mlx(example: ModuleType) -> tuple[str, bool]:
    """Arrays have no `backward`, and optimizers no `step()`."""
    model, optimizer = tiny_model(), optim.SGD(0.1)
    assert not hasattr(mx.array(1.0), "backward")
    before = weights(model)
    error = raised(lambda: example.step(model, optimizer, TOKENS[:, :-1], TOKENS[:, 1:]))
    return error, bool(changed(model, before))
