"""An advantage through which the gradient flows.

A policy loss multiplies log-probabilities with an advantage that is a number of the past. If the
advantage has a penalty in it that was computed from the same log-probabilities (reward minus beta
times KL), its own gradient joins in: with the sign turned, and times a sum of log-probabilities,
which is large and negative. Samples that were punished are made likelier. `mx.stop_gradient` makes
it a number.
"""

import ast

from mlxdoctor.finding import Severity
from mlxdoctor.lint.made_of import given_here, parts
from mlxdoctor.lint.python_file import Function, SourceFile
from mlxdoctor.lint.rule import Hits, rule

BAD = """
import mlx.core as mx

def policy_loss(logprobs, reference_logprobs, rewards, beta=0.1):
    penalty = (logprobs - reference_logprobs).sum(-1)
    advantages = rewards - beta * penalty
    return -(advantages * logprobs.sum(-1)).mean()
"""
GOOD = """
import mlx.core as mx

def policy_loss(logprobs, reference_logprobs, rewards, beta=0.1):
    penalty = (logprobs - reference_logprobs).sum(-1)
    advantages = mx.stop_gradient(rewards - beta * penalty)
    return -(advantages * logprobs.sum(-1)).mean()
"""
WORDS = ("advantage", "shaped_reward", "returns")


@rule(
    severity=Severity.ERROR,
    bad=BAD,
    good=GOOD,
    words=("dvantage|shaped_reward|returns *|* returns|returns[", "log"),
)
def advantage_with_gradient(source: SourceFile) -> Hits:
    """A factor called advantage that is made, without stop_gradient, of the log-probabilities it
    is multiplied with.
    """
    for node in source.of(ast.BinOp):
        if not isinstance(node.op, ast.Mult):
            continue
        for one, other in ((node.left, node.right), (node.right, node.left)):
            name = _named(one)
            if name is None or not isinstance(source.scope(node), Function):
                continue
            shared = _made_of(source, name) & _made_of(source, other)
            logged = sorted(each for each in shared if _is_log_probability(each))
            if logged and given_here(source, name):
                yield (
                    node,
                    f"{name.id} is made of {logged[0]}, and its gradient flows through it: "
                    f"mx.stop_gradient makes it a number",
                )
                break


def _named(node: ast.expr) -> ast.Name | None:
    """A name that says it is an advantage, with a minus or another shape."""
    while isinstance(node, ast.UnaryOp | ast.Subscript):
        node = node.operand if isinstance(node, ast.UnaryOp) else node.value
    if not isinstance(node, ast.Name) or "loss" in node.id.lower():
        return None
    return node if any(word in node.id.lower() for word in WORDS) else None


def _made_of(source: SourceFile, node: ast.expr) -> set[str]:
    """The names from outside, or unpacked from calls, that a value has a gradient by."""
    return {
        one.id
        for one in parts(source, node, lambda each: _stops(source, each))
        if isinstance(one, ast.Name)
    }


def _stops(source: SourceFile, node: ast.AST) -> bool:
    """Calls and comparisons through which no gradient flows."""
    if isinstance(node, ast.Compare):
        return True
    if isinstance(node, ast.Attribute):
        return node.attr in ("shape", "size", "ndim", "dtype")
    return source.is_call(
        node, "mlx.core.stop_gradient", "stop_gradient", ".item", ".tolist", ".stop_gradient",
        "float", "len", "numpy.array", "mlx.core.argmax", "mlx.core.zeros_like",
        "mlx.core.ones_like",
    )  # fmt: skip


def _is_log_probability(name: str) -> bool:
    low = name.lower()
    if any(word in low for word in ("ref", "old", "behavior", "behaviour", "teacher")):
        return False
    return any(word in low for word in ("logp", "log_p", "logprob", "lps", "log_lik"))
