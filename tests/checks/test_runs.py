"""What the files of every fixture run show: what its page in reports/ says."""

import re

import pytest

from mlxdoctor.api import diagnose
from tests.conftest import ROOT, RUNS, expected, run_names

SIGN = re.compile(r"^- (?:\*\*(\w+)\*\* )?`([a-z-]+\.[a-z-]+)`", re.MULTILINE)
OTHER = re.compile(r"^\| `([a-z-]+)` \| (passed|skipped|inconclusive) \| (.*?) \|$", re.MULTILINE)
SKIPS, ENDLESS = "token-collapse.skips-tokens", "token-collapse.never-ends"


@pytest.mark.parametrize("name", run_names())
def test_a_run_shows_what_its_page_says(name: str) -> None:
    report = diagnose([RUNS / name], allow_model=False)
    page = (ROOT / "reports" / name / "report.md").read_text()
    signs = {code: severity or "info" for severity, code in SIGN.findall(page)}
    assert {finding.code: finding.severity for finding in report.findings} == signs
    outcomes = {outcome.check: outcome for outcome in report.outcomes}
    others = {(one.check, one.status, one.reason) for one in report.outcomes if not one.findings}
    assert others == set(OTHER.findall(page))
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
