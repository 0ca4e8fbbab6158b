"""A coefficient that is stored and never used.

A trainer takes `beta`, `kl_coef` or `entropy_coef`, stores it, perhaps prints it, and computes its
loss without it: the penalty that it names is not there. The run trains, and drifts from its
reference as if the coefficient were 0.
"""

import ast
import re
from collections.abc import Iterator

from mlxdoctor.finding import Severity
from mlxdoctor.lint.python_file import SourceFile
from mlxdoctor.lint.rule import Hits, rule

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
    r"^_*(?:(?:dpo|kto|orpo|cpo|grpo|ppo|kl|kl_loss)_)?beta$"
    r"|^_*(?:\w+_)?(?:kl|entropy|ent|vf|value|critic|aux|distill\w*|contrastive|sft|nll|commit\w*)"
    r"(?:_loss)?_(?:coef|coeff|coefficient|weight|penalty)$"
    r"|^_*(?:kl|ent)_coe?f{1,2}$|^_*label_smoothing$|^_*(?:max_grad_norm|grad_clip|gradient_clip"
    r"|clip_grad_norm|grad_clip_norm|max_norm|gradient_clipping)$"
    r"|^_*(?:clip_(?:eps|epsilon|range|ratio)|epsilon_(?:low|high))$"
    r"|^_*(?:gradient_accumulation(?:_steps)?|grad_accum(?:_steps|ulation_steps)?)$"
    r"|^_*weight_decay$|^_*distill\w*_(?:alpha|temperature)$|^_*(?:warmup_steps|warmup_ratio)$"
)
#: Calls that only show a value.
SHOWING = ("print", "info", "debug", "warning", "log", "write", "echo", "rule", "add_row", "format")


@rule(severity=Severity.WARNING, bad=BAD, good=GOOD)
def coefficient_unused(source: SourceFile) -> Hits:
    """An attribute of `self` in a class that trains, read nowhere in the file but to be shown.

    A file that hands `self` on whole, asks it by text, or has a base of the class elsewhere, is
    left alone: its loss may be computed there.
    """
    for made in source.nodes:
        if not isinstance(made, ast.ClassDef) or not _trains(source, made):
            continue
        if made.bases and not _bases_are_here(source, made):
            continue
        if _is_handed_on(source, made):
            continue
        for target in _stored(made):
            if not any(_is_used(source, node, target) for node in source.nodes):
                yield (
                    target,
                    f"{target.attr} is stored and used nowhere: no loss or step depends on it",
                )


def _trains(source: SourceFile, made: ast.ClassDef) -> bool:
    """Whether gradients are computed and applied in a class."""
    return any(
        source.calls("mlx.nn.value_and_grad", "mlx.core.value_and_grad", within=made)
    ) and any(
        len(call.args) == 2 and isinstance(call.func, ast.Attribute)
        and "opt" in ast.unparse(call.func.value).lower()
        for call in source.calls(".update", within=made)
    )


def _bases_are_here(source: SourceFile, made: ast.ClassDef) -> bool:
    known = {one.name for one in source.nodes if isinstance(one, ast.ClassDef)}
    plain = {"object", "ABC", "abc.ABC"}
    return all(ast.unparse(base) in known | plain for base in made.bases)


def _is_handed_on(source: SourceFile, made: ast.ClassDef) -> bool:
    """Whether `self` goes somewhere whole, or is asked by text."""
    for node in ast.walk(made):
        if isinstance(node, ast.Name) and node.id == "self":
            above = source.parents.get(node)
            if not isinstance(above, ast.Attribute):
                return True
            if above.attr in ("__dict__", "__class__"):
                return True
    return False


def _stored(made: ast.ClassDef) -> Iterator[ast.Attribute]:
    """The attributes of `self` that are given a value, each once."""
    seen: set[str] = set()
    for node in ast.walk(made):
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.ctx, ast.Store)
            and isinstance(node.value, ast.Name)
            and node.value.id == "self"
            and _NAME.match(node.attr)
            and node.attr not in seen
        ):
            seen.add(node.attr)
            yield node


def _is_used(source: SourceFile, node: ast.AST, target: ast.Attribute) -> bool:
    """Whether a node reads a coefficient of this name for anything but to show it."""
    if not (isinstance(node, ast.Attribute | ast.Name) and isinstance(node.ctx, ast.Load)):
        return False
    name = node.attr if isinstance(node, ast.Attribute) else node.id
    if name != target.attr:
        return False
    stored = source.parents.get(target)
    below: ast.AST = node
    above = source.parents.get(node)
    while above is not None and not isinstance(above, ast.stmt):
        if isinstance(above, ast.JoinedStr) or _shows(above):
            return False
        below, above = above, source.parents.get(above)
    # What is stored here is no use of it, nor is the parameter it is stored from.
    return above is not stored and not (
        isinstance(above, ast.Assign) and isinstance(above.targets[0], ast.Attribute)
        and above.targets[0].attr == target.attr and below is not None
    )


def _shows(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return False
    func = node.func
    name = func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "")
    return name in SHOWING
