"""An advantage through which the gradient flows.

A policy loss multiplies log-probabilities with an advantage that is a number of the past. If the
advantage has a penalty in it that was computed from the same log-probabilities (reward minus beta
times KL), its own gradient joins in: with the sign turned, and times a sum of log-probabilities,
which is large and negative. Samples that were punished are made likelier. `mx.stop_gradient` makes
it a number.
"""

import ast
import re

from mlxdoctor.finding import Severity
from mlxdoctor.lint.rule import Hits, rule
from mlxdoctor.lint.source import Function, SourceFile

BAD = """
import mlx.core as mx

def policy_loss(logprobs, reference_logprobs, rewards, beta=0.1):
    penalty = (logprobs - reference_logprobs).sum(-1)
    advantages = rewards - beta * penalty
    return -(advantages * logprobs.sum(-1)).mean()
"""
GOOD = BAD.replace("rewards - beta * penalty", "mx.stop_gradient(rewards - beta * penalty)")
_ADVANTAGE = re.compile(r"(?!.*loss).*(?:advantage|shaped_reward|returns)")
_LOG_PROBABILITY = re.compile(
    r"(?!.*(?:ref|old|behavio|teacher)).*(?:logp|log_p|logprob|lps|log_lik)"
)
#: Calls through which no gradient flows.
_STOPPING = (
    "mlx.core.stop_gradient", "stop_gradient", ".item", ".tolist", ".stop_gradient", "float",
    "len", "numpy.array", "mlx.core.argmax", "mlx.core.zeros_like", "mlx.core.ones_like",
)  # fmt: skip


@rule(Severity.ERROR, BAD, GOOD)
def advantage_with_gradient(source: SourceFile) -> Hits:
    """A factor called advantage that is made, without stop_gradient, of the log-probabilities it
    is multiplied with.
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
                yield (
                    node,
                    f"{name.id} is made of {logged}, and its gradient flows through it: "
                    "mx.stop_gradient makes it a number",
                )
                break


def _advantage(node: ast.expr) -> ast.Name | None:
    """A name that says it is an advantage, with a minus or another shape."""
    while isinstance(node, ast.UnaryOp | ast.Subscript):
        node = node.operand if isinstance(node, ast.UnaryOp) else node.value
    is_advantage = isinstance(node, ast.Name) and _ADVANTAGE.match(node.id.lower())
    return node if isinstance(node, ast.Name) and is_advantage else None


def _made_of(source: SourceFile, node: ast.expr) -> set[str]:
    """The names that a value has a gradient by."""

    def stops(part: ast.AST) -> bool:
        if isinstance(part, ast.Attribute):
            return part.attr in ("shape", "size", "ndim", "dtype")
        return isinstance(part, ast.Compare) or source.is_call(part, *_STOPPING)

    return {part.id for part in source.parts(node, stops) if isinstance(part, ast.Name)}
