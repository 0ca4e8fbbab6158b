"""Batches that are used up after the first epoch.

A generator gives its batches once. One that is made before the loop over the epochs is empty from
the second epoch on: no step is made, and nothing is said. Make it anew in each epoch.
"""

import ast

from mlxdoctor.finding import Severity
from mlxdoctor.lint.made_of import given_here
from mlxdoctor.lint.python_file import Function, SourceFile
from mlxdoctor.lint.rule import Hits, rule

BAD = """
import mlx.core as mx

def batches(rows, size):
    for start in range(0, len(rows), size):
        yield mx.array(rows[start : start + size])

def train(model, optimizer, step, rows, epochs):
    data = batches(rows, 4)
    for epoch in range(epochs):
        for batch in data:
            loss, grads = step(model, batch)
            optimizer.update(model, grads)
            mx.eval(model.parameters(), optimizer.state)
"""
GOOD = """
import mlx.core as mx

def batches(rows, size):
    for start in range(0, len(rows), size):
        yield mx.array(rows[start : start + size])

def train(model, optimizer, step, rows, epochs):
    for epoch in range(epochs):
        for batch in batches(rows, 4):
            loss, grads = step(model, batch)
            optimizer.update(model, grads)
            mx.eval(model.parameters(), optimizer.state)
"""


@rule(severity=Severity.ERROR, bad=BAD, good=GOOD, words=("epoch|optim|grads", "for "))
def batches_used_up(source: SourceFile) -> Hits:
    """A loop in a loop over a name that was given a generator of this file before both."""
    for loop in source.of(ast.For):
        if not isinstance(loop.iter, ast.Name):
            continue
        outer = _loop_above(source, loop)
        values = given_here(source, loop.iter)
        if outer is None or len(values) != 1 or values[0].lineno >= outer.lineno:
            continue
        if _ends_early(source, outer, loop):
            continue
        made, name = values[0], loop.iter.id
        if isinstance(made, ast.GeneratorExp) or _is_generator(source, made):
            yield loop.iter, f"{name} gives its batches once: the second time it is empty"


def _loop_above(source: SourceFile, loop: ast.For) -> ast.For | None:
    """The loop over epochs that a loop stands in."""
    above = source.parents.get(loop)
    while above is not None and not isinstance(above, ast.For | ast.While | Function):
        above = source.parents.get(above)
    return above if isinstance(above, ast.For) else None


def _ends_early(source: SourceFile, outer: ast.For, loop: ast.For) -> bool:
    """Whether the inner loop may stop before the batches are used up, to go on with the rest."""
    return any(source.of(ast.Break, within=loop)) or any(
        isinstance(node, ast.Break | ast.Return) for node in outer.body
    )


def _is_generator(source: SourceFile, made: ast.expr) -> bool:
    """Whether a value is a call of a function that yields, and not for ever."""
    if not isinstance(made, ast.Call):
        return False
    function = source.function_named(made.func)
    if not isinstance(function, ast.FunctionDef) or function.decorator_list:
        return False
    endless = any(source.of(ast.While, within=function))
    yields = source.of(ast.Yield, ast.YieldFrom, within=function)
    return not endless and any(source.scope(one) is function for one in yields)
