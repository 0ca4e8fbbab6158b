"""JUnit XML, as GitLab and Jenkins show it: a case an item, what its checks found inside.

An item is red in the page where it is red in the exit code. An item that is inconclusive is an
error, and never shown as passed.
"""

from xml.etree.ElementTree import Element, SubElement, indent, tostring

from mlxdoctor.finding import LOOKED, Finding
from mlxdoctor.formats.escape import line as escaped
from mlxdoctor.formats.format import Format
from mlxdoctor.formats.gated import cause_of, in_checkout, main_file
from mlxdoctor.gate_result import GatedFinding, GateItem, GateResult, ItemStatus

SUITE = "mlxdoctor gate"
#: What a case may hold in place of a pass -> the attribute in which a suite counts it.
COUNTED = {"failure": "failures", "error": "errors"}


def render(result: GateResult) -> str:
    """One case for each item, in order; paths that were not reached are errors of their own."""
    document = Element("testsuites", name=SUITE)
    suite = SubElement(document, "testsuite", name=SUITE)
    for item in result.items:
        _add_item(suite, item)
    for path in result.unfinished:
        why = "the work was interrupted before this was examined"
        _add_result(_add_case(suite, path, 0.0), "error", "unfinished", why, [])
    cases = list(suite)
    for element in (suite, document):
        element.set("tests", str(len(cases)))
        for kind, attribute in COUNTED.items():
            element.set(attribute, str(sum(case.find(kind) is not None for case in cases)))
        element.set("time", f"{sum(float(case.get('time', 0)) for case in cases):.3f}")
    indent(document)
    written: bytes = tostring(document, encoding="UTF-8", xml_declaration=True)
    return written.decode() + "\n"


def _add_item(suite: Element, item: GateItem) -> None:
    case = _add_case(suite, item.path, item.seconds)
    if file := in_checkout(main_file(item)):
        case.set("file", escaped(file))
    if item.status is not ItemStatus.PASSED:
        details = [line for finding in item.failing for line in _details(finding)]
        first = cause_of(item) or next(iter(item.reasons), item.status.value)
        kind = "failure" if item.status is ItemStatus.FAILED else "error"
        _add_result(case, kind, item.status.value, first, [*details, *item.unexplained])
    lines = [_line(held) for held in item.findings if held.ruling != "fails"]
    if outcomes := item.report.outcomes if item.report is not None else ():
        looked = sum(outcome.status in LOOKED for outcome in outcomes)
        lines.append(f"{looked} of {len(outcomes)} checks had what they look at")
    if lines:
        SubElement(case, "system-out").text = "\n".join(map(escaped, lines))


def _add_case(suite: Element, name: str, seconds: float) -> Element:
    about = {"classname": SUITE, "time": f"{seconds:.3f}"}
    return SubElement(suite, "testcase", about, name=escaped(name))


def _add_result(case: Element, kind: str, type_name: str, message: str, lines: list[str]) -> None:
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
