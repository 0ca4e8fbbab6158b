"""What a rule is, and how rules are found.

A rule is a module in `mlxdoctor/lint/rules` with one function decorated by `@rule`, which gets a
parsed file and yields the nodes at fault. The module's docstring is its documentation; the
examples, a bad and a good one, are shown with it and run by a test.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache

from mlxdoctor.finding import Severity
from mlxdoctor.lint.source import SourceFile
from mlxdoctor.members import modules_of

#: What a rule yields: the node at fault, and one sentence about it.
Hits = Iterator[tuple[ast.AST, str]]
Finder = Callable[[SourceFile], Hits]


@dataclass(frozen=True)
class Rule:
    """One known mistake.

    Attributes:
        code: its name, from the module's.
        title: the first line of the module's docstring.
        documentation: the rest of it.
        severity: what a hit means: an error never trains as intended.
        symptoms: codes of the probe's findings that show the same; empty where it cannot.
        bad: source with the mistake.
        good: the same without it.
        find: gives the hits in a file.
    """

    code: str
    title: str
    documentation: str
    severity: Severity
    symptoms: tuple[str, ...]
    bad: str
    good: str
    find: Finder


def rule(
    severity: Severity, bad: str, good: str, symptoms: tuple[str, ...] = ()
) -> Callable[[Finder], Rule]:
    """Make the rule of a module from the function that finds it."""

    def make(find: Finder) -> Rule:
        module = inspect.getmodule(find)
        text = inspect.cleandoc((module.__doc__ if module is not None else None) or "")
        title, _, rest = text.partition("\n")
        code = find.__module__.rpartition(".")[2].replace("_", "-")
        return Rule(code, title, rest.strip(), severity, symptoms, bad, good, find)

    return make


@cache
def rules() -> tuple[Rule, ...]:
    """Every rule, by code."""
    members = [vars(module).values() for module in modules_of("mlxdoctor.lint.rules")]
    every = [member for each in members for member in each if isinstance(member, Rule)]
    return tuple(sorted(every, key=lambda rule: rule.code))
