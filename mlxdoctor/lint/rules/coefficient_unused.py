"""A coefficient that is stored and never used.

A trainer takes `beta`, `kl_coef` or `entropy_coef`, stores it, perhaps prints it, and computes its
loss without it: the penalty that it names is not there. The run trains, and drifts from its
reference as if the coefficient were 0.
"""

import ast
import re
from collections.abc import Iterator

from mlxdoctor.finding import Severity
from mlxdoctor.lint.rule import Hits, rule
from mlxdoctor.lint.source import OPTIMIZERS, SourceFile, last_name

BAD = """
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
"""
GOOD = BAD.replace(
    "        return -(mx.exp(logprobs - reference) * advantages).mean()",
    """        apart = reference - logprobs
        penalty = mx.exp(apart) - apart - 1
        return (self.beta * penalty - mx.exp(-apart) * advantages).mean()""",
)
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
    "print",
    "info",
    "debug",
    "warning",
    "log",
    "write",
    "echo",
    "rule",
    "add_row",
    "format",
)


@rule(Severity.WARNING, BAD, GOOD)
def coefficient_unused(source: SourceFile) -> Hits:
    """An attribute of `self` in a class that trains, read nowhere in the class but to be shown, nor
    elsewhere in the file of another object.

    A class that hands `self` on whole, has a base or is one, is left alone: its loss may be
    computed elsewhere.
    """
    classes = list(source.of(ast.ClassDef))
    bases = {ast.unparse(base) for made in classes for base in made.bases}
    for made in classes:
        is_alone = not made.bases and made.name not in bases
        if is_alone and _trains(source, made) and not _hands_self_on(source, made):
            for target in _stored(source, made):
                if not _is_used(source, target, made):
                    yield (
                        target,
                        f"{target.attr} is stored and used nowhere: no loss or step depends on it",
                    )


def _trains(source: SourceFile, made: ast.ClassDef) -> bool:
    """Whether gradients are computed and applied in a class."""
    gradients = source.calls("mlx.nn.value_and_grad", "mlx.core.value_and_grad", within=made)
    if any(gradients) and any(source.updates(within=made)):
        return True
    # A trainer without its loop: the loss is a method, and the optimizer is kept.
    has_loss = any("loss" in one.name.lower() for one in source.of(ast.FunctionDef, within=made))
    computes = any(
        source.name_of(call.func).startswith("mlx.nn.losses.")
        for call in source.of(ast.Call, within=made)
    )
    return has_loss and computes and any(source.calls(*OPTIMIZERS, within=made))


def _hands_self_on(source: SourceFile, made: ast.ClassDef) -> bool:
    """Whether `self` goes somewhere whole, or is asked by text."""
    parents = (
        source.parent(name) for name in source.of(ast.Name, within=made) if name.id == "self"
    )
    return any(
        not isinstance(parent, ast.Attribute) or parent.attr in ("__dict__", "__class__")
        for parent in parents
    )


def _stored(source: SourceFile, made: ast.ClassDef) -> Iterator[ast.Attribute]:
    """The coefficients that a class stores in `self`, each once."""
    seen = set[str]()
    for node in source.of(ast.Attribute, within=made):
        is_own = isinstance(node.value, ast.Name) and node.value.id == "self"
        is_stored = is_own and isinstance(node.ctx, ast.Store)
        if is_stored and _NAME.fullmatch(node.attr) and node.attr not in seen:
            seen.add(node.attr)
            yield node


def _is_used(source: SourceFile, target: ast.Attribute, made: ast.ClassDef) -> bool:
    """Whether the coefficient is read for anything but to be shown or stored.

    In the class a plain name or another object's attribute of this name is one too: the loss may
    use what it was stored from. Outside any class only an attribute is.
    """
    wanted = target.attr.lstrip("_")
    for node in source.of(ast.Attribute, ast.Name):
        if last_name(node).lstrip("_") != wanted or isinstance(node.ctx, ast.Store):
            continue
        place = source.class_of(node)
        counts = place is made or (place is None and isinstance(node, ast.Attribute))
        if counts and not _is_shown_or_stored(source, node, target.attr):
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
