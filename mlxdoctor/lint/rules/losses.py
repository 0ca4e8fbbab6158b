"""How a loss is computed from what the model says."""

import ast
import re

from mlxdoctor.finding import Severity
from mlxdoctor.lint.rule import Hits, rule
from mlxdoctor.lint.source import OPTIMIZERS, Function, SourceFile, constant, keyword, last_name

_ADVANTAGE = re.compile(r"(?!.*loss).*(?:advantage|shaped_reward|returns)")
_LOG_PROBABILITY = re.compile(
    r"(?!.*(?:ref|old|behavio|teacher)).*(?:logp|log_p|logprob|lps|log_lik)"
)
#: Calls through which no gradient flows.
_STOPPING = (
    "mlx.core.stop_gradient", "stop_gradient", ".item", ".tolist", ".stop_gradient", "float",
    "len", "numpy.array", "mlx.core.argmax", "mlx.core.zeros_like", "mlx.core.ones_like",
)  # fmt: skip


@rule(
    Severity.ERROR,
    """
import mlx.core as mx

def policy_loss(logprobs, reference_logprobs, rewards, beta=0.1):
    penalty = (logprobs - reference_logprobs).sum(-1)
    advantages = rewards - beta * penalty
    return -(advantages * logprobs.sum(-1)).mean()
""",
    {"rewards - beta * penalty": "mx.stop_gradient(rewards - beta * penalty)"},
)
def advantage_with_gradient(source: SourceFile) -> Hits:
    """An advantage through which the gradient flows.

    A policy loss multiplies log-probabilities with an advantage that is a number of the past. If
    the advantage has a penalty in it that was computed from the same log-probabilities (reward
    minus beta times KL), its own gradient joins in: with the sign turned, and times a sum of
    log-probabilities, which is large and negative. Samples that were punished are made likelier.
    `mx.stop_gradient` makes it a number.
    """
    for node in source.of(ast.BinOp):
        if not isinstance(node.op, ast.Mult) or not isinstance(source.scope(node), Function):
            continue
        for factor, other in ((node.left, node.right), (node.right, node.left)):
            name = _advantage(factor)
            if name is None or not source.values_here(name):
                continue
            shared = _made_of(source, name) & _made_of(source, other)
            for logged in sorted(each for each in shared if _LOG_PROBABILITY.match(each.lower())):
                fault = f"{name.id} is made of {logged}, and its gradient flows through it"
                yield node, f"{fault}: mx.stop_gradient makes it a number"
                break


def _advantage(node: ast.expr) -> ast.Name | None:
    """A name that says it is an advantage, with a minus or another shape."""
    while isinstance(node, ast.UnaryOp | ast.Subscript):
        node = node.operand if isinstance(node, ast.UnaryOp) else node.value
    if isinstance(node, ast.Name) and _ADVANTAGE.match(node.id.lower()):
        return node
    return None


def _made_of(source: SourceFile, node: ast.expr) -> set[str]:
    """The names that a value has a gradient by."""

    def stops(part: ast.AST) -> bool:
        if isinstance(part, ast.Attribute):
            return part.attr in ("shape", "size", "ndim", "dtype")
        return isinstance(part, ast.Compare) or source.is_call(part, *_STOPPING)

    return {part.id for part in source.parts(node, stops) if isinstance(part, ast.Name)}


#: What coefficients of losses and limits of gradients are called.
_NAME = re.compile(
    r"_*(?:(?:(?:dpo|kto|orpo|cpo|grpo|ppo|kl|kl_loss)_)?beta"
    r"|(?:\w+_)?(?:kl|entropy|ent|vf|value|critic|aux|distill\w*|contrastive|sft|nll|commit\w*)"
    r"(?:_loss)?_(?:coef|coeff|coefficient|weight|penalty)"
    r"|(?:kl|ent)_coe?f{1,2}|label_smoothing|max_grad_norm|grad_clip|gradient_clip"
    r"|clip_grad_norm|grad_clip_norm|max_norm|gradient_clipping"
    r"|clip_(?:eps|epsilon|range|ratio)|epsilon_(?:low|high)"
    r"|gradient_accumulation(?:_steps)?|grad_accum(?:_steps|ulation_steps)?"
    r"|weight_decay|distill\w*_(?:alpha|temperature)|warmup_steps|warmup_ratio)"
)
#: Calls that only show a value.
_SHOWING = (
    "print", "info", "debug", "warning", "log", "write", "echo", "rule", "add_row", "format",
)  # fmt: skip


@rule(
    Severity.WARNING,
    """
import mlx.core as mx
import mlx.nn as nn

class Trainer:
    def __init__(self, model, optimizer, beta=0.1):
        self.model, self.optimizer = model, optimizer
        self.beta = beta
        print(f"beta: {self.beta}")

    def loss(self, model, tokens, reference, advantages):
        logprobs = -nn.losses.cross_entropy(model(tokens[:, :-1]), tokens[:, 1:]).sum(-1)
        return -(mx.exp(logprobs - reference) * advantages).mean()

    def step(self, *batch):
        loss, grads = nn.value_and_grad(self.model, self.loss)(self.model, *batch)
        self.optimizer.update(self.model, grads)
        return loss
""",
    {
        "return -(mx.exp(logprobs - reference) * advantages).mean()": (
            "penalty = mx.exp(reference - logprobs) + logprobs - reference - 1\n"
            "        ratio = mx.exp(logprobs - reference)\n"
            "        return (self.beta * penalty - ratio * advantages).mean()"
        )
    },
)
def coefficient_unused(source: SourceFile) -> Hits:
    """A coefficient that is stored and never used.

    A trainer takes `beta`, `kl_coef` or `entropy_coef`, stores it, perhaps prints it, and computes
    its loss without it: the penalty that it names is not there. The run trains, and drifts from its
    reference as if the coefficient were 0.

    A class that hands `self` on whole, has a base or is one, is left alone: its loss may be
    computed elsewhere.
    """
    classes = list(source.of(ast.ClassDef))
    bases = {ast.unparse(base) for made in classes for base in made.bases}
    for made in classes:
        if made.bases or made.name in bases or not _trains(source, made):
            continue
        selves = [name for name in source.of(ast.Name, within=made) if name.id == "self"]
        attributes = [source.parent(name) for name in selves]
        stored = dict[str, ast.Attribute]()
        for node in attributes:
            # `self` goes somewhere whole, or is asked by text.
            if not isinstance(node, ast.Attribute) or node.attr in ("__dict__", "__class__"):
                break
            if isinstance(node.ctx, ast.Store) and _NAME.fullmatch(node.attr):
                stored.setdefault(node.attr, node)
        else:
            for name, node in stored.items():
                if not _is_used(source, name, made):
                    yield node, f"{name} is stored and used nowhere: no loss or step depends on it"


def _trains(source: SourceFile, made: ast.ClassDef) -> bool:
    """Whether a class computes gradients, or a loss beside an optimizer that it keeps."""
    if any(source.calls("mlx.nn.value_and_grad", "mlx.core.value_and_grad", within=made)):
        return True
    computes = any(
        source.name_of(call.func).startswith("mlx.nn.losses.")
        for call in source.of(ast.Call, within=made)
    )
    return computes and any(source.calls(*OPTIMIZERS, within=made))


def _is_used(source: SourceFile, name: str, made: ast.ClassDef) -> bool:
    """Whether the coefficient is read for anything but to be shown or stored.

    In the class a plain name or another object's attribute of this name is one too: the loss may
    use what it was stored from. Outside any class only an attribute is.
    """
    wanted = name.lstrip("_")
    for node in source.of(ast.Attribute, ast.Name):
        if last_name(node).lstrip("_") != wanted or isinstance(node.ctx, ast.Store):
            continue
        place = source.index.above(node, ast.ClassDef)
        counts = place is made or (place is None and isinstance(node, ast.Attribute))
        if counts and not _is_shown_or_stored(source, node, name):
            return True
    return False


def _is_shown_or_stored(source: SourceFile, node: ast.AST, name: str) -> bool:
    above = source.parent(node)
    while above is not None and not isinstance(above, ast.stmt):
        if isinstance(above, ast.JoinedStr):
            return True
        if isinstance(above, ast.Call) and last_name(above) in _SHOWING:
            return True
        above = source.parent(above)
    targets = above.targets if isinstance(above, ast.Assign) else []
    return any(
        isinstance(part, ast.Attribute) and part.attr == name
        for target in targets
        for part in (target.elts if isinstance(target, ast.Tuple) else [target])
    )


#: Loss -> what must not come last before it, and why.
_TAKES = {
    "cross_entropy": ("softmax", "applies the softmax itself: give it the logits"),
    "binary_cross_entropy": (
        "sigmoid",
        "applies the sigmoid itself: give it the logits, or with_logits=False",
    ),
    "nll_loss": ("softmax", "takes log-probabilities: nn.log_softmax in place of the softmax"),
    "kl_div_loss": ("softmax", "takes log-probabilities: nn.log_softmax in place of the softmax"),
}
_DEPTH = 6


@rule(
    Severity.ERROR,
    """
import mlx.core as mx
import mlx.nn as nn

def loss_fn(model, inputs, targets):
    scores = mx.softmax(model(inputs), axis=-1)
    return nn.losses.cross_entropy(scores, targets, reduction="mean")
""",
    {"mx.softmax(model(inputs), axis=-1)": "model(inputs)"},
)
def probabilities_as_logits(source: SourceFile) -> Hits:
    """Probabilities given to a loss that takes logits, or to one that takes log-probabilities.

    `nn.losses.cross_entropy` applies the softmax itself, `nn.losses.binary_cross_entropy` the
    sigmoid unless it is told `with_logits=False`. Applied twice, the distribution is nearly flat
    whatever the model says: the loss cannot fall far below that of a guess, and the gradient is
    small. `nll_loss` and `kl_div_loss` take log-probabilities, and fall without end where they are
    given something else.
    """
    for loss, (function, reason) in _TAKES.items():
        for call in source.calls(f"mlx.nn.losses.{loss}"):
            # The fourth argument of binary_cross_entropy is `with_logits`.
            of_logits = constant(keyword(call, "with_logits")) is not False and len(call.args) < 4
            if of_logits and call.args and _is_last(source, call.args[0], function):
                yield call, f"{loss} {reason}"


def _is_last(source: SourceFile, node: ast.expr, function: str, depth: int = _DEPTH) -> bool:
    """Whether the last thing done to a value is this function."""
    node = source.values(node)[0]
    if source.is_call(node, f"mlx.core.{function}", f"mlx.nn.{function}"):
        return True
    match node if depth else None:
        case (
            ast.Subscript(value=value)
            | ast.Call(func=ast.Attribute(value=value, attr="astype" | "reshape" | "squeeze"))
        ):
            return _is_last(source, value, function, depth - 1)
    return False


#: Packages whose arrays a part of a file may mean.
_OTHERS = frozenset(("torch", "tensorflow", "jax"))
#: What the mean of a loss is called, or computed from.
_LOSS = re.compile(
    r"loss|(?:^|_)(?:ce|nll|kl|xent|logps?|log_?probs?|scores?)(?:$|_)|cross_entropy"
)


@rule(
    Severity.WARNING,
    """
import mlx.core as mx

def masked_mean(losses, mask):
    return (losses * mask).sum() / mask.sum()
""",
    {"/ mask.sum()": "/ mx.maximum(mask.sum(), 1)"},
)
def unguarded_mean(source: SourceFile) -> Hits:
    """Division by a mask's sum, which is zero for a batch with nothing to learn.

    One batch whose answers were all cut off gives 0/0, the NaN goes into every weight, and the
    model is lost. The longer the prompts and the shorter the limit, the sooner.

    A mask that pools hidden states has always something to pool: the dividend has to be a loss.
    """
    conditions = dict[ast.AST, str | None]()
    for node in source.of(ast.BinOp):
        if not isinstance(node.op, ast.Div):
            continue
        names = source.of(ast.Name, ast.Attribute, within=node.left)
        if not any(_LOSS.search(last_name(name).lower()) for name in names):
            continue
        masks = [_summed_mask(source, value) for value in source.values(node.right)]
        if not all(masks):
            continue
        scope, count = source.scope(node), ast.unparse(node.right)
        if scope not in conditions:
            conditions[scope] = _conditions(source, scope)
        # `if mask is not None` says nothing of what is in it.
        looks = {rf"{re.escape(mask)}\.|\([^()\n]*{re.escape(mask)}" for mask in masks}
        guard = "|".join([rf"(?<!\w){re.escape(count)}(?!\w)", *looks])
        text = conditions[scope]
        if text is not None and not re.search(guard, text):
            yield node, f"{count} is zero for a batch without a target: 0/0 is NaN"


def _summed_mask(source: SourceFile, node: ast.expr) -> str:
    """The mask whose sum a value is, as any type; empty where it is something else."""
    match node:
        case ast.Call(func=ast.Attribute(attr="astype", value=held)):
            masks = [_summed_mask(source, value) for value in source.values(held)]
            return masks[0] if all(masks) else ""
        case ast.Call(args=[held, *_]) if source.is_call(node, "mlx.core.sum"):
            return _mask(held)
        case ast.Call(func=ast.Attribute(attr="sum", value=held)):
            return _mask(held)
    return ""


def _mask(node: ast.expr) -> str:
    """A name with "mask" in it, as any type; not a product, whose sum may well be weighted."""
    match node:
        case ast.Call(func=ast.Attribute(attr="astype", value=held)):
            return _mask(held)
        case ast.Name() | ast.Attribute() if "mask" in ast.unparse(node).lower():
            return ast.unparse(node)
    return ""


def _conditions(source: SourceFile, scope: ast.AST) -> str | None:
    """The conditions of a function, a line each; None where it computes with other arrays."""
    used = source.imports.keys() & source.names_in(scope)
    packages = {source.imports[name].partition(".")[0] for name in used}
    if packages & _OTHERS or packages == {"numpy"}:
        return None
    tests = [node.test for node in source.of(ast.If, ast.IfExp, within=scope)]
    tests += [node.test for node in source.of(ast.While, ast.Assert, within=scope)]
    tests += [call.args[0] for call in source.calls("mlx.core.where", within=scope) if call.args]
    return "\n".join(dict.fromkeys(map(ast.unparse, tests)))
