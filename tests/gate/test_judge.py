from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mlxdoctor.gate.baseline import Known
from mlxdoctor.gate.examine import Examined
from mlxdoctor.gate.policy import Policy
from mlxdoctor.gate.weigh import judge, notices, renewed
from mlxdoctor.gate_result import ItemStatus
from tests.formats.sample import outcome
from tests.gate.given import TODAY, found, judged, policy, report, report_of

LARGE = found("weight-drift.large", "warning")
ZERO = found("learning-rate.zero")
NOTE = found("memory.slow", "info")
IGNORE = '[[ignore]]\ncode = "learning-rate.zero"\nreason = "a test of ours"\n'


@pytest.mark.parametrize(
    ("text", "outcome_found", "status"),
    [
        ("", ZERO, ItemStatus.FAILED),
        ("", LARGE, ItemStatus.PASSED),
        ('fail-on = "warning"', LARGE, ItemStatus.FAILED),
        ('fail-on = "warning"', NOTE, ItemStatus.PASSED),
        ('fail-on = "info"', NOTE, ItemStatus.FAILED),
        ('fail-on = "never"', ZERO, ItemStatus.PASSED),
        ('fail-on = "never"\nfail = ["learning-rate.zero"]', ZERO, ItemStatus.FAILED),
        ('fail = ["weight-drift.large"]', LARGE, ItemStatus.FAILED),
        ('fail = ["weight-drift"]', LARGE, ItemStatus.FAILED),
        ('fail = ["weight-drift.exploded"]', LARGE, ItemStatus.PASSED),
    ],
)
def test_what_fails_an_item(
    tmp_path: Path, text: str, outcome_found: dict[str, object], status: ItemStatus
) -> None:
    item = judged(policy(tmp_path, text), "a", report(outcome_found)).item
    assert item.status is status
    assert [one.ruling for one in item.findings] == [
        "fails" if status is ItemStatus.FAILED else "noted"
    ]
    assert bool(item.reasons) == (status is ItemStatus.FAILED)


def test_a_required_check_must_have_run(tmp_path: Path) -> None:
    rules = policy(tmp_path, 'require = ["loss-trend"]')
    passed = judged(rules, "a", report(outcome("loss-trend", "passed"))).item
    noted = judged(rules, "a", report(found("loss-trend.overfitting", "info"))).item
    assert passed.status is noted.status is ItemStatus.PASSED
    for status in ("skipped", "inconclusive", "crashed"):
        one = outcome("loss-trend", status, reason="no training log was found")
        item = judged(rules, "a", report(one)).item
        assert item.status is ItemStatus.INCONCLUSIVE
        assert item.reasons == (
            f"the required check loss-trend is {status}: no training log was found",
        )


def test_what_could_not_be_judged_never_passes() -> None:
    rules = Policy(Path.cwd())
    crashed = judged(rules, "a", report(outcome("memory", "crashed", reason="KeyError"))).item
    assert crashed.status is ItemStatus.INCONCLUSIVE
    unverified = judged(rules, "a", report(verdict="inconclusive")).item
    assert unverified.status is ItemStatus.INCONCLUSIVE
    unreadable = judged(rules, "a", report(unreadable=["a/x.json: is empty"])).item
    assert unreadable.status is ItemStatus.UNUSABLE
    assert unreadable.reasons == ("a/x.json: is empty",)
    nothing = judge("a", Examined(None, "a: is gone", 0.0), rules, frozenset(), TODAY).item
    assert (nothing.status, nothing.reasons) == (ItemStatus.UNUSABLE, ("a: is gone",))


def test_a_failure_outranks_all_else(tmp_path: Path) -> None:
    rules = policy(tmp_path, 'require = ["loss-trend"]')
    data = report(ZERO, outcome("loss-trend", "skipped"), unreadable=["a/x.json: is empty"])
    item = judged(rules, "a", data).item
    assert item.status is ItemStatus.FAILED
    assert len(item.reasons) == 3


def test_an_ignore_suppresses_and_shows_its_reason(tmp_path: Path) -> None:
    rules = policy(tmp_path, IGNORE)
    judgement = judged(rules, "a", report(ZERO, LARGE))
    assert judgement.item.status is ItemStatus.PASSED
    zero = judgement.item.findings[0]
    assert (zero.ruling, zero.suppressed_by, zero.reason) == (
        "suppressed",
        "ignore",
        "a test of ours",
    )
    assert judgement.item.findings[1].ruling == "noted"
    assert notices(rules, [judgement], TODAY) == ()


def test_an_ignore_holds_for_its_paths_only(tmp_path: Path) -> None:
    rules = policy(tmp_path, IGNORE + 'paths = ["old/*"]')
    assert judged(rules, str(tmp_path / "old/a"), report(ZERO)).item.status is ItemStatus.PASSED
    assert judged(rules, str(tmp_path / "new/a"), report(ZERO)).item.status is ItemStatus.FAILED


@pytest.mark.parametrize(
    ("day", "status"),
    [
        ("2026-06-14", ItemStatus.FAILED),
        ("2026-06-15", ItemStatus.PASSED),
        ("2026-06-16", ItemStatus.PASSED),
    ],
)
def test_an_ignore_ends_after_its_last_day(tmp_path: Path, day: str, status: ItemStatus) -> None:
    rules = policy(tmp_path, IGNORE + f"expires = {day}")
    judgement = judged(rules, "a", report(ZERO))
    assert judgement.item.status is status
    said = notices(rules, [judgement], TODAY)
    assert [f"expired on {day}" in one for one in said] == [True] * (status is ItemStatus.FAILED)


def test_a_suppression_that_suppresses_nothing_is_named(tmp_path: Path) -> None:
    rules = policy(tmp_path, IGNORE + 'paths = ["old/*"]')
    old, new = str(tmp_path / "old/a"), str(tmp_path / "new/a")
    looked = report(outcome("learning-rate", "passed"))
    said = notices(rules, [judged(rules, old, looked)], TODAY)
    assert said == ("the ignore of learning-rate.zero in old/* suppresses nothing: remove it",)
    # Neither another path nor a check that did not look says anything about it.
    assert notices(rules, [judged(rules, new, looked)], TODAY) == ()
    blind = report(outcome("learning-rate", "skipped"))
    assert notices(rules, [judged(rules, old, blind)], TODAY) == ()
    # One item in which it is needed is enough.
    needed = [judged(rules, old, looked), judged(rules, old, report(ZERO))]
    assert notices(rules, needed, TODAY) == ()


def test_what_the_baseline_knows_does_not_fail_and_what_is_new_does(tmp_path: Path) -> None:
    rules = policy(tmp_path, "")
    path = str(tmp_path / "a")
    known = renewed(frozenset(), [judged(rules, path, report(ZERO))])
    assert {(one.path, one.code) for one in known} == {("a", "learning-rate.zero")}
    again = judged(rules, path, report(ZERO), known)
    assert again.item.status is ItemStatus.PASSED
    assert again.item.findings[0].suppressed_by == "baseline"
    worse = judged(rules, path, report(ZERO, found("log-failures.oom")), known)
    assert worse.item.status is ItemStatus.FAILED
    assert judged(rules, str(tmp_path / "b"), report(ZERO), known).item.status is ItemStatus.FAILED


def test_what_the_baseline_knows_of_another_file_fails_anew(tmp_path: Path) -> None:
    rules = policy(tmp_path, "")
    path = str(tmp_path / "a")

    def of(sha256: str, ratio: float = 2.0) -> dict[str, Any]:
        read = [{"kind": "adapter", "source": "a/x.safetensors", "sha256": sha256, "note": ""}]
        large = found("weight-drift.exploded", measured={"ratio": ratio})
        return report_of(read, large)

    known = renewed(frozenset(), [judged(rules, path, of("e" * 64))])
    assert judged(rules, path, of("e" * 64, 2.1), known).item.status is ItemStatus.PASSED
    for other in (of("d" * 64), of("e" * 64, 20.0)):
        anew = judged(rules, path, other, known)
        assert anew.item.status is ItemStatus.FAILED
        assert anew.item.reasons[1].startswith("the baseline accepts weight-drift.exploded")
        # It is no entry that is gone; and accepting it again replaces the old one.
        assert notices(rules, [anew], TODAY) == ()
        assert len(renewed(known, [anew])) == 1
        assert renewed(known, [anew]) != known


@pytest.mark.parametrize("other_first", [True, False])
def test_of_two_lines_that_a_merge_left_the_one_that_accepts_counts(
    tmp_path: Path, other_first: bool
) -> None:
    rules = policy(tmp_path, "")
    path = str(tmp_path / "a")
    [known] = renewed(frozenset(), [judged(rules, path, report(ZERO))])
    other = replace(known, file=("0" if other_first else "f") * 64)
    again = judged(rules, path, report(ZERO), frozenset({known, other}))
    assert again.item.status is ItemStatus.PASSED
    anew = judged(rules, path, report(ZERO), frozenset({other}))
    assert anew.item.status is ItemStatus.FAILED


def test_the_settings_beside_the_weights_are_the_file_as_well(tmp_path: Path) -> None:
    rules = policy(tmp_path, "")
    path = str(tmp_path / "a")

    def of(settings: str) -> dict[str, Any]:
        kinds = {"adapter": "e" * 64, "training configuration": settings * 64, "dataset": "d" * 64}
        read = [{"kind": k, "source": "a", "sha256": one, "note": ""} for k, one in kinds.items()]
        return report_of(read, ZERO)

    known = renewed(frozenset(), [judged(rules, path, of("a"))])
    assert judged(rules, path, of("a"), known).item.status is ItemStatus.PASSED
    assert judged(rules, path, of("b"), known).item.status is ItemStatus.FAILED


def test_errors_that_a_policy_lets_through_are_named(tmp_path: Path) -> None:
    passed = judged(policy(tmp_path, 'fail-on = "never"'), "a", report(ZERO, LARGE)).item
    assert passed.status is ItemStatus.PASSED
    assert passed.let_through == ("learning-rate.zero",)
    assert judged(policy(tmp_path, ""), "a", report(ZERO)).item.let_through == ()
    # What is suppressed is shown as that.
    assert judged(policy(tmp_path, IGNORE), "a", report(ZERO)).item.let_through == ()


def test_what_files_alone_cannot_tell_is_said_and_may_be_required(tmp_path: Path) -> None:
    read = [{"kind": "adapter", "source": "a/x.safetensors", "sha256": None, "note": ""}]
    without = {"kind": "base model", "why": "it is not on this machine"}
    unasked = {"kind": "token losses", "why": "no model was run"}
    quiet = outcome("weight-drift", "passed")
    cases = [([without, unasked], "needs the base"), ([unasked], "needs --generate"), ([], "")]
    for missing, need in cases:
        data = report_of(read, quiet, missing=missing)
        item = judged(policy(tmp_path, ""), "a", data).item
        assert item.status is ItemStatus.PASSED
        assert [one.partition(":")[0] for one in item.unseen] == ([need] if need else [])
        strict = judged(policy(tmp_path, "require-generate = true"), "a", data).item
        assert strict.status is (ItemStatus.INCONCLUSIVE if need else ItemStatus.PASSED)
    log_alone = report_of([], quiet, missing=[without, unasked])
    assert judged(policy(tmp_path, ""), "a", log_alone).item.unseen == ()


def test_a_baseline_entry_that_is_gone_is_named_and_left_out_of_the_next(tmp_path: Path) -> None:
    rules = policy(tmp_path, "")
    path = str(tmp_path / "a")
    gone = Known("a", "learning-rate.zero", "0" * 16)
    blind = Known("a", "memory.slow", "1" * 16)
    elsewhere = Known("b", "learning-rate.zero", "0" * 16)
    known = frozenset({gone, blind, elsewhere})
    data = report(outcome("learning-rate", "passed"), outcome("memory", "skipped"))
    judgement = judged(rules, path, data, known)
    [said] = notices(rules, [judgement], TODAY)
    assert said.startswith("the baseline knows learning-rate.zero in a, where it is gone")
    assert renewed(known, [judgement]) == {blind, elsewhere}
