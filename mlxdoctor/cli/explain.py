"""`mlxdoctor explain`: what a check looks for, what a cause, a known bug or a lint rule is."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import click

from mlxdoctor.cli import EXIT_CLEAN, output
from mlxdoctor.safety.errors import InputError

if TYPE_CHECKING:
    from mlxdoctor.bugs.known import KnownBug
    from mlxdoctor.causes import Cause
    from mlxdoctor.check import Check, Requirement
    from mlxdoctor.lint.rule import Rule

#: Columns of a paragraph, however wide the terminal is.
MAX_WIDTH = 90


@click.command(name="explain", short_help="Explain a check, code, cause, known bug or lint rule.")
@click.argument("name", metavar="CODE_OR_CAUSE")
def command(name: str) -> int:
    """Explain a check, a finding's code, a cause, a known bug or a lint rule.

    For a check: what it finds, how it is measured, when it is wrong, and its
    thresholds with their sources. For a cause: what speaks for and against it,
    and the remedy. For a known bug: what it does, which versions have it, and where
    it is reported. For a lint rule: a bad example and a good one.

    \b
    Examples:
      mlxdoctor explain learning-rate-too-high
      mlxdoctor explain token-collapse
    """
    from mlxdoctor.bugs.known import load_known_bugs
    from mlxdoctor.causes import load_causes
    from mlxdoctor.check import discover
    from mlxdoctor.lint.rule import rules

    causes, checks = load_causes().causes, discover()
    if name in causes:
        click.echo(_cause(causes[name]))
        return EXIT_CLEAN
    bugs = load_known_bugs()
    if (bug := bugs.get(name.removeprefix("known-bugs."))) is not None:
        click.echo(_bug(bug))
        return EXIT_CLEAN
    for check in checks:
        if name == check.name or name in check.codes:
            click.echo(_check(check, name))
            return EXIT_CLEAN
    rule_of = {rule.code: rule for rule in rules()}
    if name in rule_of:
        click.echo(_rule(rule_of[name]))
        return EXIT_CLEAN
    codes = (code for check in checks for code in check.codes)
    known = {*causes, *bugs, *rule_of, *(check.name for check in checks), *codes}
    raise InputError(None, f"no check, code or cause is called {name!r}", _suggestion(name, known))


def _suggestion(name: str, known: Iterable[str]) -> str:
    from difflib import get_close_matches

    close = get_close_matches(name, sorted(known), n=3, cutoff=0.5)
    listed = ", ".join(close)
    return f"did you mean {listed}?" if close else "`mlxdoctor checks` lists the codes"


def _rule(rule: Rule) -> str:
    shown = [_heading(rule.title)]
    for paragraph in rule.documentation.split("\n\n"):
        shown += [_wrapped(paragraph), ""]
    for title, example in (("Instead of", rule.bad), ("write", rule.good)):
        shown += [_bold(title), textwrap.indent(example.strip("\n"), "  "), ""]
    if rule.symptoms:
        shown += [f"{_bold('Seen by')} the probe as {' or '.join(rule.symptoms)}", ""]
    shown.append(f"Silence it with `# mlxdoctor: ignore[{rule.code}] reason` on its line.")
    return "\n".join(shown)


def _check(check: Check, name: str) -> str:
    from mlxdoctor.check import describe_limits
    from mlxdoctor.formats.summary import number

    lines = [_heading(check.title)]
    if name in check.codes:
        lines += [f"{name}: {check.codes[name]}", ""]
    # The first paragraph is the title.
    for paragraph in check.documentation.strip().split("\n\n")[1:]:
        lines += [_wrapped(paragraph), ""]
    lines += [_bold("Codes"), *_definitions(check.codes), ""]
    needs = [each for each in check.requirements if not each.optional]
    uses = [each for each in check.requirements if each.optional]
    if needs:
        lines.append(f"{_bold('Needs')}  {_kinds(needs)}")
    if uses:
        lines.append(f"{_bold('Uses')}   {_kinds(uses)}, where it is there")
    lines.append(f"{_bold('Cost')}   {check.cost}")
    if limits := describe_limits(check.limits):
        lines += ["", _bold("Thresholds")]
        for threshold in limits:
            lines.append(
                f"  {threshold['name']} = {number(threshold['value'])} {threshold['unit']}"
            )
            lines.append(_wrapped(f"from {threshold['source']}", "      "))
            lines.append(_wrapped(f"false alarms: {threshold['false_alarms']}", "      "))
    return "\n".join(lines)


def _kinds(requirements: Iterable[Requirement]) -> str:
    return ", ".join(str(getattr(need.kind, "kind", need.kind.__name__)) for need in requirements)


def _cause(cause: Cause) -> str:
    lines = [_heading(cause.title), _wrapped(cause.summary), "", _wrapped(cause.explanation), ""]
    speaking_for = {code: weight for code, weight in cause.weights.items() if weight > 0}
    against = {code: weight for code, weight in cause.weights.items() if weight < 0}
    if speaking_for:
        lines += [_bold("What speaks for it (log-odds)"), *_weights(speaking_for), ""]
    if against:
        lines += [_bold("What speaks against it (log-odds)"), *_weights(against), ""]
    lines += [_bold("What to do"), _wrapped(cause.remedy, "  ")]
    if cause.change is not None:
        change = cause.change
        word = "to" if change.operation == "set" else "by"
        lines += ["", f"  {change.operation} {change.key} {word} {change.value}"]
    return "\n".join(lines)


def _bug(bug: KnownBug) -> str:
    lines = [_heading(bug.title), _wrapped(bug.explanation), ""]
    versions = str(bug.affected)
    if bug.verified is not None:
        versions += f" (seen in {bug.verified})"
    lines += [f"{_bold('Versions')}  {versions}", ""]
    if bug.seen_by:
        lines += [_bold("Seen by"), *(f"  mlxdoctor {tool}" for tool in bug.seen_by), ""]
    is_reported = any("/ml-explore/" in address for address in bug.references)
    lines.append(_bold("Reported in" if is_reported else "Package"))
    lines += [f"  {address}" for address in bug.references]
    return "\n".join([*lines, "", _bold("What to do"), _wrapped(bug.remedy, "  ")])


def _weights(weights: Mapping[str, float]) -> list[str]:
    ordered = sorted(weights.items(), key=lambda item: -abs(item[1]))
    return [f"  {weight:+5.1f}  {code}" for code, weight in ordered]


def _definitions(codes: Mapping[str, str]) -> list[str]:
    return [
        line for code, text in codes.items() for line in (f"  {code}", _wrapped(text, "      "))
    ]


def _heading(title: str) -> str:
    return f"{_bold(title)}\n"


def _bold(text: str) -> str:
    return output.style(text, None, bold=True)


def _wrapped(text: str, indent: str = "") -> str:
    return textwrap.fill(
        " ".join(text.split()),
        min(output.width(), MAX_WIDTH),
        initial_indent=indent,
        subsequent_indent=indent,
        break_on_hyphens=False,
        break_long_words=False,
    )
