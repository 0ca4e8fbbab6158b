"""JUnit XML, as GitLab and Jenkins show it: a suite an item, a case a check.

The last case of a suite is the gate itself: an item is red in the page where it is red in the exit
code. A check that was skipped is shown as skipped, with the reason, and never as passed.
"""

from collections.abc import Sequence
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from mlxdoctor.finding import Finding, Outcome, Status
from mlxdoctor.formats.escape import line as escaped
from mlxdoctor.formats.format import Format
from mlxdoctor.formats.gated import cause_of, in_checkout, main_file
from mlxdoctor.gate_result import GatedFinding, GateItem, GateResult, ItemStatus

#: The case that stands for the item as a whole.
GATE_CASE = "gate"
#: What a case may hold in place of a pass -> the attribute in which a suite counts it.
COUNTED = {"failure": "failures", "error": "errors", "skipped": "skipped"}


def render(result: GateResult) -> str:
    """One suite for each item, in order; paths that were not reached are errors of their own."""
    document = Element("testsuites", name="mlxdoctor gate")
    for item in result.items:
        _add_suite(document, item)
    for path in result.unfinished:
        case = _add_case(SubElement(document, "testsuite", name=escaped(path)), GATE_CASE, 0.0)
        why = "the work was interrupted before this was examined"
        _add_result(case, "error", "unfinished", why)
    for element in (*document, document):
        cases = list(element.iter("testcase"))
        element.set("tests", str(len(cases)))
        for kind, attribute in COUNTED.items():
            element.set(attribute, str(sum(case.find(kind) is not None for case in cases)))
        element.set("time", f"{sum(float(case.get('time', 0)) for case in cases):.3f}")
    indent(document)
    written: bytes = tostring(document, encoding="UTF-8", xml_declaration=True)
    return written.decode() + "\n"


def _add_suite(document: Element, item: GateItem) -> None:
    suite = SubElement(document, "testsuite", name=escaped(item.path))
    outcomes = item.report.outcomes if item.report is not None else ()
    for outcome in outcomes:
        _add_check(suite, outcome, item.findings)
    checked = sum(outcome.seconds for outcome in outcomes)
    gate = _add_case(suite, GATE_CASE, max(0.0, item.seconds - checked))
    if item.status is not ItemStatus.PASSED:
        first = cause_of(item) or next(iter(item.reasons), item.status.value)
        kind = "failure" if item.status is ItemStatus.FAILED else "error"
        _add_result(gate, kind, item.status.value, first, item.reasons)
    if file := in_checkout(main_file(item)):
        for case in suite:
            case.set("file", escaped(file))


def _add_check(suite: Element, outcome: Outcome, findings: Sequence[GatedFinding]) -> None:
    case = _add_case(suite, outcome.check, outcome.seconds)
    gated = [one for one in findings if one.finding.code.split(".", 1)[0] == outcome.check]
    status = outcome.status.value
    why = f"{status}: {outcome.reason}"
    failing = [one.finding for one in gated if one.ruling == "fails"]
    if failing:
        lines = [line for finding in failing for line in _details(finding)]
        lines += [why] if outcome.reason else []
        _add_result(case, "failure", failing[0].code, failing[0].message, lines)
    elif outcome.status is Status.CRASHED:
        _add_result(case, "error", status, outcome.reason)
    elif outcome.status in (Status.SKIPPED, Status.INCONCLUSIVE):
        _add_result(case, "skipped", status, why)
    if noted := [_line(one) for one in gated if one.ruling != "fails"]:
        SubElement(case, "system-out").text = "\n".join(map(escaped, noted))


def _add_case(suite: Element, name: str, seconds: float) -> Element:
    about = {"classname": suite.get("name", ""), "time": f"{seconds:.3f}"}
    return SubElement(suite, "testcase", about, name=escaped(name))


def _add_result(
    case: Element, kind: str, type_name: str, message: str, lines: Sequence[str] = ()
) -> None:
    result = SubElement(case, kind, type=type_name, message=escaped(message))
    if lines:
        result.text = "\n".join(map(escaped, lines))


def _line(gated: GatedFinding) -> str:
    finding = gated.finding
    line = f"{finding.severity} {finding.code}: {finding.message}"
    if gated.ruling == "suppressed":
        why = f": {gated.reason}" if gated.reason else ""
        line += f" (suppressed by the {gated.suppressed_by}{why})"
    return line


def _details(finding: Finding) -> list[str]:
    parts = {"where": finding.where, "expected": finding.expected, "to do": finding.fix}
    lines = [f"{label}: {text}" for label, text in parts.items() if text]
    return [f"{finding.code}: {finding.message}", *lines]


FORMAT = Format("junit", "junit.xml", gate=render)
