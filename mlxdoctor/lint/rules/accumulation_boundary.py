"""Gradient accumulation whose boundary can be missed, or whose sum is never emptied.

The update is made where the number of the step is a multiple of the accumulation. A `continue`
before that line, on a step that happens to be such a multiple, skips the update: the next one has
twice as many gradients in it. A sum that is not emptied after the update goes on growing, and each
update repeats all before it.
"""

import ast
from collections.abc import Iterator

from mlxdoctor.finding import Severity
from mlxdoctor.lint.rule import Hits, rule
from mlxdoctor.lint.source import SourceFile

BAD = """
import mlx.core as mx
from mlx.utils import tree_map

def train(model, optimizer, step, batches, every):
    total = None
    for number, batch in enumerate(batches, 1):
        if batch.size == 0:
            continue
        loss, grads = step(model, batch)
        total = grads if total is None else tree_map(mx.add, total, grads)
        if number % every == 0:
            optimizer.update(model, tree_map(lambda g: g / every, total))
            total = None
        mx.eval(model.parameters(), optimizer.state, total)
"""
GOOD = BAD.replace(
    "total = None\n    for number, batch in enumerate(batches, 1)",
    "total, number = None, 0\n    for batch in batches",
).replace("        loss, grads", "        number += 1\n        loss, grads")


@rule(Severity.WARNING, BAD, GOOD)
def accumulation_boundary(source: SourceFile) -> Hits:
    """In one loop: a test of the loop's own number for an update, and a `continue` above it; or a
    sum of gradients that the branch with the update does not set again.
    """
    for update in source.calls(".update", ".apply_gradients", ".apply_grads"):
        loop = source.enclosing(update, ast.For)
        if not isinstance(loop, ast.For) or len(update.args) != 2:
            continue
        test = next((line for line in loop.body if source.is_within(update, line)), None)
        named = (ast.unparse(update.func) + ast.unparse(update.args[0])).lower()
        if not isinstance(test, ast.If) or "opt" not in named:
            continue
        remainders = [
            node for node in source.of(ast.BinOp, within=test.test) if isinstance(node.op, ast.Mod)
        ]
        for number in {name for node in remainders for name in source.names_in(node.left)}:
            skips = list(_skips(source, loop, test, number))
            if number in source.names_in(loop.target) and skips:
                yield (
                    skips[0],
                    f"where this skips a step whose {number} is a multiple, its update is skipped "
                    "too: count the steps that are made",
                )
        for name in sorted(source.names_in(update.args[1])) if remainders else ():
            before = {*_given(source, loop, name)} - {*_given(source, test, name)}
            is_sum = any(
                given.lineno < test.lineno
                and (isinstance(given, ast.AugAssign) or name in source.names_in(given.value))
                for given in before
            )
            emptied = any(given.lineno >= update.lineno for given in _given(source, test, name))
            if is_sum and not emptied:
                yield update, f"{name} is not emptied after the update: the next repeats it"


def _skips(source: SourceFile, loop: ast.For, test: ast.If, number: str) -> Iterator[ast.Continue]:
    """A `continue` of this loop above the test, under a condition that is not the number's."""
    for node in source.of(ast.Continue, within=loop):
        condition = source.enclosing(node, ast.If)
        # A resumed run skips the steps it has made: all of them.
        if (
            node.lineno < test.lineno
            and source.enclosing(node, ast.For, ast.While) is loop
            and isinstance(condition, ast.If)
            and number not in source.names_in(condition.test)
        ):
            yield node


def _given(source: SourceFile, within: ast.AST, name: str) -> Iterator[ast.Assign | ast.AugAssign]:
    """The assignments that give a name a value."""
    for node in source.of(ast.Assign, ast.AugAssign, within=within):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        if any(name in source.names_in(target) for target in targets):
            yield node
