"""A report, a gate's result, and whatever else a command says, as JSON that any parser reads.

RFC 8259 has no NaN and no infinity, and Python's own spelling of them is
rejected elsewhere. They are written as the texts "NaN", "Infinity" and
"-Infinity", as Protocol Buffers' JSON mapping does: a NaN loss is a finding,
and `null` would lose it. `float("NaN")` and `Number("NaN")` read them back.

A gate's result is described in docs/gate.schema.json, a report in docs/report.schema.json.
"""

import json
import math
from typing import Any

from mlxdoctor.finding import plain
from mlxdoctor.formats.format import Format
from mlxdoctor.formats.gated import counts
from mlxdoctor.gate_result import GateItem, GateResult
from mlxdoctor.installed import version_here

#: Of a gate's result; a report has its own.
GATE_SCHEMA_VERSION = 2


def render(content: Any) -> str:
    """Indented JSON in ASCII, with a line break at its end."""
    return json.dumps(strict(content), indent=2, allow_nan=False) + "\n"


def _of_gate(result: GateResult) -> str:
    counted = {status.value: count for status, count in counts(result).items()}
    return render(
        {
            "schema_version": GATE_SCHEMA_VERSION,
            "tool": {"name": "mlxdoctor", "version": version_here()},
            "policy": result.policy,
            "counts": {**counted, "unfinished": len(result.unfinished)},
            "items": [_item(one) for one in result.items],
            "notices": result.notices,
            "unfinished": result.unfinished,
        }
    )


def _item(item: GateItem) -> dict[str, Any]:
    report = item.report
    checks: dict[str, list[str]] = {}
    for outcome in report.outcomes if report is not None else ():
        checks.setdefault(outcome.status.value, []).append(outcome.check)
    return {
        "path": item.path,
        "status": item.status.value,
        "reasons": item.reasons,
        "unseen": item.unseen,
        "let_through": item.let_through,
        "seconds": round(item.seconds, 3),
        "verdict": report.verdict.value if report is not None else None,
        "diagnosis": [
            {"cause": one.cause.id, "title": one.cause.title, "score": round(one.score, 3)}
            for one in (report.diagnosis if report is not None else ())
        ],
        "checks": checks,
        "findings": [
            {
                **plain(one.finding),
                "ruling": one.ruling,
                "suppressed_by": one.suppressed_by,
                "reason": one.reason,
            }
            for one in item.findings
        ],
    }


def finite(value: float | None) -> float | None:
    """A figure of a table, and None for one that is not finite."""
    return value if value is not None and math.isfinite(value) else None


def strict(value: Any) -> Any:
    """The value as JSON has it, with NaN and infinities spelled out."""
    # Python writes them in just this spelling, without the quotation marks.
    return json.loads(json.dumps(plain(value)), parse_constant=str)


FORMAT = Format("json", "json", report=lambda report: render(report.to_dict()), gate=_of_gate)
