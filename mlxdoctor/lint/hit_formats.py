"""Hits as text, JSON, SARIF 2.1.0 and GitHub annotations."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from mlxdoctor.formats import strict_json
from mlxdoctor.formats.annotations import KINDS, command
from mlxdoctor.formats.escape import fenced, terminal
from mlxdoctor.formats.escape import sarif as sarif_message
from mlxdoctor.formats.gated import in_checkout
from mlxdoctor.formats.sarif import LEVELS, document, place, rule
from mlxdoctor.lint.linter import Hit
from mlxdoctor.lint.rule import Rule, rules


def text(hits: Sequence[Hit]) -> str:
    """One hit a line, `file:line:column: severity [code] message`, and the line below it."""
    lines: list[str] = []
    for hit in hits:
        place = f"{hit.path}:{hit.line}:{hit.column}"
        lines.append(f"{place}: {hit.severity.value} [{hit.code}] {hit.message}")
        lines += [f"    {hit.text}"] if hit.text else []
    return "".join(f"{terminal(line)}\n" for line in lines)


def to_json(hits: Sequence[Hit]) -> str:
    """A list of objects."""
    rows = [asdict(hit) | {"path": hit.path.as_posix()} for hit in hits]
    shown = [{key: row[key] for key in row if key != "text"} for row in rows]
    return strict_json.render(shown)


def sarif(hits: Sequence[Hit]) -> str:
    """A SARIF 2.1.0 log, with every rule's documentation."""
    results = []
    for hit in hits:
        region = {"startLine": hit.line, "startColumn": hit.column, "endLine": hit.end_line}
        result = {
            "ruleId": hit.code,
            "level": LEVELS[hit.severity.value],
            "message": {"text": sarif_message(hit.message)},
            "locations": [place(hit.path, region)],
        }
        results.append(result)
    return document("mlxdoctor lint", [_sarif_rule(each) for each in rules()], results)


def _sarif_rule(documented: Rule) -> dict[str, Any]:
    said, bad, good = documented.documentation, documented.bad, documented.good
    text = f"{said}\n\nInstead of:\n{bad}\nwrite:\n{good}"
    bad, good = fenced(bad, "python"), fenced(good, "python")
    markdown = f"{said}\n\nInstead of:\n\n{bad}\n\nwrite:\n\n{good}\n"
    texts = {"text": text, "markdown": markdown, "level": LEVELS[documented.severity.value]}
    return rule(documented.code, documented.title, said, **texts)


def github(hits: Sequence[Hit]) -> str:
    """Workflow commands that annotate the lines of a pull request."""
    commands = ""
    for hit in hits:
        kind, file = KINDS[hit.severity.value], in_checkout(hit.path) or hit.path.as_posix()
        lines: dict[str, int] = {"line": hit.line, "endLine": hit.end_line, "col": hit.column}
        commands += command(kind, [hit.message], file=file, **lines, title=hit.code)
    return commands


#: What `--stdout` calls them.
FORMATS = {"text": text, "json": to_json, "sarif": sarif, "github": github}
