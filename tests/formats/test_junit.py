import pytest
from junitparser import Error, Failure, JUnitXml, TestCase

from mlxdoctor.formats import junit
from mlxdoctor.gate.policy import Policy, Rules
from mlxdoctor.gate_result import GateResult, ItemStatus
from tests.conftest import ROOT
from tests.formats import gated_runs
from tests.formats.gated_runs import ACCEPTED, COLLAPSED, HEALTHY, OVERFITTED, hostile
from tests.formats.test_escape import HOSTILE

pytestmark = pytest.mark.usefixtures("_in_the_checkout")


def cases(result: GateResult) -> dict[str, TestCase]:
    (suite,) = JUnitXml.fromstring(junit.render(result).encode())
    return {case.name: case for case in suite}


def test_a_case_an_item_in_order() -> None:
    given = gated_runs.result()
    found = cases(given)
    assert [*found] == [*(one.path for one in given.items), *given.unfinished]
    whole = JUnitXml.fromstring(junit.render(given).encode())
    assert whole.tests == len(found)
    assert whole.failures == sum(case.is_failure for case in found.values()) > 0
    assert whole.errors == sum(case.is_error for case in found.values()) > 0
    # What is not there or was not reached is an error.
    *_, absent, unfinished = found.values()
    for case, said in ((absent, "no such file"), (unfinished, "interrupted")):
        assert case.is_error
        assert said in case.result[0].message
    file = f'file="fixtures/runs/{HEALTHY}/adapters.safetensors"'
    assert junit.render(given).count(file) == 1


def test_an_item_is_red_exactly_where_it_did_not_pass() -> None:
    given = gated_runs.result()
    for item, case in zip(given.items, cases(given).values(), strict=False):
        assert case.is_passed == (item.status is ItemStatus.PASSED)
        assert case.is_failure == (item.status is ItemStatus.FAILED)
    assert {item.status for item in given.items} == set(ItemStatus)
    policy = Policy(ROOT, rules=Rules(require=("score",)))
    (case,) = cases(GateResult((gated_runs.item(HEALTHY, policy),), None)).values()
    (result,) = case.result
    assert isinstance(result, Error)
    assert result.type == "inconclusive"
    assert result.message.startswith("the required check score is skipped")


def test_what_fails_names_the_root_cause_every_reason_and_what_to_do() -> None:
    failed = gated_runs.item(COLLAPSED)
    (case,) = cases(GateResult((failed,), None)).values()
    (result,) = case.result
    assert isinstance(result, Failure)
    assert result.type == "failed"
    assert result.message == "Root cause: the learning rate is too high"
    lines = result.text.splitlines()
    assert {*failed.reasons} <= {*lines}
    assert sum(line.startswith("to do: ") for line in lines) == len(failed.failing)


def test_what_is_noted_or_suppressed_is_no_failure_but_is_said() -> None:
    given = gated_runs.result()
    found = cases(given)
    accepted = found[f"fixtures/runs/{COLLAPSED}"]
    assert f"(suppressed by the ignore: {ACCEPTED.reason})" in accepted.system_out
    noted = [one for one in given.items[2].findings if one.finding.severity != "info"]
    case = found[f"fixtures/runs/{OVERFITTED}"]
    assert case.is_passed
    assert noted[0].finding.message in case.system_out
    checks = len(gated_runs.report(OVERFITTED).outcomes)
    assert f"of {checks} checks had what they look at" in case.system_out


@pytest.mark.parametrize(
    "text", [*HOSTILE, "]]></failure><x/>", "\0\x1b[31m\ufffe\ud800", '" a="b', "a\nb"]
)
def test_nothing_written_by_others_breaks_the_document(text: str) -> None:
    written = junit.render(hostile(text))
    (suite,) = JUnitXml.fromstring(written.encode())
    failed, *others = suite
    assert len(others) == 3
    assert "\x1b" not in written
    assert "\u202e" not in written
    assert len(failed.result[0].text.splitlines()) == 5
