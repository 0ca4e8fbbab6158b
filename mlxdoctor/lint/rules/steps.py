"""Loops: updates, evaluation, compilation and generation."""

import ast
import re

from mlxdoctor.finding import Severity
from mlxdoctor.lint.rule import Hits, rule
from mlxdoctor.lint.source import Function, SourceFile, is_model, last_name, parameters

_GRADIENT = "mlx.nn.value_and_grad"
_OF_FIRST = (
    "the compiled gradient is that of the weights at its first call, for ever: name the model's "
    "state in inputs="
)
_TOKEN = re.compile(r"(?:next_?|new_?|sampled_?)?(?:tok(?:en)?(?:_id)?|next_input|y|nxt)")
_SAMPLING = ("argmax", "categorical", "sample", "sampler", "sample_next_token", "sample_token")
_JOINING = ("concatenate", "stack", "concat")


@rule(
    Severity.ERROR,
    """
import mlx.core as mx

def generate(model, prompt, length):
    logits, answer = model(mx.array([prompt])), []
    for _ in range(length):
        token = mx.argmax(logits[:, -1], axis=-1)
        answer.append(token.item())
        logits = model(token.reshape(1, 1))
    return answer
""",
    {"model(token.reshape(1, 1))": "model(mx.array([prompt + answer]))"},
)
def answer_without_context(source: SourceFile) -> Hits:
    """Answers generated token by token, each from the last token alone.

    A model without a cache remembers nothing: given one token, it knows only this one. A loop that
    feeds the new token back needs the cache (`model(token, cache=cache)`), or the whole text so
    far. Without either, rewards and samples are of text that has nothing to do with the prompt.
    """
    for call in source.of(ast.Call):
        if len(call.args) != 1 or call.keywords or not is_model(call.func):
            continue
        loop, statement = source.enclosing(call, ast.For, ast.While), source.parent(call)
        # Unpacked, the call returns its cache as well.
        is_logits = isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name)
        if (
            loop is not None
            and is_logits
            and any(_is_sampling(node) for node in source.of(ast.Call, within=loop))
            and _is_token(source, call.args[0])
        ):
            fault = "the model is given the last token alone, without a cache"
            yield call, f"{fault}: it does not see what came before"


def _is_sampling(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and last_name(node) in _SAMPLING


def _is_token(source: SourceFile, node: ast.expr) -> bool:
    """Whether an argument is the new token, put into a shape, and not joined with anything."""
    joined = any(
        isinstance(part, ast.BinOp) or (isinstance(part, ast.Call) and last_name(part) in _JOINING)
        for part in source.parts(node, _is_sampling)
    )
    names = source.names_in(node)
    tokens = {name for name in names if _TOKEN.fullmatch(name.lower())}
    return not joined and len(tokens) == 1 and names <= {*tokens, "mx"}


@rule(
    Severity.ERROR,
    """
import mlx.core as mx
import mlx.nn as nn

def make_step(model, optimizer, loss_fn):
    loss_and_grad = nn.value_and_grad(model, loss_fn)

    @mx.compile
    def step(inputs, targets):
        loss, grads = loss_and_grad(inputs, targets)
        optimizer.update(model, grads)
        return loss
    return step
""",
    {
        "    @mx.compile": (
            "    state = [model.state, optimizer.state]\n\n"
            "    @partial(mx.compile, inputs=state, outputs=state)"
        ),
        "import mlx.core": "from functools import partial\nimport mlx.core",
    },
)
def compiled_without_state(source: SourceFile) -> Hits:
    """A compiled training step that does not say what it changes.

    `mx.compile` takes whatever a function uses and is not handed as a constant, from its first call
    on. A gradient function compiled this way returns the gradient of the first weights for ever; a
    step that updates a model keeps the update inside, and the weights outside become arrays that
    cannot be read. `inputs=` and `outputs=` name the state: `[model.state, optimizer.state]`, and
    `mx.random.state` where there is dropout.
    """
    for call in source.calls("mlx.core.compile"):
        if len(call.args) != 1 or _states(call):
            continue
        # Compiled anew for each call, it holds the weights of that time.
        uses = list(source.uses_of(call))
        loops = {id(source.enclosing(node, ast.For, ast.While)) for node in (call, *uses)}
        if uses and len(loops) == 1 and not isinstance(source.scope(call), ast.Module):
            continue
        compiled = source.values(call.args[0])
        if len(compiled) == 1 and source.is_call(compiled[0], _GRADIENT):
            yield call, _OF_FIRST
        elif (function := source.function(call.args[0])) is not None:
            yield from _updating(source, call, function)
    for function in source.of(ast.FunctionDef):
        for decorator in function.decorator_list:
            made = decorator if isinstance(decorator, ast.Call) else None
            compiles = source.is_named(made.func if made else decorator, "mlx.core.compile")
            if compiles and not (made and _states(made)):
                yield from _updating(source, function, function)


def _states(call: ast.Call) -> bool:
    """Whether a call names the state, or may."""
    return any(given.arg in ("inputs", "outputs", None) for given in call.keywords)


def _updating(source: SourceFile, node: ast.AST, function: Function) -> Hits:
    """The hit, where a function updates or derives by a model that it is not handed."""
    handed = set(parameters(function)) - {"self"}
    for call in source.updates(within=function):
        model = ast.unparse(call.args[0])
        if model.partition(".")[0] not in handed:
            fault = f"updates {model}, which is neither in inputs= nor in outputs="
            yield node, f"the compiled function {fault}: the update stays inside"
            return
    for call in source.of(ast.Call):
        made = source.values(call.func) if source.is_within(call, function) else []
        gradients = [each for each in made if source.is_call(each, _GRADIENT) and each.args]
        models = {ast.unparse(each.args[0]).partition(".")[0] for each in gradients}
        if models - handed:
            yield node, _OF_FIRST
            return


#: Calls after which something has been computed: anywhere in the file, and in the loop.
_EVAL = ("mlx.core.eval", "mlx.core.async_eval")
_READING = (".item", ".tolist", "float", "print", "numpy.array")


@rule(
    Severity.WARNING,
    """
import mlx.core as mx

def train(model, optimizer, loss_and_grad, batches):
    for batch in batches:
        loss, grads = loss_and_grad(model, batch)
        optimizer.update(model, grads)
""",
    {
        "update(model, grads)\n": (
            "update(model, grads)\n        mx.eval(model.parameters(), optimizer.state)\n"
        )
    },
)
def loop_without_eval(source: SourceFile) -> Hits:
    """A training loop in which nothing is evaluated.

    MLX is lazy: an update that is never evaluated makes the graph longer, step by step, until
    memory is full. `mx.eval(model.parameters(), optimizer.state)` once a step, or reading the loss
    of the next step with `.item()`, computes it; the former is what leaves no part behind.
    """
    if any(source.calls(*_EVAL)):
        return
    for update in source.updates():
        outermost, loop = None, source.enclosing(update, ast.For, ast.While)
        while loop is not None:
            outermost, loop = loop, source.enclosing(loop, ast.For, ast.While)
        if outermost is None or "optim" not in ast.unparse(update.func).lower():
            continue
        # Text that is made of an array evaluates it.
        is_read = any(source.of(ast.FormattedValue, within=outermost))
        if not is_read and not any(source.calls(*_READING, within=outermost)):
            yield update, "nothing in this loop is evaluated: call mx.eval once a step"


#: What the result of each is for.
_PURE = {
    "mlx.optimizers.clip_grad_norm": "it returns the clipped gradients and their norm",
    "mlx.core.stop_gradient": "it returns an array without a gradient",
    "mlx.core.clip": "it returns the clipped array",
    "mlx.core.where": "it returns a new array",
    "mlx.nn.average_gradients": "it returns the averaged gradients",
    "mlx.nn.value_and_grad": "it returns a function, which computes loss and gradients",
    "mlx.core.value_and_grad": "it returns a function, which computes loss and gradients",
    "mlx.core.compile": "it returns the compiled function",
    "mlx.utils.tree_unflatten": "it returns the tree",
}


@rule(
    Severity.ERROR,
    """
import mlx.nn as nn
import mlx.optimizers as optim

def step(model, optimizer, loss_fn, batch):
    loss, grads = nn.value_and_grad(model, loss_fn)(model, batch)
    optim.clip_grad_norm(grads, max_norm=1.0)
    optimizer.update(model, grads)
    return loss
""",
    {"    optim.clip": "    grads, norm = optim.clip"},
)
def result_dropped(source: SourceFile) -> Hits:
    """A result that is thrown away, of a function that changes nothing in place.

    `optim.clip_grad_norm`, `optimizer.apply_gradients`, `mx.stop_gradient` and `tree_map` of MLX
    return something new and leave what they are given as it is. Called on a line of their own they
    do nothing: the gradients are not clipped, the weights are not updated.
    """
    for statement in source.of(ast.Expr):
        call = statement.value
        if not isinstance(call, ast.Call):
            continue
        written = ast.unparse(call.func)
        result = _PURE.get(source.name_of(call.func))
        is_applied = written.endswith(".apply_gradients") and "opt" in written.lower()
        if is_applied and len(call.args) == 2:
            result = "it returns the new parameters, and leaves the model as it is"
        if result is not None:
            yield call, f"the result of {written} is thrown away: {result}"
