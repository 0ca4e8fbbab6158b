"""From findings to ranked causes: the arithmetic, and the knowledge base itself."""

from __future__ import annotations

import pytest

from mlxdoctor.causes import load_causes, parse_causes
from mlxdoctor.check import discover
from mlxdoctor.diagnosis import diagnose, rank, unlocks_most
from mlxdoctor.finding import Finding, Outcome, Severity, Status
from mlxdoctor.safety.errors import InputError
from mlxdoctor.verdict import Verdict, verdict

TABLE = """
[groups]
shape = ["loss.rose", "loss.leapt"]

[causes.rate]
title = "Rate"
summary = "rate"
explanation = "rate"
remedy = "lower it"
prior = -1.0
for = { "loss.rose" = 2.0, "loss.leapt" = 3.0, "config.fast" = 1.0 }
against = { "adapter.zero" = 4.0 }
absent = { "weights.large" = 0.5 }

[causes.zero]
title = "Zero"
summary = "zero"
explanation = "zero"
remedy = "train it"
prior = 0.0
for = { "adapter.zero" = 5.0 }
against = {}
"""
KNOWLEDGE = parse_causes(TABLE)


def outcome(
    check: str, *symptoms: str, status: Status | None = None, decisive: bool = True
) -> Outcome:
    findings = tuple(
        Finding(f"{check}.{symptom}", Severity.ERROR, f"{symptom}.") for symptom in symptoms
    )
    status = status or (Status.FOUND if findings else Status.PASSED)
    return Outcome(check, status, "no file was found", 0.0, findings, decisive)


def score(cause: str, *outcomes: Outcome) -> float:
    return {one.cause.id: one.score for one in rank(outcomes, KNOWLEDGE)}[cause]


def test_a_score_is_the_prior_plus_the_weights_of_what_was_found() -> None:
    assert score("rate", outcome("loss", "leapt")) == pytest.approx(-1.0 + 3.0)
    assert score("rate", outcome("loss", "leapt"), outcome("config", "fast")) == pytest.approx(3.0)


def test_findings_of_one_group_count_once_by_the_strongest() -> None:
    both = outcome("loss", "rose", "leapt")
    assert score("rate", both) == score("rate", outcome("loss", "leapt"))
    terms = {t.code: t.weight for t in rank([both], KNOWLEDGE)[0].arithmetic}
    assert terms == {"loss.rose": 0.0, "loss.leapt": 3.0}


def test_what_speaks_against_a_cause_lowers_it() -> None:
    outcomes = (outcome("loss", "leapt"), outcome("adapter", "zero"))
    assert score("rate", *outcomes) == pytest.approx(-1.0 + 3.0 - 4.0)
    assert rank(outcomes, KNOWLEDGE)[0].cause.id == "zero"


def test_absence_counts_only_where_the_check_looked() -> None:
    found = outcome("loss", "leapt")
    assert score("rate", found, outcome("weights")) == pytest.approx(1.5)
    for status in (Status.SKIPPED, Status.CRASHED, Status.INCONCLUSIVE):
        silent = outcome("weights", status=status)
        assert score("rate", found, silent) == pytest.approx(2.0)
        (rate,) = rank([found, silent], KNOWLEDGE)
        assert "weights.large" in rate.unknown


def test_the_arithmetic_adds_up() -> None:
    outcomes = (outcome("loss", "rose", "leapt"), outcome("adapter", "zero"), outcome("weights"))
    for one in rank(outcomes, KNOWLEDGE):
        total = one.cause.prior + sum(term.weight for term in one.arithmetic)
        assert one.score == pytest.approx(total)


def test_a_cause_that_nothing_speaks_for_is_not_listed() -> None:
    assert [one.cause.id for one in rank([outcome("adapter", "zero")], KNOWLEDGE)] == ["zero"]


def test_a_run_without_errors_has_no_diagnosis() -> None:
    warning = Outcome(
        "loss",
        Status.FOUND,
        findings=(Finding("loss.leapt", Severity.WARNING, "It leapt."),),
        decisive=True,
    )
    assert verdict([warning]) is Verdict.HEALTHY
    assert diagnose([warning], KNOWLEDGE) == ()


def test_unverified_is_never_healthy() -> None:
    assert verdict([]) is Verdict.INCONCLUSIVE
    assert verdict([outcome("loss", status=Status.SKIPPED)]) is Verdict.INCONCLUSIVE
    assert verdict([outcome("loss", status=Status.CRASHED)]) is Verdict.INCONCLUSIVE
    assert verdict([outcome("config", decisive=False)]) is Verdict.INCONCLUSIVE
    assert verdict([outcome("loss")]) is Verdict.HEALTHY
    assert verdict([outcome("config", "fast", decisive=False)]) is Verdict.UNHEALTHY


def test_the_unknown_that_weighs_most_is_asked_for_next() -> None:
    outcomes = [
        outcome("config", "fast"),
        outcome("loss", status=Status.SKIPPED),
        outcome("weights", status=Status.SKIPPED),
    ]
    unlocks = unlocks_most(outcomes, rank(outcomes, KNOWLEDGE))
    assert unlocks is not None
    assert (unlocks.check, unlocks.swing) == ("loss", 3.0)


def test_every_code_in_the_knowledge_base_is_one_that_a_check_reports() -> None:
    known = {code for one in discover() for code in one.codes}
    assert load_causes().codes - known == set()


def test_every_cause_has_something_that_speaks_for_it_or_is_not_yet_seen_by_a_check() -> None:
    speechless = {
        c.id
        for c in load_causes().causes.values()
        if not any(weight > 0 for weight in c.weights.values())
    }
    # What no check of this version can see; the README says so.
    assert speechless <= {"known-upstream-bug"}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("prior = 0.0", "prior = 0.0\nweight = 1", "zero has the unknown key 'weight'"),
        ('title = "Zero"\n', "", "zero lacks the key 'title'"),
        ("[groups]", "[group]", "unknown table 'group'"),
        ('"loss.leapt"]', '"loss.leapt"]\nother = ["loss.rose"]', "in two groups"),
        ('remedy = "train it"', 'remedy = "x"\nchange = { key = "a" }', "a change has a key"),
        ("against = {}", 'against = { "adapter.zero" = 1.0 }', "both for and against"),
    ],
)
def test_a_mistake_in_the_knowledge_base_is_an_error(old: str, new: str, message: str) -> None:
    assert old in TABLE
    with pytest.raises(InputError, match=message):
        parse_causes(TABLE.replace(old, new))
