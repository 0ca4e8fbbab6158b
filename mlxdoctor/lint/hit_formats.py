"""Hits as text, JSON, SARIF 2.1.0 and GitHub annotations."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from mlxdoctor.formats.annotations import KINDS, command
from mlxdoctor.formats.escape import fenced, terminal
from mlxdoctor.formats.escape import sarif as sarif_message
from mlxdoctor.formats.places import in_checkout
from mlxdoctor.formats.sarif import LEVELS, document, place, rule
from mlxdoctor.lint.linter import Hit
from mlxdoctor.lint.rule import Rule, rules


def text(hits: Sequence[Hit]) -> str:
    """One hit a line, `file:line:column: severity [code] message`, and the line below it."""
    lines = []
    for one in hits:
        place = f"{one.path}:{one.line}:{one.column}"
        lines.append(terminal(f"{place}: {one.severity.value} [{one.code}] {one.message}"))
        if one.text:
            lines.append(terminal(f"    {one.text}"))
    return "".join(f"{line}\n" for line in lines)


def to_json(hits: Sequence[Hit]) -> str:
    """A list of objects."""
    rows = [
        {
            "code": one.code,
            "severity": one.severity.value,
            "path": one.path.as_posix(),
            "line": one.line,
            "column": one.column,
            "end_line": one.end_line,
            "message": one.message,
        }
        for one in hits
    ]
    return json.dumps(rows, indent=2) + "\n"


def sarif(hits: Sequence[Hit]) -> str:
    """A SARIF 2.1.0 log, with every rule's documentation."""
    return document(
        "mlxdoctor lint",
        [_sarif_rule(one) for one in rules()],
        [_sarif_result(one) for one in hits],
    )


def _sarif_rule(one: Rule) -> dict[str, Any]:
    text = f"{one.documentation}\n\nInstead of:\n{one.bad}\nwrite:\n{one.good}"
    bad, good = (fenced(example, "python") for example in (one.bad, one.good))
    markdown = f"{one.documentation}\n\nInstead of:\n\n{bad}\n\nwrite:\n\n{good}\n"
    return rule(
        one.code,
        one.title,
        one.documentation,
        text=text,
        markdown=markdown,
        level=LEVELS[one.severity.value],
    )


def _sarif_result(hit: Hit) -> dict[str, Any]:
    region = {"startLine": hit.line, "startColumn": hit.column, "endLine": hit.end_line}
    return {
        "ruleId": hit.code,
        "level": LEVELS[hit.severity.value],
        "message": {"text": sarif_message(hit.message)},
        "locations": [place(hit.path, region)],
    }


def github(hits: Sequence[Hit]) -> str:
    """Workflow commands that annotate the lines of a pull request."""
    return "".join(
        command(
            KINDS[one.severity.value],
            [one.message],
            file=in_checkout(one.path) or one.path.as_posix(),
            line=one.line,
            endLine=one.end_line,
            col=one.column,
            title=one.code,
        )
        for one in hits
    )


#: What `--format` calls them.
FORMATS = {"text": text, "json": to_json, "sarif": sarif, "github": github}
