"""The gate as JSON.

    {"schema_version": 1, "tool": {"name", "version"}, "policy": file or null,
     "counts": {"failed", "unusable", "inconclusive", "passed", "unfinished"},
     "items": [{"path", "status", "reasons": [sentence], "seconds", "verdict",
                "diagnosis": [{"cause", "title", "score"}], "checks": {status: [check]},
                "findings": [{...finding, "ruling", "suppressed_by", "reason"}]}],
     "notices": [sentence], "unfinished": [path]}

`verdict` is null where an item could not be examined. `mlxdoctor diagnose --stdout json` gives
the whole report on one of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

from mlxdoctor.formats import json_format
from mlxdoctor.formats.gate_result import GateItem, GateResult
from mlxdoctor.gate import tally

SCHEMA_VERSION = 1


def render(result: GateResult) -> str:
    """The result as indented JSON in ASCII, with a line break at its end."""
    counted = {status.value: count for status, count in tally.counts(result).items()}
    return json_format.render(
        {
            "schema_version": SCHEMA_VERSION,
            "tool": {"name": "mlxdoctor", "version": version("mlxdoctor")},
            "policy": result.policy,
            "counts": {**counted, "unfinished": len(result.unfinished)},
            "items": [_item(one) for one in result.items],
            "notices": result.notices,
            "unfinished": result.unfinished,
        }
    )


def _item(item: GateItem) -> dict[str, Any]:
    report: Mapping[str, Any] = item.report or {
        "verdict": None,
        "diagnosis": [],
        "causes": {},
        "outcomes": [],
    }
    checks: dict[str, list[str]] = {}
    for outcome in report["outcomes"]:
        checks.setdefault(outcome["status"], []).append(outcome["check"])
    return {
        "path": item.path,
        "status": item.status.value,
        "reasons": item.reasons,
        "seconds": round(item.seconds, 3),
        "verdict": report["verdict"],
        "diagnosis": [
            {
                "cause": one["cause"],
                "title": report["causes"][one["cause"]]["title"],
                "score": one["score"],
            }
            for one in report["diagnosis"]
        ],
        "checks": checks,
        "findings": [
            {
                **one.finding,
                "ruling": one.ruling,
                "suppressed_by": one.suppressed_by,
                "reason": one.reason,
            }
            for one in item.findings
        ],
    }
