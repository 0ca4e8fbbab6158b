"""What a loss is differentiated by, and how trees of gradients are filtered."""

import ast
from collections.abc import Iterator

from mlxdoctor.finding import Severity
from mlxdoctor.lint.rule import Hits, rule
from mlxdoctor.lint.source import Function, SourceFile, constant, is_model

#: What a dict has; anything else asked of it is a module's.
_OF_DICTS = frozenset({"get", "items", "keys", "values", "pop", "update", "setdefault", "copy"})


@rule(
    Severity.ERROR,
    """
import mlx.core as mx
import mlx.nn as nn
from mlx_lm.tuner.utils import linear_to_lora_layers

def prepare(model, parameters):
    model.freeze()
    linear_to_lora_layers(model, 16, parameters)

def loss_fn(model, inputs, targets):
    return nn.losses.cross_entropy(model(inputs), targets, reduction="mean")

def step(model, inputs, targets):
    return mx.value_and_grad(loss_fn)(model, inputs, targets)
""",
    {
        "mx.value_and_grad(loss_fn)": "nn.value_and_grad(model, loss_fn)",
        "import mlx.core as mx\n": "",
    },
)
def gradient_of_module(source: SourceFile) -> Hits:
    """`mx.value_and_grad` or `mx.grad` where the gradient by what is trainable is meant.

    These two go by their first argument. Of a module they take every array that it holds, and pay
    no heed to `freeze()`: the base model gets gradients as well, and an update with them changes
    it; a module that also holds lists of something else is refused ("should contain only arrays").
    What `parameters()` returns is a nested dict of arrays: it cannot be called, and has no
    `forward` and no layers ("'dict' object has no attribute 'forward'", seed 002). And a loss that
    never uses what it is handed, because it holds the model itself, has a gradient of exactly zero.
    `nn.value_and_grad(model, loss)` goes by what is trainable.

    In a file that speaks of no freezing, adapter or mlx-lm, a gradient by everything is meant.
    """
    for call, function, name in source.differentiated():
        uses = list(source.uses_of(call))
        node, reason = next(_wrong_gradient(source, uses, function, name), (None, ""))
        if reason:
            yield node or call, f"{reason}: use nn.value_and_grad(model, loss)"


def _wrong_gradient(
    source: SourceFile, uses: list[ast.Call], function: Function, name: str
) -> Iterator[tuple[ast.AST | None, str]]:
    """Why the gradient of a function by parameter `name` is not meant, and where (None: there)."""
    if not {name, "locals"} & source.names_in(function):
        yield None, f"the loss never uses {name!r}, and its gradient is zero"
    given = [use.args[0] for use in uses if use.args]
    # They are given what `parameters()` returns.
    if given and all(source.are_parameters(argument) for argument in given):
        for used in source.of(ast.Name, within=function):
            parent = source.parent(used) if used.id == name else None
            called = isinstance(parent, ast.Call) and parent.func is used
            if called or (isinstance(parent, ast.Attribute) and parent.attr not in _OF_DICTS):
                yield parent or used, f"{name!r} is a nested dict of arrays here and no module"
        return
    # In other files a gradient by everything is meant.
    text = source.text.lower()
    is_partly_frozen = any(word in text for word in ("freeze", "lora", "adapter", "mlx_lm"))
    is_model_used = any(map(is_model, given)) and name in source.names_in(function)
    if is_partly_frozen and is_model_used:
        holds = f"all that {name!r} holds, frozen or not"
        yield None, f"the gradient is by {holds}, and fails where that is more than arrays"


@rule(
    Severity.WARNING,
    """
import mlx.nn as nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(8, 4)
        self.head = nn.Linear(4, 8, bias=False)
        self.head.weight = self.embedding.weight

    def __call__(self, x):
        return self.head(self.embedding(x))
""",
    {
        "        self.head = nn.Linear(4, 8, bias=False)\n": "",
        "        self.head.weight = self.embedding.weight\n": "",
        "self.head(self": "self.embedding.as_linear(self",
    },
)
def tied_by_assignment(source: SourceFile) -> Hits:
    """Weights that are tied by an assignment, which the first update unties.

    Arrays of MLX are values: after `self.head.weight = self.embedding.weight` there are two
    parameters that begin alike, get a gradient each, and are saved twice. To use one for both call
    `self.embedding.as_linear(x)` in place of the head.
    """
    for made in source.of(ast.Assign):
        match made:
            case ast.Assign(
                targets=[
                    ast.Attribute(value=ast.Attribute(value=ast.Name(id="self")), attr="weight")
                ],
                value=ast.Attribute(attr="weight") as other,
            ) if "self" in source.names_in(other):
                yield made, "the first update unties them: use embedding.as_linear(x) for the head"


@rule(
    Severity.ERROR,
    """
import mlx.core as mx
import mlx.nn as nn

class Model(nn.Module):
    def __call__(self, x):
        for layer in self.layers:
            x = mx.checkpoint(layer)(x)
        return x
""",
    {"mx.checkpoint(layer)": "nn.utils.checkpoint(layer)", "import mlx.core as mx\n": ""},
)
def checkpoint_of_module(source: SourceFile) -> Hits:
    """`mx.checkpoint` of a layer, whose parameters get no gradient.

    It differentiates by what the function is called with. The parameters that a module holds are
    not among that, and their gradients are exactly zero: such layers learn nothing.
    `nn.utils.checkpoint(layer)` hands them over.
    """
    for call in source.calls("mlx.core.checkpoint"):
        match call.args:
            case [ast.Name(id=name)] if (loop := source.enclosing(call, ast.For)) is not None:
                assert isinstance(loop, ast.For), "that is what was asked for"
                parts = source.names_in(loop.target) if "self" in source.names_in(loop.iter) else ()
                is_module = name in parts
            case [ast.Attribute() | ast.Subscript() as part]:
                is_module = "self" in source.names_in(part) and source.function(part) is None
            case _:
                is_module = False
        if is_module:
            yield call, "its parameters get no gradient: use nn.utils.checkpoint(layer)"


@rule(
    Severity.ERROR,
    """
import mlx.core as mx

def update(model, optimizer, grads):
    lora = {name: grad for name, grad in grads.items() if "lora" in name}
    optimizer.update(model, lora)
""",
    {
        '    lora = {name: grad for name, grad in grads.items() if "lora" in name}\n': "",
        "update(model, lora)": "update(model, grads)",
    },
)
def outermost_name_filter(source: SourceFile) -> Hits:
    """Parameters or gradients filtered by the outermost names of their tree.

    Gradients and parameters are nested dicts: the outermost names are `model` and `lm_head`, and
    none of them has "lora" in it. Such a filter keeps nothing, and an update with nothing changes
    nothing.
    """
    for loop in source.of(ast.For, ast.comprehension):
        match loop.target:
            case ast.Tuple(elts=[ast.Name(id=name), *_]):
                where = loop.ifs if isinstance(loop, ast.comprehension) else loop.body
                tested = any(_tests_lora(source, node, name) for node in where)
                if tested and _is_nested(source, loop.iter):
                    fault = "the outermost names of a nested tree, none of which has 'lora' in it"
                    remedy = "only what is trainable has a gradient, so pass the tree as it is"
                    yield loop.iter, f"these are {fault}: {remedy}"


def _tests_lora(source: SourceFile, tree: ast.AST, name: str) -> bool:
    return any(
        isinstance(test.ops[0], ast.In)
        and "lora" in str(constant(test.left)).lower()
        and name in source.names_in(test)
        for test in source.of(ast.Compare, within=tree)
    )


def _is_nested(source: SourceFile, node: ast.expr) -> bool:
    """`X.items()` where X are gradients as they come, or `parameters()`."""
    if not (source.is_call(node, ".items") and isinstance(node.func, ast.Attribute)):
        return False
    held = node.func.value
    values = source.values(held)
    if source.are_parameters(held) or all(_is_gradient(source, value) for value in values):
        return True
    # A parameter is what it is called, where it goes to an optimizer, which takes nested trees.
    named = isinstance(held, ast.Name) and held.id.lower() in {"grads", "grad", "gradients"}
    scope = source.scope(node)
    if (
        not named
        or values != [held]
        or any(source.calls("isinstance", "mlx.utils.tree_flatten", within=scope))
    ):
        return False
    return any(source.calls(".update", within=scope)) or any(
        isinstance(value, ast.Call) and source.function(value.func) is scope
        for update in source.updates()
        for value in source.values(update.args[1])
    )


def _is_gradient(source: SourceFile, node: ast.expr) -> bool:
    """Whether a value is the second of what a function from `value_and_grad` returned."""
    match node:
        case ast.Subscript(value=ast.Call(func=called), slice=ast.Constant(value=1)):
            return any(
                source.is_call(value, "mlx.nn.value_and_grad", "mlx.core.value_and_grad")
                for value in source.values(called)
            )
    return False
