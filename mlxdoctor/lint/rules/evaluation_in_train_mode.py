"""A model with dropout that is evaluated as it is trained, or trained as it was evaluated.

A module of MLX is in training mode from the start; `model.eval()` switches dropout off and
`model.train()` on again. Without the first the validation loss is that of a model with parts
missing, and answers are noisy. Without the second there is no dropout after the first evaluation.
"""

import ast

from mlxdoctor.finding import Severity
from mlxdoctor.lint.made_of import model_updates
from mlxdoctor.lint.python_file import SourceFile, constant
from mlxdoctor.lint.rule import Hits, rule

BAD = """
import mlx.core as mx
import mlx.nn as nn

class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.dropout = nn.Dropout(0.3)
        self.head = nn.Linear(8, 2)

    def __call__(self, x):
        return self.head(self.dropout(x))

def evaluate(model, x, y):
    return (mx.argmax(model(x), axis=-1) == y).mean()

def train(model, optimizer, loss_fn, batches):
    step = nn.value_and_grad(model, loss_fn)
    for x, y in batches:
        loss, grads = step(model, x, y)
        optimizer.update(model, grads)
        mx.eval(model.parameters(), optimizer.state)
        print(evaluate(model, x, y).item())
"""
GOOD = BAD.replace(
    "        print(evaluate",
    """        model.eval()
        print(evaluate""",
).replace(
    "        loss, grads",
    """        model.train()
        loss, grads""",
)
_MODEL = ("model", "self.model")
EVALUATING = ("eval", "evaluate", "validate", "validation", "generate", "predict", "test")


@rule(severity=Severity.WARNING, bad=BAD, good=GOOD, words=("value_and_grad",))
def evaluation_in_train_mode(source: SourceFile) -> Hits:
    """A file with dropout and gradients whose evaluation calls the model, and `eval()` nowhere; or
    a loop that updates and calls `eval()` on a model, itself or in a function of the file, and
    `train()` in none of them.
    """
    if not any(source.calls("mlx.nn.value_and_grad")):
        return
    modes = source.calls(".eval", ".set_training", "mlx.nn.Module.eval")
    off = [call for call in modes if not source.is_call(call, "mlx.core.eval")]
    off += [call for call in source.calls(".train") if _is_false(call)]
    if not off and _has_dropout(source):
        yield from _never_off(source)
    for loop in source.of(ast.For, ast.While):
        if off and any(model_updates(source, within=loop)):
            yield from _never_on(source, loop)


def _has_dropout(source: SourceFile) -> bool:
    """Whether a layer of it is made, or a rate of it given that is not zero."""
    if any(source.calls("mlx.nn.Dropout", "mlx.nn.Dropout2d", "mlx.nn.Dropout3d")):
        return True
    rates = [
        value
        for one in source.of(ast.Dict)
        for key, value in zip(one.keys, one.values, strict=True)
        if constant(key) == "dropout"
    ]
    return any(isinstance(rate := constant(one), float) and rate > 0 for one in rates)


def _never_off(source: SourceFile) -> Hits:
    """The first evaluating function that calls a model it is handed, or hands it on to a loss."""
    for function in source.of(ast.FunctionDef):
        words = function.name.lower().strip("_").split("_")
        if not any(word in EVALUATING for word in words) or words[0] == "test":
            continue
        called = [
            call
            for call in source.of(ast.Call, within=function)
            if ast.unparse(call.func) in _MODEL
            or (
                "loss" in ast.unparse(call.func).lower()
                and any(ast.unparse(one) in _MODEL for one in call.args[:1])
            )
        ]
        if called and not any(source.calls("mlx.nn.value_and_grad", within=function)):
            yield (
                called[0],
                "dropout is on here: nothing in this file calls model.eval() before an evaluation",
            )
            return


def _never_on(source: SourceFile, loop: ast.AST) -> Hits:
    """`model.eval()` in what a loop of steps reaches, and no `train()` of a model there."""
    if any(_is_model_mode(call) for call in source.calls(".train", through=loop)):
        return
    for call in source.calls(".eval", through=loop):
        held = call.func.value if isinstance(call.func, ast.Attribute) else None
        is_model = held is not None and ast.unparse(held).rpartition(".")[2] == "model"
        if is_model and not call.args and not call.keywords:
            yield call, "no train() follows: there is no dropout from the second step on"
            return


def _is_false(call: ast.Call) -> bool:
    return bool(call.args) and constant(call.args[0]) is False


def _is_model_mode(call: ast.Call) -> bool:
    """`model.train()`: not the training itself, which takes more than a mode."""
    if _is_false(call):
        return False
    mode = [*call.args, *(one.value for one in call.keywords)]
    return not mode or (len(mode) == 1 and isinstance(constant(mode[0]), bool))
