"""Gradient accumulation whose boundary can be missed, or whose sum is never emptied.

The update is made where the number of the step is a multiple of the accumulation. A `continue`
before that line, on a step that happens to be such a multiple, skips the update: the next one has
twice as many gradients in it. A sum that is not emptied after the update goes on growing, and each
update repeats all before it.
"""

import ast
from collections.abc import Iterator

from mlxdoctor.finding import Severity
from mlxdoctor.lint.python_file import Function, SourceFile, names_in
from mlxdoctor.lint.rule import Hits, rule

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
GOOD = """
import mlx.core as mx
from mlx.utils import tree_map

def train(model, optimizer, step, batches, every):
    total, number = None, 0
    for batch in batches:
        if batch.size == 0:
            continue
        number += 1
        loss, grads = step(model, batch)
        total = grads if total is None else tree_map(mx.add, total, grads)
        if number % every == 0:
            optimizer.update(model, tree_map(lambda g: g / every, total))
            total = None
        mx.eval(model.parameters(), optimizer.state, total)
"""
UPDATES = (".update", ".apply_gradients", ".apply_grads")


@rule(severity=Severity.WARNING, bad=BAD, good=GOOD, words=("%", ".update(|.apply_grad", "for "))
def accumulation_boundary(source: SourceFile) -> Hits:
    """In one loop: a test of the loop's own number for an update, and a `continue` above it; or a
    sum of gradients that the branch with the update does not set again.
    """
    for loop in source.of(ast.For):
        for test in loop.body:
            if not isinstance(test, ast.If) or not _updates(source, test):
                continue
            number = _counted(loop, test)
            if number is not None and (skip := _skip(source, loop, test, number)) is not None:
                yield (
                    skip,
                    f"where this skips a step whose {number} is a multiple, its update is skipped "
                    "too: count the steps that are made",
                )
            yield from _never_emptied(source, loop, test)


def _updates(source: SourceFile, test: ast.If) -> bool:
    """Whether the model is updated under a test of `x % n`."""
    modulo = any(isinstance(node.op, ast.Mod) for node in source.of(ast.BinOp, within=test.test))
    return modulo and any(_update_calls(source, test))


def _update_calls(source: SourceFile, test: ast.If) -> Iterator[ast.Call]:
    for call in source.calls(*UPDATES, within=test):
        held = call.func.value if isinstance(call.func, ast.Attribute) else call
        if len(call.args) == 2 and (
            "opt" in ast.unparse(held).lower() or "opt" in ast.unparse(call.args[0]).lower()
        ):
            yield call


def _counted(loop: ast.For, test: ast.If) -> str | None:
    """The loop's own variable that the test divides, and that nothing in the loop changes."""
    own = names_in(loop.target)
    divided = {
        name
        for node in ast.walk(test.test)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod)
        for name in names_in(node.left)
    }
    found = sorted(own & divided)
    return found[0] if found else None


def _skip(source: SourceFile, loop: ast.For, test: ast.If, number: str) -> ast.Continue | None:
    """A `continue` of this loop above the test, under a condition that is not the number's."""
    for node in source.of(ast.Continue, within=loop):
        if node.lineno > test.lineno:
            continue
        above: ast.AST | None = node
        conditions: list[ast.expr] = []
        while above is not None and above is not loop:
            above = source.parents.get(above)
            if isinstance(above, ast.For | ast.While | Function) and above is not loop:
                break
            if isinstance(above, ast.If):
                conditions.append(above.test)
        # A resumed run skips the steps it has made: all of them.
        if above is loop and conditions and number not in names_in(conditions[0]):
            return node
    return None


def _never_emptied(source: SourceFile, loop: ast.For, test: ast.If) -> Hits:
    """The sum that an update uses, where the branch does not set it again."""
    for call in _update_calls(source, test):
        for name in sorted(names_in(call.args[1])):
            if not _is_sum(source, loop, test, name):
                continue
            emptied = any(
                one.id == name and isinstance(one.ctx, ast.Store | ast.Del)
                for one in source.of(ast.Name, within=test)
                if one.lineno >= call.lineno
            )
            if not emptied:
                yield call, f"{name} is not emptied after the update: the next repeats it"


def _is_sum(source: SourceFile, loop: ast.For, test: ast.If, name: str) -> bool:
    """Whether a name is given something made of itself in the loop, outside the test."""
    for changed in source.of(ast.AugAssign, within=loop):
        if changed.lineno < test.lineno and _is_name(changed.target, name):
            return True
    return any(
        one.lineno < test.lineno
        and name in names_in(one.value)
        and any(_is_name(target, name) for target in one.targets)
        for one in source.of(ast.Assign, within=loop)
    )


def _is_name(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name
