"""Labels of -100 given to a loss that does not know them.

In PyTorch a target of -100 is left out of the cross-entropy. MLX's has no such rule: a negative
target counts from the end of the vocabulary, so that everything that was to be ignored is trained
on one arbitrary token. Mask it: `mx.where(mask, labels, 0)` for the targets, and the losses times
the mask.
"""

import ast

from mlxdoctor.finding import Severity
from mlxdoctor.lint.made_of import parts, resolved
from mlxdoctor.lint.python_file import Function, SourceFile, constant, keyword
from mlxdoctor.lint.rule import Hits, rule

BAD = """
import mlx.core as mx
import mlx.nn as nn

def row(prompt, answer):
    return prompt + answer, [-100] * len(prompt) + answer

def loss_fn(model, inputs, labels):
    logits = model(inputs)[:, :-1]
    return nn.losses.cross_entropy(logits, labels[:, 1:], reduction="mean")
"""
GOOD = """
import mlx.core as mx
import mlx.nn as nn

def row(prompt, answer):
    return prompt + answer, [-100] * len(prompt) + answer

def loss_fn(model, inputs, labels):
    logits, targets = model(inputs)[:, :-1], labels[:, 1:]
    mask = targets != -100
    losses = nn.losses.cross_entropy(logits, mx.where(mask, targets, 0)) * mask
    return losses.sum() / mx.maximum(mask.sum(), 1)
"""
WORDS = ("label", "target")


@rule(
    severity=Severity.ERROR,
    symptom="step-alignment.mixed-targets",
    bad=BAD,
    good=GOOD,
    words=("cross_entropy|nll_loss",),
)
def ignored_label(source: SourceFile) -> Hits:
    """-100 is made in the file and compared with nowhere, and labels go into the loss as they are;
    or the loss is given `ignore_index`, which it does not take.
    """
    if not source.uses_mlx:
        return
    calls = list(source.calls("mlx.nn.losses.cross_entropy", "mlx.nn.losses.nll_loss"))
    for call in calls:
        if keyword(call, "ignore_index") is not None:
            yield (
                call,
                ("MLX's losses have no ignore_index: mask the losses, and targets with mx.where"),
            )
    made = [node for node in source.of(ast.UnaryOp) if constant(node) == -100]
    if not made or not calls or any(_is_handled(source, node) for node in made):
        return
    for call in calls:
        if len(call.args) < 2 or keyword(call, "weights") is not None:
            continue
        if _are_labels(source, call.args[1]) and not _is_masked(source, call):
            yield (
                call,
                "labels of -100 are not left out by MLX: they count from the end of the "
                "vocabulary, and are trained",
            )


def _is_handled(source: SourceFile, node: ast.AST) -> bool:
    """Whether the -100 is compared with something, or is a name's or a parameter's value."""
    above = source.parents.get(node)
    if isinstance(above, ast.Assign | ast.AnnAssign | ast.arguments | ast.keyword):
        return True
    return isinstance(above, ast.Compare)


def _are_labels(source: SourceFile, node: ast.expr) -> bool:
    held = resolved(source, node)
    while isinstance(held, ast.Subscript):
        held = resolved(source, held.value)
    if not isinstance(held, ast.Name) or not isinstance(source.scope(held), Function):
        return False
    return any(word in held.id.lower() for word in WORDS)


def _is_masked(source: SourceFile, call: ast.Call) -> bool:
    """Whether something called a mask is used in the function of the loss."""
    scope = source.scope(call)
    return any(
        "mask" in ast.unparse(node).lower()
        for node in source.of(ast.Name, ast.Attribute, within=scope)
    ) or any(source.is_call(one, "mlx.core.where") for one in parts(source, call.args[1]))
