import pytest
from junitparser import Error, Failure, JUnitXml, Skipped, TestCase, TestSuite

from mlxdoctor.formats import junit
from mlxdoctor.gate.policy import Policy, Rules
from mlxdoctor.gate_result import GateResult, ItemStatus
from tests.conftest import ROOT
from tests.formats import gated_runs, sample
from tests.formats.gated_runs import ACCEPTED, COLLAPSED, HEALTHY, OVERFITTED, hostile
from tests.formats.test_escape import HOSTILE

pytestmark = pytest.mark.usefixtures("_in_the_checkout")


def suites(result: GateResult) -> list[TestSuite]:
    return list(JUnitXml.fromstring(junit.render(result).encode()))


def cases(suite: TestSuite) -> dict[str, TestCase]:
    return {case.name: case for case in suite}


@pytest.mark.slow
def test_a_suite_an_item_in_order_and_a_case_a_check() -> None:
    given = gated_runs.result()
    found = suites(given)
    assert [one.name for one in found] == [*(one.path for one in given.items), *given.unfinished]
    checks = [one.check for one in gated_runs.report(COLLAPSED).outcomes]
    assert [case.name for case in found[0]] == [*checks, junit.GATE_CASE]
    assert {case.classname for case in found[0]} == {f"fixtures/runs/{COLLAPSED}"}
    whole = JUnitXml.fromstring(junit.render(given).encode())
    all_cases = [case for suite in whole for case in suite]
    assert whole.tests == len(all_cases)
    assert whole.failures == sum(case.is_failure for case in all_cases) > 0
    assert whole.errors == sum(case.is_error for case in all_cases) > 0
    assert whole.skipped == sum(case.is_skipped for case in all_cases) > 0
    # What is not there or was not reached is an error.
    *_, absent, unfinished = found
    for suite, said in ((absent, "no such file"), (unfinished, "interrupted")):
        (case,) = suite
        assert case.is_error
        assert said in case.result[0].message
    file = f'file="fixtures/runs/{HEALTHY}/adapters.safetensors"'
    assert junit.render(given).count(file) == len(gated_runs.report(HEALTHY).outcomes) + 1


def test_an_item_is_red_exactly_where_it_did_not_pass() -> None:
    given = gated_runs.result()
    for item, suite in zip(given.items, suites(given), strict=False):
        gate = cases(suite)[junit.GATE_CASE]
        assert gate.is_passed == (item.status is ItemStatus.PASSED)
        assert gate.is_failure == (item.status is ItemStatus.FAILED)
        if item.status is ItemStatus.PASSED:
            assert not any(case.is_failure or case.is_error for case in suite)
    assert {item.status for item in given.items} == set(ItemStatus)
    policy = Policy(ROOT, rules=Rules(require=("score",)))
    (suite,) = suites(GateResult((gated_runs.item(HEALTHY, policy),), None))
    (result,) = cases(suite)[junit.GATE_CASE].result
    assert isinstance(result, Error)
    assert result.type == "inconclusive"
    assert result.message.startswith("the required check score is skipped")


def test_what_fails_names_the_root_cause_every_reason_and_what_to_do() -> None:
    failed = gated_runs.item(COLLAPSED)
    (suite,) = suites(GateResult((failed,), None))
    (gate,) = cases(suite)[junit.GATE_CASE].result
    assert gate.message == "Root cause: the learning rate is too high"
    assert gate.text.splitlines() == list(failed.reasons)
    (result,) = cases(suite)["loss-trend"].result
    assert isinstance(result, Failure)
    assert result.type == "loss-trend.diverged"
    assert result.message.startswith("The loss ends at")
    assert "to do: " in result.text


def test_what_is_noted_or_suppressed_is_no_failure_but_is_said() -> None:
    given = gated_runs.result()
    by_name = {suite.name: cases(suite) for suite in suites(given)}
    accepted = by_name[f"fixtures/runs/{COLLAPSED}"]["loss-trend"]
    assert accepted.is_passed
    assert f"(suppressed by the ignore: {ACCEPTED.reason})" in accepted.system_out
    noted = [one for one in given.items[2].findings if one.finding.severity != "info"]
    case = by_name[f"fixtures/runs/{OVERFITTED}"][noted[0].finding.code.split(".")[0]]
    assert case.is_passed
    assert noted[0].finding.message in case.system_out


def test_skipped_is_never_passed_and_has_its_reason() -> None:
    (suite,) = suites(GateResult((gated_runs.item(HEALTHY),), None))
    found = cases(suite)
    outcomes = gated_runs.report(HEALTHY).outcomes
    assert {one.status for one in outcomes} >= {"passed", "skipped"}
    for one in outcomes:
        case = found[one.check]
        assert case.is_skipped == (one.status in ("skipped", "inconclusive"))
        if case.is_skipped:
            (result,) = case.result
            assert isinstance(result, Skipped)
            assert result.message == f"{one.status}: {one.reason}"


def test_a_crash_is_an_error_and_does_not_hide_what_was_found_before() -> None:
    finding = sample.finding("end-token.missing", "error", "no end token")
    outcomes = [
        sample.outcome("loss-trend", "crashed", reason="KeyError: 'x'"),
        sample.outcome("end-token", "crashed", finding, reason="KeyError: 'y'"),
    ]
    item = gated_runs.judged("x", sample.made(sample.unhealthy() | {"outcomes": outcomes}))
    (suite,) = suites(GateResult((item,), None))
    (crash,) = cases(suite)["loss-trend"].result
    assert isinstance(crash, Error)
    assert crash.message == "KeyError: 'x'"
    (found,) = cases(suite)["end-token"].result
    assert isinstance(found, Failure)
    assert "crashed: KeyError: 'y'" in found.text


@pytest.mark.parametrize(
    "text", [*HOSTILE, "]]></failure><x/>", "\0\x1b[31m\ufffe\ud800", '" a="b', "a\nb"]
)
def test_nothing_written_by_others_breaks_the_document(text: str) -> None:
    written = junit.render(hostile(text))
    document = JUnitXml.fromstring(written.encode())
    assert [len(list(suite)) for suite in document] == [5, 5, 1, 1]
    assert "\x1b" not in written
    assert "\u202e" not in written
    (failed, *_) = document
    assert len(next(iter(failed)).result[0].text.splitlines()) == 4
