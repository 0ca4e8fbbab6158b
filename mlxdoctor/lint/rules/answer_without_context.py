"""Answers generated token by token, each from the last token alone.

A model without a cache remembers nothing: given one token, it knows only this one. A loop that
feeds the new token back needs the cache (`model(token, cache=cache)`), or the whole text so far.
Without either, rewards and samples are of text that has nothing to do with the prompt.
"""

import ast
import re

from mlxdoctor.finding import Severity
from mlxdoctor.lint.rule import Hits, rule
from mlxdoctor.lint.source import SourceFile, is_model, last_name

BAD = """
import mlx.core as mx

def generate(model, prompt, length):
    logits, answer = model(mx.array([prompt])), []
    for _ in range(length):
        token = mx.argmax(logits[:, -1], axis=-1)
        answer.append(token.item())
        logits = model(token.reshape(1, 1))
    return answer
"""
GOOD = BAD.replace("model(token.reshape(1, 1))", "model(mx.array([prompt + answer]))")
_TOKEN = re.compile(r"(?:next_?|new_?|sampled_?)?(?:tok(?:en)?(?:_id)?|next_input|y|nxt)")
_SAMPLING = ("argmax", "categorical", "sample", "sampler", "sample_next_token", "sample_token")
_JOINING = ("concatenate", "stack", "concat")


@rule(Severity.ERROR, BAD, GOOD)
def answer_without_context(source: SourceFile) -> Hits:
    """In a loop: a model called with one argument, which is nothing but the token sampled in it."""
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
            yield (
                call,
                "the model is given the last token alone, without a cache: it does not see what "
                "came before",
            )


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
