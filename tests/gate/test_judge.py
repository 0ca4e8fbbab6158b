from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mlxdoctor.evidence.adapter import Adapter
from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.dataset import Dataset
from mlxdoctor.evidence.options import NOT_ASKED
from mlxdoctor.gate import weigh
from mlxdoctor.gate.baseline import Known
from mlxdoctor.gate.weigh import notices, renewed
from mlxdoctor.gate_result import GateItem, ItemStatus
from mlxdoctor.models.losses import TokenLosses
from tests.formats.sample import outcome
from tests.gate.given import TODAY, found, judged, policy, report, report_of

LARGE = found("weight-drift.exploded", "warning")
GROWN = found("weight-drift.exploded")
ZERO = found("learning-rate.zero")
NOTE = found("memory.slow", "info")
OLDER = found("loss-trend.overfitting", "info")
IGNORE = '[[ignore]]\ncode = "learning-rate.zero"\nreason = "a test of ours"\n'

REQUIRED = 'require = ["loss-trend"]'
NO_LOG = "no training log was found"
EMPTY = "a/x.json: is empty"


@pytest.mark.parametrize(
    ("text", "data", "status", "reasons"),
    [
        ("", report(ZERO), "failed", ["learning-rate.zero: "]),
        ("", report(LARGE), "passed", []),
        ('fail-on = "warning"', report(LARGE), "failed", ["weight-drift.exploded: "]),
        ('fail-on = "warning"', report(NOTE), "passed", []),
        ('fail-on = "info"', report(NOTE), "failed", ["memory.slow: "]),
        ('fail-on = "never"', report(ZERO), "passed", []),
        ('fail-on = "never"\nfail = ["learning-rate.zero"]', report(ZERO), "failed", ["learning"]),
        ('fail = ["weight-drift.exploded"]', report(LARGE), "failed", ["weight-drift.exploded: "]),
        ('fail = ["weight-drift"]', report(LARGE), "failed", ["weight-drift.exploded: "]),
        ('fail = ["weight-drift.straight"]', report(LARGE), "passed", []),
        # An effect that is left of a run which learned, and of one that did not.
        ("", report(GROWN), "passed", []),
        ("", report(GROWN, verdict="unhealthy"), "failed", ["weight-drift.exploded: "]),
        ('fail = ["weight-drift"]', report(GROWN), "failed", ["weight-drift.exploded: "]),
        # A required check must have run.
        (REQUIRED, report(outcome("loss-trend", "passed")), "passed", []),
        (REQUIRED, report(found("loss-trend.overfitting", "info")), "passed", []),
        *(
            (
                *(REQUIRED, report(outcome("loss-trend", status, reason=NO_LOG)), "inconclusive"),
                [f"the required check loss-trend is {status}: {NO_LOG}"],
            )
            for status in ("skipped", "inconclusive", "crashed")
        ),
        # What could not be judged never passes.
        ("", report(outcome("memory", "crashed")), "inconclusive", ["the check memory crashed"]),
        ("", report(verdict="inconclusive"), "inconclusive", ["there was too little to judge"]),
        ("", report(unreadable=[EMPTY], verdict="inconclusive"), "unusable", [EMPTY]),
        # But what was judged without it.
        ("", report(unreadable=[EMPTY]), "passed", [EMPTY]),
        # A failure outranks all else.
        (
            *(REQUIRED, report(ZERO, outcome("loss-trend", "skipped"), unreadable=[EMPTY])),
            *("failed", ["learning-rate.zero: ", EMPTY, "the required check loss-trend"]),
        ),
    ],
)
def test_what_becomes_of_an_item_and_why(
    tmp_path: Path, text: str, data: dict[str, Any], status: str, reasons: list[str]
) -> None:
    item = judged(policy(tmp_path, text), "a", data).item
    assert item.status == status
    assert len(item.reasons) == len(reasons)
    assert all(map(str.startswith, item.reasons, reasons))
    rulings = {one.ruling for one in item.findings}
    assert rulings <= ({"fails"} if status == "failed" else {"noted"})


@pytest.mark.parametrize(
    ("text", "beside", "status"),
    [
        ("", [], "failed"),
        ('fail-on = "never"', [], "passed"),
        # A verdict may rest on what was accepted, and not on just anything that was.
        (IGNORE, [ZERO], "passed"),
        (IGNORE.replace("learning-rate.zero", "loss-trend.overfitting"), [OLDER], "failed"),
    ],
)
def test_a_run_that_failed_by_warnings_alone_does_not_pass(
    tmp_path: Path, text: str, beside: list[dict[str, Any]], status: str
) -> None:
    data = report(LARGE, *beside, verdict="unhealthy")
    item = judged(policy(tmp_path, text), "a", data).item
    assert item.status == status
    assert bool(item.reasons) is (status == "failed")


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
    assert tuple(notices(rules, [judgement], TODAY)) == ()


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
    said = tuple(notices(rules, [judgement], TODAY))
    assert [f"expired on {day}" in one for one in said] == [True] * (status is ItemStatus.FAILED)


def test_a_suppression_that_suppresses_nothing_is_named(tmp_path: Path) -> None:
    rules = policy(tmp_path, IGNORE + 'paths = ["old/*"]')
    old, new = str(tmp_path / "old/a"), str(tmp_path / "new/a")
    looked = report(outcome("learning-rate", "passed"))
    said = tuple(notices(rules, [judged(rules, old, looked)], TODAY))
    assert said == ("the ignore of learning-rate.zero in old/* suppresses nothing: remove it",)
    # Neither another path nor a check that did not look says anything about it.
    assert tuple(notices(rules, [judged(rules, new, looked)], TODAY)) == ()
    blind = report(outcome("learning-rate", "skipped"))
    assert tuple(notices(rules, [judged(rules, old, blind)], TODAY)) == ()
    # One item in which it is needed is enough.
    needed = [judged(rules, old, looked), judged(rules, old, report(ZERO))]
    assert tuple(notices(rules, needed, TODAY)) == ()


def of(weights: str, ratio: float = 2.0, settings: str = "a") -> dict[str, Any]:
    """The report of an adapter with these files and a figure."""
    kinds = {"adapter": weights, "training configuration": settings, "dataset": "d"}
    read = [{"kind": k, "source": "a", "sha256": one * 64, "note": ""} for k, one in kinds.items()]
    grown = found("weight-drift.exploded", measured={"ratio": ratio})
    return report_of(read, grown) | {"verdict": "unhealthy"}


def test_a_baseline_accepts_a_finding_of_these_files_and_of_this_size(tmp_path: Path) -> None:
    rules = policy(tmp_path, "")
    path = str(tmp_path / "a")
    known = renewed(frozenset(), [judged(rules, path, of("e"))])
    assert {(one.path, one.code) for one in known} == {("a", "weight-drift.exploded")}
    again = judged(rules, path, of("e", 2.1), known).item
    assert again.status is ItemStatus.PASSED
    assert again.findings[0].suppressed_by == "baseline"
    # Other weights, a larger figure, other settings beside the weights: all of it is new.
    for other in (of("d"), of("e", 20.0), of("e", settings="b")):
        anew = judged(rules, path, other, known)
        assert anew.item.status is ItemStatus.FAILED
        assert anew.item.reasons[1].startswith("the baseline accepts weight-drift.exploded")
        # It is no entry that is gone; and accepting it again replaces the old one.
        assert tuple(notices(rules, [anew], TODAY)) == ()
        assert len(renewed(known, [anew])) == 1
        assert renewed(known, [anew]) != known
    worse = report(found("log-failures.oom"))
    assert judged(rules, path, worse, known).item.status is ItemStatus.FAILED
    assert judged(rules, str(tmp_path / "b"), of("e"), known).item.status is ItemStatus.FAILED


@pytest.mark.parametrize("other_first", [True, False])
def test_of_two_lines_that_a_merge_left_the_one_that_accepts_counts(
    tmp_path: Path, other_first: bool
) -> None:
    rules = policy(tmp_path, "")
    path = str(tmp_path / "a")
    [known] = renewed(frozenset(), [judged(rules, path, report(ZERO))])
    other = replace(known, file=("0" if other_first else "f") * 64)
    both, alone = frozenset({known, other}), frozenset({other})
    assert judged(rules, path, report(ZERO), both).item.status is ItemStatus.PASSED
    assert judged(rules, path, report(ZERO), alone).item.status is ItemStatus.FAILED


def test_errors_that_a_policy_lets_through_are_named(tmp_path: Path) -> None:
    passed = judged(policy(tmp_path, 'fail-on = "never"'), "a", report(ZERO, LARGE)).item
    assert passed.status is ItemStatus.PASSED
    assert passed.let_through == ("learning-rate.zero",)
    assert judged(policy(tmp_path, ""), "a", report(ZERO)).item.let_through == ()
    # What is suppressed is shown as that.
    assert judged(policy(tmp_path, IGNORE), "a", report(ZERO)).item.let_through == ()


ADAPTER = [{"kind": "adapter", "source": "a/x.safetensors", "sha256": None, "note": ""}]
NO_BASE = {"kind": "base model", "why": "the base model 'b' is not on this machine"}
NOT_RUN = {"kind": "token losses", "why": f"{NOT_ASKED}; leave that option out"}
NO_ROWS = {"kind": "dataset", "why": "the data 'rows' is not on this machine"}
NO_SUCH = {**NO_ROWS, "kind": "token losses"}


def test_kinds_of_evidence_have_the_names_of_their_classes() -> None:
    named = weigh.ADAPTER, weigh.BASE, weigh.ROWS, weigh.LOSSES
    assert named == tuple(kind.kind for kind in (Adapter, BaseModel, Dataset, TokenLosses))


@pytest.mark.parametrize(
    ("missing", "need", "why"),
    [
        ([NO_BASE], "needs the base", "the base model 'b' is not on this machine"),
        ([NOT_RUN], "needs --generate", "needs --generate"),
        ([NO_ROWS, NOT_RUN], "needs --generate", "needs --generate"),
        ([NO_ROWS, NO_SUCH], "needs its rows", "the data 'rows' is not on this machine"),
    ],
)
def test_what_was_not_seen_is_said_and_may_be_required(
    tmp_path: Path, missing: list[dict[str, str]], need: str, why: str
) -> None:
    skipped = outcome("reach", "skipped", reason=missing[-1]["why"])
    data = report_of(ADAPTER, outcome("weight-drift", "passed"), skipped, missing=missing)
    item = judged(policy(tmp_path, ""), "a", data).item
    assert item.status is ItemStatus.PASSED
    assert [clause.partition(":")[0] for clause in item.unseen] == [need]
    strict = judged(policy(tmp_path, "require-generate = true"), "a", data).item
    assert strict.status is ItemStatus.INCONCLUSIVE
    sentence = "no model shows that it is better than its base at its own rows"
    assert strict.unexplained == (f"{sentence}: {why}",)
    # A log alone has no adapter to load.
    log_alone = report_of([], outcome("weight-drift", "passed"), missing=missing)
    for text in ("", "require-generate = true"):
        item = judged(policy(tmp_path, text), "a", log_alone).item
        assert (item.status, item.unseen) == (ItemStatus.PASSED, ())


def test_models_have_to_show_that_an_adapter_learned(tmp_path: Path) -> None:
    rules = policy(tmp_path, "require-generate = true")

    def item(*outcomes: Mapping[str, Any]) -> GateItem:
        return judged(rules, "a", report_of(ADAPTER, *outcomes)).item

    better = {"message": "The loss fell.", "measured": {}, "learned": True, "fell": False}
    learned = outcome("learned-targets", "passed") | {"seen": [better]}
    late = outcome("reach", "inconclusive", reason="the time was over")
    assert item(learned).status is ItemStatus.PASSED
    # What the log says is of the model in memory.
    by_log = outcome("loss-trend", "passed") | {"seen": [better]}
    assert item(by_log, outcome("reach", "passed")).reasons == (
        "no model shows that it is better than its base at its own rows: "
        "its loss is about the base's",
    )
    # With the log at hand, the end of it counts as well.
    end = found("end-state.worse-than-logged", "warning")
    assert item(learned, end).reasons == (
        f"it is not what its log says: {end['findings'][0]['message']}",
    )
    # Better than its base, and far from what its rows teach.
    short = found("reach.not-what-was-learned", "warning")
    assert item(learned, short).reasons == (
        f"it did not learn what its rows teach: {short['findings'][0]['message']}",
    )
    as_logged = found("end-state.as-logged", "info")
    assert item(learned, as_logged).status is ItemStatus.PASSED
    in_part = item(learned, late)
    assert in_part.status is ItemStatus.PASSED
    assert in_part.unseen == ("whether it learned as much as its rows teach: the time was over",)


def test_a_baseline_entry_that_is_gone_is_named_and_left_out_of_the_next(tmp_path: Path) -> None:
    rules = policy(tmp_path, "")
    path = str(tmp_path / "a")
    gone = Known("a", "learning-rate.zero", "0" * 16)
    blind = Known("a", "memory.slow", "1" * 16)
    elsewhere = Known("b", "learning-rate.zero", "0" * 16)
    known = frozenset({gone, blind, elsewhere})
    data = report(outcome("learning-rate", "passed"), outcome("memory", "skipped"))
    judgement = judged(rules, path, data, known)
    [said] = tuple(notices(rules, [judgement], TODAY))
    assert said.startswith("the baseline knows learning-rate.zero in a, where it is gone")
    assert renewed(known, [judgement]) == {blind, elsewhere}
