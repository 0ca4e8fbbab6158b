"""What fixture runs show by their pages in reports/, and what checks say of no files at all."""

import re

import pytest

from mlxdoctor.api import diagnose
from mlxdoctor.check import discover
from tests.conftest import ROOT, RUNS, check_called, expected, run_names
from tests.given import outcome

SIGN = re.compile(r"^- (?:\*\*(\w+)\*\* )?`([a-z-]+\.[a-z-]+)`", re.MULTILINE)
#: One line has all checks with an outcome and its reason: `- skipped: `a`, `b`: why`.
OTHER = re.compile(
    r"^- (passed|skipped|inconclusive): ((?:`[a-z-]+`(?:, )?)+)(?:: (.*))?$", re.MULTILINE
)
#: It looks for traces in whatever there is.
UNDECIDED = {"known-bugs": "inconclusive"}
#: What they miss is no single kind of evidence.
OWN_WORDS = {"known-bugs", "preferences", "quantization-consistency"}
SKIPS, ENDLESS = "token-collapse.skips-tokens", "token-collapse.never-ends"


@pytest.mark.parametrize("name", run_names())
def test_a_run_shows_what_its_page_says(name: str) -> None:
    report = diagnose([RUNS / name], allow_model=False)
    page = (ROOT / "reports" / name / "report.md").read_text()
    signs = {code: severity or "info" for severity, code in SIGN.findall(page)}
    assert {finding.code: finding.severity for finding in report.findings} == signs
    outcomes = {outcome.check: outcome for outcome in report.outcomes}
    others = {(one.check, one.status, one.reason) for one in report.outcomes if not one.findings}
    assert others == {
        (name.strip("`"), status, reason)
        for status, names, reason in OTHER.findall(page)
        for name in names.split(", ")
    }
    if expected(name)["verdict"] == "healthy":
        assert [seen.learned for seen in outcomes["generation-effect"].seen] == [True]
    # Answers of one token have too few pairs for skips; those of other runs are judged.
    collapse = outcomes["token-collapse"]
    is_judged = collapse.status != "found" or not signs.keys().isdisjoint({SKIPS, ENDLESS})
    assert (SKIPS not in collapse.unsought) is is_judged
    measured = {finding.code: finding.measured for finding in collapse.findings}
    if name == "collapse-frequent-token":
        assert measured["token-collapse.single-token"]["token"] == 11
    if name == "labels-double-shift":
        assert measured[SKIPS]["distance"] == 2
        assert measured[SKIPS]["share"] > 0.5
        assert measured[SKIPS]["adjacent_share"] < 0.2


@pytest.mark.parametrize("name", [one.name for one in discover()])
def test_where_nothing_is_given_a_check_says_so_and_finds_nothing(name: str) -> None:
    found = outcome(check_called(name))
    assert found.status == UNDECIDED.get(name, "skipped")
    assert found.reason
    assert found.reason.startswith("no ") != (name in OWN_WORDS)
    assert not found.findings
