"""A report and a gate's result as JSON: docs/report.schema.json, docs/gate.schema.json."""

from typing import Any

from mlxdoctor.finding import plain
from mlxdoctor.formats.format import Format
from mlxdoctor.formats.gated import counts
from mlxdoctor.formats.strict_json import render
from mlxdoctor.gate_result import GateItem, GateResult
from mlxdoctor.installed import version_here

#: Of a gate's result; a report has its own.
GATE_SCHEMA_VERSION = 2


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


FORMAT = Format("json", "json", report=lambda report: render(report.to_dict()), gate=_of_gate)
