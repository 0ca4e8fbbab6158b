"""Hits as text, JSON, SARIF 2.1.0 and GitHub annotations."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from mlxdoctor.finding import Severity
from mlxdoctor.lint.linter import Hit
from mlxdoctor.lint.rule import Rule, rules
from mlxdoctor.report.escape import terminal

SARIF_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "note"}
_COMMANDS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "notice"}


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
    return json.dumps([_to_dict(one) for one in hits], indent=2) + "\n"


def _to_dict(hit: Hit) -> dict[str, Any]:
    return {
        "code": hit.code,
        "severity": hit.severity.value,
        "path": hit.path.as_posix(),
        "line": hit.line,
        "column": hit.column,
        "end_line": hit.end_line,
        "message": hit.message,
    }


def sarif(hits: Sequence[Hit]) -> str:
    """A SARIF 2.1.0 log, with every rule's documentation."""
    log = {
        "$schema": SARIF_SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "mlxdoctor lint",
                        "version": version("mlxdoctor"),
                        "rules": [_sarif_rule(one) for one in rules()],
                    }
                },
                "results": [_sarif_result(one) for one in hits],
            }
        ],
    }
    return json.dumps(log, indent=2) + "\n"


def _sarif_rule(one: Rule) -> dict[str, Any]:
    return {
        "id": one.code,
        "shortDescription": {"text": one.title},
        "fullDescription": {"text": one.documentation},
        "help": {"text": f"{one.documentation}\n\nInstead of:\n{one.bad}\nwrite:\n{one.good}"},
        "defaultConfiguration": {"level": _LEVELS[one.severity]},
    }


def _sarif_result(hit: Hit) -> dict[str, Any]:
    region = {"startLine": hit.line, "startColumn": hit.column, "endLine": hit.end_line}
    return {
        "ruleId": hit.code,
        "level": _LEVELS[hit.severity],
        "message": {"text": hit.message},
        "locations": [
            {
                "physicalLocation": {
                    "artifactLocation": {"uri": _uri(hit.path)},
                    "region": region,
                }
            }
        ],
    }


def _uri(path: Path) -> str:
    """A relative path as it is, escaped; an absolute one as a file URI."""
    from urllib.parse import quote

    return path.as_uri() if path.is_absolute() else quote(path.as_posix())


def github(hits: Sequence[Hit]) -> str:
    """Workflow commands that annotate the lines of a pull request."""
    lines = []
    for one in hits:
        place = (
            f"file={_property(one.path.as_posix())},line={one.line},endLine={one.end_line},"
            f"col={one.column},title={_property(one.code)}"
        )
        lines.append(f"::{_COMMANDS[one.severity]} {place}::{_data(one.message)}\n")
    return "".join(lines)


def _data(value: str) -> str:
    return value.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(value: str) -> str:
    return _data(value).replace(":", "%3A").replace(",", "%2C")
