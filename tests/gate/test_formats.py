from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from mlxdoctor.formats import gated, markdown, terminal
from mlxdoctor.formats.format import text_of
from mlxdoctor.gate.examine import Examined
from mlxdoctor.gate.policy import Ignore, Policy
from mlxdoctor.gate.weigh import judge
from mlxdoctor.gate_result import GateItem, GateResult
from tests.formats import sample
from tests.gate.given import TODAY, found, judged, report

EVIL = "a](http://x) <b>\x1b[2J\u202e|`::error::x"
RULES = Policy(
    Path.cwd(), ignores=(Ignore("memory.slow", "the build machine is slow", ("swapping",)),)
)


def unusable(path: str) -> GateItem:
    examined = Examined(None, f"{path}: is empty", 0.0)
    return judge(path, examined, RULES, frozenset(), TODAY).item


def result(*items: GateItem, **fields: tuple[str, ...]) -> GateResult:
    return GateResult(items, policy="mlxdoctor.toml", **fields)


SOUND = judged(RULES, "sound", report(found("weight-drift.large", "warning"))).item
FAILED = judged(RULES, "broken", sample.unhealthy()).item
UNSURE = judged(RULES, "unsure", report(verdict="inconclusive")).item
QUIET = judged(RULES, "swapping", report(found("memory.slow"))).item
ALL = result(
    SOUND,
    unusable("gone"),
    QUIET,
    UNSURE,
    FAILED,
    notices=("the ignore of x suppresses nothing: remove it",),
    unfinished=("later",),
)


def test_the_line_that_sums_up_counts_everything() -> None:
    assert gated.tally(ALL) == (
        "1 of 6 failed, 1 is unusable, 1 is inconclusive, 2 passed, 1 not examined"
    )
    assert gated.tally(result(SOUND, SOUND)) == "2 passed"
    assert gated.tally(result()) == "nothing was examined"


@pytest.mark.parametrize("name", ["text", "markdown"])
def test_what_failed_comes_first_with_its_cause_and_findings(name: str) -> None:
    text = text_of(ALL, name)
    places = [text.index(one) for one in ("broken", "gone", "unsure", "sound")]
    assert places == sorted(places)
    assert "the learning rate is too high" in text
    for finding in FAILED.findings:
        if finding.ruling == "fails":
            assert finding.finding.code in text
    for said in ("is empty", "too little to judge it by", "suppresses nothing", "later"):
        assert said in text
    assert "\n\n\n" not in text
    assert text.endswith("\n")


def test_the_terminal_keeps_to_its_width() -> None:
    text = terminal.render_gate(ALL, width=60, written=["reports/gate.md"])
    assert max(map(len, text.splitlines())) <= 60
    assert "- 1 by the ignore" in text
    assert text.endswith("\n  reports/gate.md\n")


def test_markdown_shows_who_suppressed_what_and_why() -> None:
    text = markdown.gate_page(ALL)
    [row] = [line for line in text.splitlines() if "the build machine is slow" in line]
    assert "`swapping`" in row
    assert "`memory.slow`" in row
    assert "ignore" in row
    assert "the policy in `mlxdoctor.toml`" in text
    assert "Suppressed" not in markdown.gate_page(result(SOUND))
    assert "the default rules" in markdown.gate_page(GateResult((SOUND,), None))


def test_the_first_table_lists_every_item_the_worst_first() -> None:
    table = markdown.gate_page(ALL).split("## All items")[1].split("##")[0]
    names = re.findall(r"^\| `(\w+)`", table, re.MULTILINE)
    assert names == ["broken", "gone", "unsure", "sound", "swapping"]


@pytest.mark.slow
def test_a_job_summary_of_thousands_stays_below_a_megabyte() -> None:
    many = result(*(judged(RULES, f"run-{n}", sample.unhealthy()).item for n in range(3_000)))
    assert len(markdown.gate_page(many).encode()) < 1 << 20
    assert "and 2,000 more" in markdown.gate_page(many)
    passing = result(*(judged(RULES, f"run-{n}", report()).item for n in range(3_000)))
    assert len(terminal.render_gate(passing).splitlines()) < 30


def test_json_tells_all_that_is_needed_to_act(monkeypatch: pytest.MonkeyPatch) -> None:
    data = json.loads(text_of(ALL, "json"))
    assert data["counts"] == {
        "failed": 1,
        "unusable": 1,
        "inconclusive": 1,
        "passed": 2,
        "unfinished": 1,
    }
    by_path = {one["path"]: one for one in data["items"]}
    assert list(by_path) == ["sound", "gone", "swapping", "unsure", "broken"]
    broken = by_path["broken"]
    assert broken["status"] == "failed"
    assert broken["diagnosis"][0]["cause"] == "learning-rate-too-high"
    assert broken["verdict"] == "unhealthy"
    assert {one["ruling"] for one in broken["findings"]} >= {"fails"}
    assert by_path["gone"]["verdict"] is None
    [quiet] = by_path["swapping"]["findings"]
    assert (quiet["ruling"], quiet["suppressed_by"], quiet["reason"]) == (
        "suppressed",
        "ignore",
        "the build machine is slow",
    )
    assert data["unfinished"] == ["later"]
    assert data["policy"] == "mlxdoctor.toml"


@pytest.mark.parametrize("name", ["text", "markdown", "json"])
def test_text_from_artifacts_has_no_power(name: str) -> None:
    outcome = sample.outcome("x", "found", sample.finding("x.y", "error", EVIL, fix=EVIL))
    item = judged(RULES, EVIL, report(outcome)).item
    text = text_of(result(item, unusable(EVIL), notices=(EVIL,), unfinished=(EVIL,)), name)
    assert "\x1b" not in text
    assert "\u202e" not in text
    if name == "markdown":
        from markdown_it import MarkdownIt

        html = MarkdownIt("commonmark").enable("table").render(text)
        assert "<b>" not in html
        assert "<a " not in html
