"""Answers generated token by token, each from the last token alone.

A model without a cache remembers nothing: given one token, it knows only this one. A loop that
feeds the new token back needs the cache (`model(token, cache=cache)`), or the whole text so far.
Without either, rewards and samples are of text that has nothing to do with the prompt.
"""

import ast
import re

from mlxdoctor.finding import Severity
from mlxdoctor.lint.made_of import parts
from mlxdoctor.lint.python_file import SourceFile
from mlxdoctor.lint.rule import Hits, rule

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
GOOD = """
import mlx.core as mx

def generate(model, prompt, length):
    logits, answer = model(mx.array([prompt])), []
    for _ in range(length):
        token = mx.argmax(logits[:, -1], axis=-1)
        answer.append(token.item())
        logits = model(mx.array([prompt + answer]))
    return answer
"""
_TOKEN = re.compile(r"^(?:next_?|new_?|sampled_?)?(?:tok(?:en)?(?:_id)?|next_input|y|nxt)$")
SAMPLING = ("argmax", "categorical", "sample", "sampler", "sample_next_token", "sample_token")


@rule(
    severity=Severity.ERROR,
    bad=BAD,
    good=GOOD,
    words=("model(", "argmax|categorical|sampl", "for |while "),
)
def answer_without_context(source: SourceFile) -> Hits:
    """In a loop: a model called with one argument, which is nothing but the token sampled in it."""
    for call in source.of(ast.Call):
        if len(call.args) != 1 or call.keywords or not _is_model(call.func):
            continue
        loop = _loop_above(source, call)
        if loop is None or not _is_sampled(source, loop):
            continue
        if _is_token(source, call.args[0]) and _is_logits(source, call):
            yield (
                call,
                "the model is given the last token alone, without a cache: it does not see what "
                "came before",
            )


def _is_model(node: ast.expr) -> bool:
    last = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
    return last == "model" or last.endswith("_model")


def _loop_above(source: SourceFile, node: ast.AST) -> ast.AST | None:
    above = source.parents.get(node)
    while above is not None and not isinstance(above, ast.For | ast.While | ast.FunctionDef):
        above = source.parents.get(above)
    return above if isinstance(above, ast.For | ast.While) else None


def _is_sampled(source: SourceFile, loop: ast.AST) -> bool:
    return any(_called(one) in SAMPLING for one in source.of(ast.Call, within=loop))


def _called(call: ast.Call) -> str:
    func = call.func
    return func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "")


def _is_logits(source: SourceFile, call: ast.Call) -> bool:
    """Whether the call's value is named logits or out; its caches are not asked for then."""
    above = source.parents.get(call)
    return isinstance(above, ast.Assign) and isinstance(above.targets[0], ast.Name)


def _is_token(source: SourceFile, node: ast.expr) -> bool:
    """Whether an argument is the new token, put into a shape, and not joined with anything."""
    own = list(parts(source, node, _is_new))
    joined = any(
        isinstance(one, ast.BinOp)
        or (isinstance(one, ast.Call) and _called(one) in ("concatenate", "stack", "concat"))
        for one in own
    )
    names = [one.id for one in ast.walk(node) if isinstance(one, ast.Name)]
    news = [one for one in names if _TOKEN.match(one.lower())]
    return not joined and len(news) == 1 and set(names) <= {*news, "mx"}


def _is_new(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and _called(node) in SAMPLING
