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
EVALUATING = ("eval", "evaluate", "validate", "validation", "generate", "predict", "test")


@rule(severity=Severity.WARNING, bad=BAD, good=GOOD, words=("value_and_grad",))
def evaluation_in_train_mode(source: SourceFile) -> Hits:
    """A file with dropout and gradients whose evaluation calls the model, and `eval()` nowhere; or
    a loop that updates, calls `eval()` on a model, and has `train()` nowhere.
    """
    if not any(source.calls("mlx.nn.value_and_grad")):
        return
    modes = [
        call
        for call in source.calls(".eval", ".train", ".set_training", "mlx.nn.Module.eval")
        if not source.is_call(call, "mlx.core.eval")
    ]
    if not modes and any(source.calls("mlx.nn.Dropout", "mlx.nn.Dropout2d", "mlx.nn.Dropout3d")):
        yield from _never_off(source)
    for loop in source.of(ast.For, ast.While):
        if any(model_updates(source, within=loop)):
            yield from _never_on(source, loop, modes)


def _never_off(source: SourceFile) -> Hits:
    """The first evaluating function that calls a model it is handed, and is called after steps."""
    for function in source.of(ast.FunctionDef):
        words = function.name.lower().strip("_").split("_")
        if not any(word in EVALUATING for word in words) or words[0] == "test":
            continue
        called = [
            call
            for call in source.of(ast.Call, within=function)
            if ast.unparse(call.func) in ("model", "self.model") and source.scope(call) is function
        ]
        if called and not any(source.calls("mlx.nn.value_and_grad", within=function)):
            yield (
                called[0],
                "dropout is on here: nothing in this file calls model.eval() before an evaluation",
            )
            return


def _never_on(source: SourceFile, loop: ast.AST, modes: list[ast.Call]) -> Hits:
    """`model.eval()` in a loop of steps, and no `train()` of any model in the file."""
    on = [call for call in modes if _is(call, "train") and not _is_false(call)]
    for call in modes:
        if not _is(call, "eval") or call.args or call.keywords:
            continue
        held = call.func.value if isinstance(call.func, ast.Attribute) else None
        is_model = held is not None and ast.unparse(held).rpartition(".")[2] == "model"
        if source.is_within(call, loop) and is_model and not any(_is_model_mode(one) for one in on):
            yield call, "no train() follows: there is no dropout from the second step on"
            return


def _is(call: ast.Call, name: str) -> bool:
    return isinstance(call.func, ast.Attribute) and call.func.attr == name


def _is_false(call: ast.Call) -> bool:
    return bool(call.args) and constant(call.args[0]) is False


def _is_model_mode(call: ast.Call) -> bool:
    """`model.train()`: not the training itself, which takes more than a mode."""
    mode = [*call.args, *(one.value for one in call.keywords)]
    return not mode or (len(mode) == 1 and isinstance(constant(mode[0]), bool))
