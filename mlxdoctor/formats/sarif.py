"""SARIF 2.1.0: what code hosts and editors read findings from.

A level says what the policy decided: only what fails an item is an "error", so that a rule of the
host on errors agrees with the gate's exit code.
"""

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from mlxdoctor.finding import Finding, Severity
from mlxdoctor.formats import strict_json
from mlxdoctor.formats.escape import sarif as escaped
from mlxdoctor.formats.format import Format
from mlxdoctor.formats.gated import in_checkout, main_file
from mlxdoctor.formats.summary import headline, sentence
from mlxdoctor.gate_result import GatedFinding, GateItem, GateResult, ItemStatus
from mlxdoctor.installed import version_here

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
#: Severity of a finding -> level of a result.
LEVELS = {"error": "error", "warning": "warning", "info": "note"}


def document(
    tool: str,
    rules: Sequence[Mapping[str, Any]],
    results: Sequence[Mapping[str, Any]],
    invocation: Mapping[str, Any] | None = None,
) -> str:
    """A log with one run, as indented JSON in ASCII.

    Args:
        tool: the name under which the host files the results.
        rules: as `rule` makes them.
        results: as the specification's section 3.27 has them.
        invocation: how the work went (3.20).
    """
    driver = {"name": tool, "version": version_here(), "rules": rules}
    invocations = {"invocations": [invocation]} if invocation is not None else {}
    run = {"tool": {"driver": driver}, **invocations, "results": results}
    log = {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}
    return strict_json.render(log)


def rule(
    code: str, title: str, description: str, *, text: str, markdown: str, level: str | None = None
) -> dict[str, Any]:
    """A rule; `text` is its help, `markdown` the same as Markdown. All of it is our own text."""
    return {
        "id": code,
        "shortDescription": {"text": title},
        "fullDescription": {"text": description},
        "help": {"text": text, "markdown": markdown},
        **({"defaultConfiguration": {"level": level}} if level is not None else {}),
    }


def place(path: str | Path, region: Mapping[str, int] | None = None) -> dict[str, Any]:
    """The physical location of a file, and of lines in it."""
    lines = {"region": region} if region is not None else {}
    return {"physicalLocation": {"artifactLocation": {"uri": uri(path)}, **lines}}


def uri(path: str | Path) -> str:
    """A path from the checkout's root; elsewhere as it is written, or as a file URI."""
    if (inside := in_checkout(path)) is not None:
        return quote(_bytes(inside))
    quoted = quote(_bytes(Path(path).as_posix()))
    return f"file://{quoted}" if Path(path).is_absolute() else quoted


def _bytes(path: str) -> bytes:
    """A path as the system has it: not every name is UTF-8, and not every text a name."""
    try:
        return os.fsencode(path)
    except UnicodeEncodeError:
        return path.encode(errors="replace")


def render(result: GateResult) -> str:
    """A result for each code of an item, those suppressed marked, and what was not examined."""
    gated = list(_gated(result))
    codes = sorted({held.finding.code for _, held, _ in gated})
    has_suppressed = any(held.ruling == "suppressed" for _, held, _ in gated)
    results = []
    for item, held, more in gated:
        finding = held.finding
        location = place(main_file(item))
        if finding.where:
            location["logicalLocations"] = [{"fullyQualifiedName": escaped(finding.where)}]
        # What GitHub tells results apart by. It would hash a line, and adapters have no lines.
        identity = _bytes(f"{item.path}\0{finding.fingerprint}")
        digest = hashlib.sha256(identity).hexdigest()[:16]
        root = item.report.root if item.report is not None else None
        written = {
            "ruleId": finding.code,
            "ruleIndex": codes.index(finding.code),
            "level": _level(held),
            "message": {"text": escaped(_message(item, finding, more))},
            "locations": [location],
            "partialFingerprints": {
                "mlxdoctorFinding/v1": finding.fingerprint,
                "primaryLocationLineHash": f"{digest}:1",
            },
            "properties": {
                "item": escaped(item.path),
                "severity": finding.severity.value,
                "ruling": held.ruling,
                "expected": escaped(finding.expected),
                "onset": finding.onset,
                "rootCause": root.cause.id if root is not None else None,
            },
        }
        if has_suppressed:
            # Where one result says whether it is suppressed, all do (3.27.23).
            reason = escaped(held.reason or "it is in the baseline of known findings")
            suppression = {"kind": "external", "status": "accepted", "justification": reason}
            written["suppressions"] = [suppression] if held.ruling == "suppressed" else []
        results.append(written)
    remarks = [
        (item.status, sentence(text), main_file(item))
        for item in result.items
        for text in item.unexplained
    ]
    remarks += [
        (ItemStatus.UNUSABLE, f"{path} was not examined: the work was interrupted.", path)
        for path in result.unfinished
    ]
    invocation = {
        "executionSuccessful": ItemStatus.UNUSABLE not in {status for status, *_ in remarks},
        "toolExecutionNotifications": [
            _notification("error" if status is ItemStatus.UNUSABLE else "warning", text, path)
            for status, text, path in remarks
        ],
        "toolConfigurationNotifications": [
            _notification("warning", sentence(notice), result.policy) for notice in result.notices
        ],
    }
    return document("mlxdoctor", _rules(codes), results, invocation)


def _gated(result: GateResult) -> Iterator[tuple[GateItem, GatedFinding, int]]:
    """Each code of an item that is more than a note: its first finding, and how many follow it.

    What was accepted stands apart from what was not.
    """
    for item in {item.path: item for item in result.items}.values():
        by_code: dict[tuple[str, str], list[GatedFinding]] = {}
        for held in item.findings:
            if held.ruling != "noted" or held.finding.severity is not Severity.INFO:
                by_code.setdefault((held.finding.code, held.ruling), []).append(held)
        for first, *others in by_code.values():
            yield item, first, len(others)


def _rules(codes: Sequence[str]) -> list[dict[str, Any]]:
    from mlxdoctor.check import discover

    checks = {code: check for check in discover() for code in check.symptoms}
    rules: list[dict[str, Any]] = []
    for code in codes:
        # A report of another version may have codes that are not known here.
        if (check := checks.get(code)) is None:
            rules.append({"id": code})
        else:
            text, meaning = check.documentation, sentence(check.symptoms[code].meaning)
            rules.append(rule(code, meaning, sentence(check.title), text=text, markdown=text))
    return rules


def _level(gated: GatedFinding) -> str:
    if gated.ruling == "fails":
        return "error"
    level = LEVELS[gated.finding.severity]
    return "warning" if gated.ruling == "noted" and level == "error" else level


def _message(item: GateItem, finding: Finding, more: int) -> str:
    """The symptom first: hosts cut a message after its first sentence."""
    report = item.report
    parts = [sentence(finding.message)]
    if report is not None and report.root is not None and finding.code in report.root.supporting:
        parts.append(sentence(headline(report)))
    if finding.fix:
        parts.append(sentence(finding.fix))
    if more:
        parts.append(f"There are {more} more of this kind.")
    return " ".join(parts)


def _notification(level: str, text: str, path: str | None) -> dict[str, Any]:
    located = {"locations": [place(path)]} if path is not None else {}
    return {"level": level, "message": {"text": escaped(text)}, **located}


FORMAT = Format("sarif", "sarif", gate=render)
