import json
import re
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from mlxdoctor.formats import gated, terminal
from mlxdoctor.formats.format import text_of
from mlxdoctor.gate.policy import Policy
from mlxdoctor.gate_result import GateResult
from tests.formats import gated_runs, sample
from tests.formats.gated_runs import ACCEPTED, COLLAPSED, HEALTHY, OVERFITTED
from tests.gate.given import judged, report

EVIL = "a](http://x) <b>\x1b[2J\u202e|`::error::x"
ALL = gated_runs.result()
FAILED, SOUND = ALL.items[:2]
RULES = Policy(Path.cwd())


def test_the_line_that_sums_up_counts_everything() -> None:
    assert gated.tally(ALL) == (
        "1 of 6 failed, 1 is unusable, 1 is inconclusive, 2 passed, 1 not examined"
    )
    assert gated.tally(GateResult((SOUND, SOUND), None)) == "2 passed"
    assert gated.tally(GateResult((), None)) == "nothing was examined"


@pytest.mark.parametrize("name", ["text", "markdown"])
def test_what_failed_comes_first_with_its_cause_and_findings(name: str) -> None:
    text = text_of(ALL, name)
    words = " ".join(text.split())
    places = [text.index(part) for part in (COLLAPSED, "runs/absent", OVERFITTED)]
    assert places == sorted(places)
    assert "the learning rate is too high" in words
    failing = [one.finding.code for one in FAILED.findings if one.ruling == "fails"]
    # The terminal shows the first of them, and counts the rest.
    for code in failing if name == "markdown" else failing[:1]:
        assert code in words
    for part in ("no such file", "crashed", "suppresses nothing", "runs/rate-too-low"):
        assert part in words
    assert "\n\n\n" not in text
    assert text.endswith("\n")


def test_the_terminal_keeps_to_its_width() -> None:
    text = terminal.render_gate(ALL, width=60, written=["reports/gate.md"])
    assert max(map(len, text.splitlines())) <= 60
    assert " by the ignore" in text
    assert text.endswith("\n  reports/gate.md\n")


def test_markdown_shows_who_suppressed_what_and_why() -> None:
    text = text_of(ALL, "markdown")
    rows = [line for line in text.splitlines() if ACCEPTED.reason in line]
    assert rows
    for row in rows:
        assert all(part in row for part in (f"{COLLAPSED}`", f"`{ACCEPTED.code}.", "ignore"))
    assert "the policy in `pyproject.toml`" in text
    assert "Suppressed" not in text_of(GateResult((SOUND,), None), "markdown")
    assert "the default rules" in text_of(GateResult((SOUND,), None), "markdown")


def test_the_first_table_lists_every_item_the_worst_first() -> None:
    table = text_of(ALL, "markdown").split("## All items")[1].split("##")[0]
    names = re.findall(r"^\| `fixtures/runs/?([\w-]*)`", table, re.MULTILINE)
    assert names == [COLLAPSED, "absent", "", HEALTHY, OVERFITTED]


@pytest.mark.long
@pytest.mark.slow
def test_a_job_summary_of_thousands_stays_below_a_megabyte() -> None:
    def page_of(data: dict[str, object]) -> GateResult:
        items = (judged(RULES, f"run-{n}", data).item for n in range(3_000))
        return GateResult(tuple(items), None)

    many = text_of(page_of(sample.unhealthy()), "markdown")
    assert len(many.encode()) < 1 << 20
    assert "and 2,000 more" in many
    assert len(terminal.render_gate(page_of(report())).splitlines()) < 30


def test_json_tells_all_that_is_needed_to_act() -> None:
    data = json.loads(text_of(ALL, "json"))
    assert data["counts"] == {
        "failed": 1,
        "unusable": 1,
        "inconclusive": 1,
        "passed": 2,
        "unfinished": 1,
    }
    assert [item["path"] for item in data["items"]] == [item.path for item in ALL.items]
    broken = data["items"][0]
    assert (broken["status"], broken["verdict"]) == ("failed", "unhealthy")
    assert broken["diagnosis"][0]["cause"] == "learning-rate-too-high"
    assert {finding["ruling"] for finding in broken["findings"]} >= {"fails", "suppressed"}
    for finding in broken["findings"]:
        if finding["ruling"] == "suppressed":
            assert (finding["suppressed_by"], finding["reason"]) == ("ignore", ACCEPTED.reason)
    assert data["items"][-1]["verdict"] is None
    assert (data["unfinished"], data["policy"]) == ([*ALL.unfinished], ALL.policy)


@pytest.mark.parametrize("name", ["text", "markdown", "json"])
def test_text_from_artifacts_has_no_power(name: str) -> None:
    text = text_of(gated_runs.hostile(EVIL), name)
    assert "\x1b" not in text
    assert "\u202e" not in text
    if name == "markdown":
        html = MarkdownIt("commonmark").enable("table").render(text)
        assert "<b>" not in html
        assert "<a " not in html
