"""JUnit XML, as GitLab and Jenkins show it: a suite an item, a case a check.

The last case of every suite is the gate itself. It fails where the item did not pass, so that
an item is red in the page exactly where it is red in the exit code; a check that was skipped
is shown as skipped, with the reason, and never as passed.
"""

from __future__ import annotations

import io
from collections.abc import Sequence

from junitparser import Error, Failure, JUnitXml, Skipped, TestCase, TestSuite
from junitparser.junitparser import Attr, FinalResult

from mlxdoctor.finding import Finding, Outcome, Status
from mlxdoctor.formats.escape import xml as escaped
from mlxdoctor.formats.format import Format
from mlxdoctor.formats.gated import cause_of, main_file
from mlxdoctor.formats.places import in_checkout
from mlxdoctor.gate_result import GatedFinding, GateItem, GateResult, ItemStatus

#: The case that stands for the item as a whole.
GATE_CASE = "gate"


class Case(TestCase):
    """A test case that says which file it is about, as GitLab reads it."""

    file = Attr()


def render(result: GateResult) -> str:
    """One suite for each item, in order; paths that were not reached are errors of their own."""
    suites = [_suite(item) for item in result.items]
    suites += [_unfinished(path) for path in result.unfinished]
    document = JUnitXml("mlxdoctor gate")
    # Not add_testsuite, which compares each suite with every other one.
    document.extend(suites)  # type: ignore[no-untyped-call]
    document.update_statistics()  # type: ignore[no-untyped-call]
    stream = io.BytesIO()
    document.write(stream)
    return stream.getvalue().decode() + "\n"


def _unfinished(path: str) -> TestSuite:
    suite = TestSuite(escaped(path))
    reason = "the work was interrupted before this was examined"
    suite.add_testcase(_case(path, None, GATE_CASE, 0.0, Error(reason, "unfinished")))
    return suite


def _suite(item: GateItem) -> TestSuite:
    suite = TestSuite(escaped(item.path))
    file = in_checkout(main_file(item))
    outcomes = item.report.outcomes if item.report is not None else ()
    by_check: dict[str, list[GatedFinding]] = {}
    for one in item.findings:
        by_check.setdefault(one.finding.code.split(".", 1)[0], []).append(one)
    checked = sum(outcome.seconds for outcome in outcomes)
    cases: list[TestCase] = [
        *(_check_case(item.path, file, one, by_check.get(one.check, [])) for one in outcomes),
        _case(item.path, file, GATE_CASE, max(0.0, item.seconds - checked), _gate_result(item)),
    ]
    suite.add_testcases(cases)
    return suite


def _check_case(
    path: str, file: str | None, outcome: Outcome, gated: Sequence[GatedFinding]
) -> Case:
    failing = [one.finding for one in gated if one.ruling == "fails"]
    noted = [_line(one) for one in gated if one.ruling != "fails"]
    status, reason = outcome.status.value, outcome.reason
    result: FinalResult | None = None
    if failing:
        result = Failure(escaped(failing[0].message), escaped(failing[0].code))
        lines = [text for one in failing for text in _details(one)]
        result.text = "\n".join([*lines, *([escaped(f"{status}: {reason}")] if reason else [])])
    elif outcome.status is Status.CRASHED:
        result = Error(escaped(reason), status)
    elif outcome.status in (Status.SKIPPED, Status.INCONCLUSIVE):
        result = Skipped(escaped(f"{status}: {reason}"), status)
    return _case(path, file, outcome.check, outcome.seconds, result, output=noted)


def _gate_result(item: GateItem) -> FinalResult | None:
    if item.status is ItemStatus.PASSED:
        return None
    failed = item.status is ItemStatus.FAILED
    first = (cause_of(item) if failed else None) or next(iter(item.reasons), item.status.value)
    result = (Failure if failed else Error)(escaped(first), item.status.value)
    result.text = "\n".join(escaped(reason) for reason in item.reasons)
    return result


def _case(
    path: str,
    file: str | None,
    name: str,
    seconds: float,
    result: FinalResult | None,
    *,
    output: Sequence[str] = (),
) -> Case:
    case = Case(escaped(name), escaped(path), seconds)
    if file is not None:
        case.file = escaped(file)
    if result is not None:
        case.result = result
    if output:
        case.system_out = "\n".join(output)
    return case


def _line(gated: GatedFinding) -> str:
    finding = gated.finding
    said = f"{finding.severity} {finding.code}: {finding.message}"
    if gated.ruling == "suppressed":
        why = f": {gated.reason}" if gated.reason else ""
        said += f" (suppressed by the {gated.suppressed_by}{why})"
    return escaped(said)


def _details(finding: Finding) -> list[str]:
    parts = (
        ("", f"{finding.code}: {finding.message}"),
        ("where: ", finding.where),
        ("expected: ", finding.expected),
        ("to do: ", finding.fix),
    )
    return [escaped(f"{label}{text}") for label, text in parts if text]


FORMAT = Format("junit", "junit.xml", gate=render)
