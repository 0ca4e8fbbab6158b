"""A reference that is the policy itself, gradient and all.

A ratio or a margin compares the policy's log-probabilities with numbers: those of a reference
model, or its own from before the step. Where the reference is the same expression, computed in
the loss from the same model, the two cancel with their gradients: the ratio stays 1, the margin 0,
the loss log 2, and nothing is learned. `mx.stop_gradient` makes it a number.
"""

import ast
import re

from mlxdoctor.finding import Severity
from mlxdoctor.lint.made_of import given_here, losses, parts
from mlxdoctor.lint.python_file import Function, SourceFile
from mlxdoctor.lint.rule import Hits, rule

BAD = """
import mlx.core as mx
import mlx.nn as nn

def score(model, tokens):
    return -nn.losses.cross_entropy(model(tokens[:, :-1]), tokens[:, 1:]).sum(-1)

def loss_fn(model, tokens, advantages):
    logprobs = score(model, tokens)
    old_logprobs = score(model, tokens)
    return -(mx.exp(logprobs - old_logprobs) * advantages).mean()

def step(model, tokens, advantages):
    return nn.value_and_grad(model, loss_fn)(model, tokens, advantages)
"""
GOOD = BAD.replace(
    "old_logprobs = score(model, tokens)", "old_logprobs = mx.stop_gradient(score(model, tokens))"
)
_REFERENCE = re.compile(r"(?:^|_)(?:ref|reference|old|behaviou?r)(?:_|$)")


@rule(
    severity=Severity.ERROR,
    symptom="step-gradients.none",
    bad=BAD,
    good=GOOD,
    words=("value_and_grad|mx.grad|loss", "ref|old|behavio"),
)
def own_reference(source: SourceFile) -> Hits:
    """In a loss: a difference of two names of which one says reference or old,
    both given the same expression, or one the other.
    """
    found = [source.function_named(loss) for _, loss in losses(source)]
    found += [one for one in source.of(ast.FunctionDef) if "loss" in one.name.lower()]
    for function in dict.fromkeys(one for one in found if one is not None):
        for node in source.of(ast.BinOp, within=function):
            pair = (node.left, node.right)
            if not isinstance(node.op, ast.Sub) or not all(isinstance(x, ast.Name) for x in pair):
                continue
            one, other = (each for each in pair if isinstance(each, ast.Name))
            reference = next((x for x in (one, other) if _REFERENCE.search(x.id.lower())), None)
            if reference is not None and _are_alike(source, function, one, other):
                yield (
                    node,
                    f"{one.id} and {other.id} are the same here, with their gradients: "
                    f"mx.stop_gradient makes {reference.id} a number",
                )


def _are_alike(source: SourceFile, function: Function, one: ast.Name, other: ast.Name) -> bool:
    """Whether two names were given the same call of what is differentiated, or one the other."""
    first, second = given_here(source, one), given_here(source, other)
    if one.id == other.id:
        return False
    for values, name in ((first, other.id), (second, one.id)):
        if len(values) == 1 and isinstance(values[0], ast.Name) and values[0].id == name:
            return True
    if len(first) != 1 or len(second) != 1:
        return False
    texts = {ast.unparse(first[0]), ast.unparse(second[0])}
    own = {each.arg for each in (*function.args.posonlyargs, *function.args.args)}
    used = {each.id for each in parts(source, first[0]) if isinstance(each, ast.Name)}
    random = any("random" in text or "dropout" in text for text in texts)
    return len(texts) == 1 and isinstance(first[0], ast.Call) and bool(own & used) and not random
