"""What a rule is, and how rules are found.

A rule is a module in `mlxdoctor/lint/rules` with one function decorated by `@rule`, which gets
a parsed file and yields the nodes at fault. The module's docstring is its documentation; the
examples, a bad and a good one, are shown with it and run by a test. `words` are parts of
the source that every file with a hit has, alternatives set apart by `|`: they make the linter fast.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from mlxdoctor.finding import Severity
from mlxdoctor.lint.python_file import SourceFile
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
        symptom: code of the probe's finding that shows the same; None where it cannot.
        bad: source with the mistake.
        good: the same without it.
        find: gives the hits in a file.
        words: what a file has to have in it for the rule to be able to hit: one of each; a file
            that no rule can hit is not parsed.
    """

    code: str
    title: str
    documentation: str
    severity: Severity
    symptom: str | None
    bad: str
    good: str
    find: Finder
    words: tuple[tuple[str, ...], ...] = ()

    def may_hit(self, text: str) -> bool:
        """Whether a file of this text is worth a look."""
        return all(any(one in text for one in either) for either in self.words)


def rule(
    *,
    severity: Severity,
    bad: str,
    good: str,
    symptom: str | None = None,
    words: Sequence[str] = (),
) -> Callable[[Finder], Rule]:
    """Make the rule of a module from the function that finds it."""

    def make(find: Finder) -> Rule:
        module = inspect.getmodule(find)
        text = inspect.cleandoc((module.__doc__ if module is not None else None) or "")
        title, _, rest = text.partition("\n")
        code = find.__module__.rpartition(".")[2].replace("_", "-")
        said = tuple(tuple(one.split("|")) for one in words)
        return Rule(code, title, rest.strip(), severity, symptom, bad, good, find, said)

    return make


@cache
def rules() -> tuple[Rule, ...]:
    """Every rule, by code."""
    modules = modules_of("mlxdoctor.lint.rules")
    found = [one for each in modules for one in vars(each).values() if isinstance(one, Rule)]
    return tuple(sorted(found, key=lambda one: one.code))
