"""A coefficient that is stored and never used.

A trainer takes `beta`, `kl_coef` or `entropy_coef`, stores it, perhaps prints it, and computes its
loss without it: the penalty that it names is not there. The run trains, and drifts from its
reference as if the coefficient were 0.
"""

import ast
import re
from collections.abc import Iterator

from mlxdoctor.finding import Severity
from mlxdoctor.lint.made_of import is_stored, model_updates
from mlxdoctor.lint.python_file import SourceFile
from mlxdoctor.lint.rule import Hits, rule
from mlxdoctor.lint.rules.adapter_without_freeze import OPTIMIZERS

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


@rule(severity=Severity.WARNING, bad=BAD, good=GOOD, words=("self.", "value_and_grad|optim"))
def coefficient_unused(source: SourceFile) -> Hits:
    """An attribute of `self` in a class that trains, read nowhere in the class but to be shown, nor
    elsewhere in the file of another object.

    A class that hands `self` on whole, or has a base in another file, is left alone: its loss may
    be computed there.
    """
    for made in source.of(ast.ClassDef):
        if not _trains(source, made) or not _bases_are_here(source, made):
            continue
        if _is_handed_on(source, made):
            continue
        family = [one for one in source.of(ast.ClassDef) if _is_of(one, made)]
        for target in _stored(source, made):
            if not _is_used(source, target, family):
                yield (
                    target,
                    f"{target.attr} is stored and used nowhere: no loss or step depends on it",
                )


def _trains(source: SourceFile, made: ast.ClassDef) -> bool:
    """Whether gradients are computed and applied in a class."""
    gradients = source.calls("mlx.nn.value_and_grad", "mlx.core.value_and_grad", within=made)
    if any(gradients) and any(model_updates(source, within=made)):
        return True
    # A trainer without its loop: the loss is a method, and the optimizer is kept.
    losses = [one for one in source.of(ast.FunctionDef, within=made) if "loss" in one.name.lower()]
    computes = any(
        source.name_of(call.func).startswith("mlx.nn.losses.")
        for call in source.of(ast.Call, within=made)
    )
    return bool(losses) and computes and any(source.calls(*OPTIMIZERS, within=made))


def _bases_are_here(source: SourceFile, made: ast.ClassDef) -> bool:
    known = {one.name for one in source.of(ast.ClassDef)} | {"object", "ABC", "abc.ABC"}
    return all(ast.unparse(base) in known for base in made.bases)


def _is_of(one: ast.ClassDef, made: ast.ClassDef) -> bool:
    """Whether a class is another, its base, or made from it."""
    bases = {ast.unparse(base) for base in made.bases}
    return one is made or one.name in bases or made.name in {ast.unparse(b) for b in one.bases}


def _is_handed_on(source: SourceFile, made: ast.ClassDef) -> bool:
    """Whether `self` goes somewhere whole, or is asked by text."""
    for node in source.of(ast.Name, within=made):
        if node.id != "self":
            continue
        above = source.parents.get(node)
        if not isinstance(above, ast.Attribute) or above.attr in ("__dict__", "__class__"):
            return True
    return False


def _stored(source: SourceFile, made: ast.ClassDef) -> Iterator[ast.Attribute]:
    """The attributes of `self` that are given a value, each once."""
    seen: set[str] = set()
    for node in source.of(ast.Attribute, within=made):
        is_own = isinstance(node.value, ast.Name) and node.value.id == "self"
        if is_own and is_stored(node) and _NAME.match(node.attr) and node.attr not in seen:
            seen.add(node.attr)
            yield node


def _is_used(source: SourceFile, target: ast.Attribute, family: list[ast.ClassDef]) -> bool:
    """Whether the coefficient is read for anything but to be shown or stored.

    In the classes a plain name or another object's attribute of this name is one too: the loss may
    use what it was stored from. Outside only an attribute is.
    """
    wanted = target.attr.lstrip("_")
    found: list[ast.Name | ast.Attribute] = []
    found += [one for one in source.of(ast.Attribute) if one.attr.lstrip("_") == wanted]
    found += [one for one in source.of(ast.Name) if one.id.lstrip("_") == wanted]
    for one in found:
        within = source.class_of(one)
        known = within in family or (within is None and isinstance(one, ast.Attribute))
        if known and not is_stored(one) and not _is_shown_or_stored(source, one, target.attr):
            return True
    return False


def _is_shown_or_stored(source: SourceFile, node: ast.AST, name: str) -> bool:
    above = source.parents.get(node)
    while above is not None and not isinstance(above, ast.stmt):
        if isinstance(above, ast.JoinedStr) or _shows(above):
            return True
        above = source.parents.get(above)
    targets = above.targets if isinstance(above, ast.Assign) else []
    return any(isinstance(one, ast.Attribute) and one.attr == name for one in _flat(targets))


def _flat(targets: list[ast.expr]) -> Iterator[ast.expr]:
    for one in targets:
        yield from one.elts if isinstance(one, ast.Tuple) else [one]


def _shows(node: ast.AST) -> bool:
    """Whether a node is a call that only shows a value."""
    if not isinstance(node, ast.Call):
        return False
    func = node.func
    name = func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "")
    return name in SHOWING
