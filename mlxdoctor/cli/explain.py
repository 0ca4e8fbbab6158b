"""`mlxdoctor explain`: what a check looks for, what a cause, a known bug or a lint rule is."""

import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from functools import partial

import click

from mlxdoctor.bugs.known import KnownBug, load_known_bugs
from mlxdoctor.causes import Cause, load_causes
from mlxdoctor.check import Check, discover
from mlxdoctor.cli import EXIT_CLEAN, output
from mlxdoctor.lint.rule import Rule, rules
from mlxdoctor.safety.errors import InputError

#: Columns of a paragraph, however wide the terminal is.
MAX_WIDTH = 90


@click.command(name="explain")
@click.argument("name", metavar="CODE_OR_CAUSE")
def command(name: str) -> int:
    """Explain a check, a finding's code, a cause, a known bug or a lint rule.

    For a check: what it finds, how it is measured, when it is wrong, and what it
    reads. For a cause: what speaks for and against it, and the remedy. For a
    known bug: what it does, which versions have it, and where it is reported.
    For a lint rule: a bad example and a good one.

    \b
    Examples:
      mlxdoctor explain learning-rate-too-high
      mlxdoctor explain token-collapse
    """
    checks, bugs, knowledge = discover(), load_known_bugs(), load_causes()
    knowledge.require_known(code for check in checks for code in check.symptoms)
    # Where two things share a name, the later line has it.
    pages: Mapping[str, Callable[[], str]] = {
        **{rule.code: partial(_rule, rule) for rule in rules()},
        **{code: partial(_check, check, code) for check in checks for code in check.symptoms},
        **{check.name: partial(_check, check) for check in checks},
        **{f"known-bugs.{name}": partial(_bug, bug) for name, bug in bugs.items()},
        **{name: partial(_bug, bug) for name, bug in bugs.items()},
        **{name: partial(_cause, cause) for name, cause in knowledge.causes.items()},
    }
    if name not in pages:
        close = get_close_matches(name, sorted(pages), n=3, cutoff=0.5)
        likely = f"did you mean {', '.join(close)}?"
        remedy = likely if close else "`mlxdoctor checks` lists the codes"
        raise InputError(None, f"no check, code or cause is called {name!r}", remedy)
    click.echo(pages[name]())
    return EXIT_CLEAN


def _rule(rule: Rule) -> str:
    lists = {
        "Instead of": [textwrap.indent(rule.bad.strip("\n"), "  ")],
        "write": [textwrap.indent(rule.good.strip("\n"), "  ")],
        "Silence it with, on its line": [f"  # mlxdoctor: ignore[{rule.code}] reason"],
    }
    return _page(rule.title, rule.documentation.split("\n\n"), lists)


def _check(check: Check, code: str = "") -> str:
    # The first paragraph is the title.
    paragraphs = check.documentation.strip().split("\n\n")[1:]
    if code:
        paragraphs = [f"{code}: {check.symptoms[code].meaning}", *paragraphs]
    evidence = [
        f"  {getattr(need.kind, 'kind', need.kind.__name__)}{', if there' * need.optional}"
        for need in check.requirements
    ]
    codes = [
        line
        for code, symptom in check.symptoms.items()
        for line in (f"  {code}", _wrapped(symptom.meaning, "      "))
    ]
    lists = {"Codes": codes, f"Reads ({check.cost})": evidence}
    return _page(check.title, paragraphs, lists)


def _cause(cause: Cause) -> str:
    weights = sorted(cause.weights.items(), key=lambda item: -item[1])
    speaks = [f"  {weight:+5.1f}  {code}" for code, weight in weights]
    remedy = [_wrapped(cause.remedy, "  ")]
    if (change := cause.change) is not None:
        word = "to" if change.operation == "set" else "by"
        remedy.append(f"  {change.operation} {change.key} {word} {change.value}")
    lists = {"What speaks for it and against it (log-odds)": speaks, "What to do": remedy}
    return _page(cause.title, [cause.summary, cause.explanation], lists)


def _bug(bug: KnownBug) -> str:
    seen_in = f" (seen in {bug.verified})" if bug.verified is not None else ""
    is_reported = any("/ml-explore/" in address for address in bug.references)
    lists = {
        "Versions": [f"  {bug.versions}{seen_in}"],
        "Seen by": [f"  mlxdoctor {tool}" for tool in bug.seen_by],
        "Reported in" if is_reported else "Package": [f"  {link}" for link in bug.references],
        "What to do": [_wrapped(bug.remedy, "  ")],
    }
    return _page(bug.title, [bug.explanation], lists)


def _page(title: str, paragraphs: Iterable[str], lists: Mapping[str, Sequence[str]]) -> str:
    """A title, paragraphs, and the lists that have lines, each below its heading."""
    blocks = [output.style(title, None, bold=True), *map(_wrapped, paragraphs)]
    for heading, lines in lists.items():
        if lines:
            blocks.append("\n".join([output.style(heading, None, bold=True), *lines]))
    return "\n\n".join(blocks)


def _wrapped(text: str, indent: str = "") -> str:
    return textwrap.fill(
        " ".join(text.split()),
        min(output.width(), MAX_WIDTH),
        initial_indent=indent,
        subsequent_indent=indent,
        break_on_hyphens=False,
        break_long_words=False,
    )
