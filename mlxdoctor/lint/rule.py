"""What a rule is, and how rules are found.

A rule is a function in a module of `mlxdoctor/lint/rules` that is decorated by `@rule`: it gets a
parsed file and yields the nodes at fault. A test runs its examples.
"""

import ast
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache

from mlxdoctor.finding import Severity
from mlxdoctor.lint.source import SourceFile
from mlxdoctor.tables import modules_of

#: What a rule yields: the node at fault, and one sentence about it.
Hits = Iterator[tuple[ast.AST, str]]
Finder = Callable[[SourceFile], Hits]


@dataclass(frozen=True)
class Rule:
    """One known mistake.

    Attributes:
        code: its name, from the function's.
        title: the first line of the function's docstring.
        documentation: the rest of it.
        severity: what a hit means: an error never trains as intended.
        bad: source with the mistake.
        good: the same without it.
        find: gives the hits in a file.
    """

    code: str
    title: str
    documentation: str
    severity: Severity
    bad: str
    good: str
    find: Finder


def rule(severity: Severity, bad: str, good: str | Mapping[str, str]) -> Callable[[Finder], Rule]:
    """Make a rule of the function that finds it; see `Rule`.

    Args:
        good: the good example, or what stands in it instead of parts of the bad one.
    """
    mended = good if isinstance(good, str) else bad
    for part, instead in good.items() if not isinstance(good, str) else ():
        mended = mended.replace(part, instead)

    def make(find: Finder) -> Rule:
        title, _, rest = inspect.cleandoc(find.__doc__ or "").partition("\n")
        code = find.__name__.replace("_", "-")
        return Rule(code, title, rest.strip(), severity, bad, mended, find)

    return make


@cache
def rules() -> tuple[Rule, ...]:
    """Every rule, by code."""
    members = [vars(module).values() for module in modules_of("mlxdoctor.lint.rules")]
    every = [member for each in members for member in each if isinstance(member, Rule)]
    return tuple(sorted(every, key=lambda rule: rule.code))
