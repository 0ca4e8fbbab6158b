"""Which experiments are made and what follows from them: canned reruns of a real run's recipe."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from mlxdoctor.causes import load_causes
from mlxdoctor.diagnosis import Diagnosed
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.finding import Finding, Outcome, Severity, Status
from mlxdoctor.reproduce.bench import Bench, Failure
from mlxdoctor.reproduce.investigate import investigate, shown_by_diagnosis
from mlxdoctor.reproduce.observe import BudgetSpent, Change, symptom_checks
from mlxdoctor.reproduce.rules import Observation, Ruling, Signs
from mlxdoctor.run import Run
from mlxdoctor.safety.errors import InputError
from mlxdoctor.twin.levels import Level
from mlxdoctor.twin.replay import Replay
from mlxdoctor.twin.rerun import recorded_settings
from mlxdoctor.twin.settings import Settings
from mlxdoctor.verdict import CauseStatus, Coverage
from tests.conftest import RUNS

KNOWLEDGE = load_causes()
LOOKED = tuple(one.name for one in symptom_checks())
RUN = Run.discover([RUNS / "collapse-frequent-token"], allow_model=False)
CONFIG, SETTINGS = RUN.need(TrainingConfig), recorded_settings(RUN)

Answer = Callable[[Change, int], Observation]


@dataclass(frozen=True)
class Canned:
    """A laboratory whose reruns are known beforehand.

    Attributes:
        spent_after: reruns for which there is time; None: all.
        asked: what was asked for, in order.
    """

    answer: Answer
    spent_after: int | None = None
    config: TrainingConfig = CONFIG
    settings: Settings = SETTINGS
    asked: list[Change] = field(default_factory=list)

    def rerun(self, change: Change, seed: int) -> Observation:
        if self.spent_after is not None and len(self.asked) >= self.spent_after:
            raise BudgetSpent(f"{change.label}, seed {seed}")
        self.asked.append(change)
        return self.answer(change, seed)


def seen(*codes: str, loss: float = 0.5) -> Observation:
    """A rerun with these errors."""
    found = Signs(dict.fromkeys(codes, Severity.ERROR))
    return Observation(found, 5.0, loss, (1,), (1.0,), (), 1.0)


GOOD, BAD = seen(), seen("loss-trend.diverged", loss=4.9)


def case_with(*codes: str) -> Failure:
    """A failure whose run has these errors, and nothing else although everything looked."""
    found: dict[str, list[Finding]] = {name: [] for name in LOOKED}
    for code in codes:
        finding = Finding(code=code, severity=Severity.ERROR, message=code)
        found.setdefault(code.split(".", 1)[0], []).append(finding)
    outcomes = tuple(
        Outcome(check, Status.FOUND if findings else Status.PASSED, findings=tuple(findings))
        for check, findings in found.items()
    )
    return Failure(outcomes, (0, 1, 2), 50)


def tried(
    lab: Canned, case: Failure, *causes: str, asked: tuple[str, ...] = (), run: Run = RUN
) -> dict[str, Ruling]:
    """What comes of trying these causes, all as likely."""
    ranked = [Diagnosed(KNOWLEDGE.causes[name], 3.0, (), (), (), ()) for name in causes]
    return investigate(Bench(lab, case), run, ranked, asked)  # type: ignore[arg-type]


def cured_by(key: str, to: Callable[[Any], bool]) -> Answer:
    """Reruns that fail unless a key has a value."""

    def answer(change: Change, seed: int) -> Observation:
        del seed
        value = change.fix.after.get(key) if change.fix is not None else getattr(SETTINGS, key)
        return GOOD if to(value) else BAD

    return answer


DIVERGED = case_with("loss-trend.diverged")


def test_the_mildest_change_that_cures_is_kept() -> None:
    lab = Canned(cured_by("learning_rate", lambda rate: rate < 1e-3))
    found = tried(lab, DIVERGED, "learning-rate-too-high")
    judgement = found["learning-rate-too-high"]
    assert judgement.verdict == "confirmed"
    assert "learning_rate 0.005 → 0.0005 cures it with 2 of 2 seeds" in judgement.reason
    assert judgement.fix.after == {"learning_rate": 0.0005}
    kinds = [one.kind for one in lab.asked]
    assert kinds.count("another order") == 2


def test_a_rate_of_zero_is_put_into_the_usual_range() -> None:
    zero = replace(CONFIG, values={**CONFIG.values, "learning_rate": 0.0})
    fails = seen("generation-effect.identical-to-base", loss=4.9)
    lab = Canned(
        lambda one, _: GOOD if one.fix is not None and one.fix.after["learning_rate"] else fails,
        config=zero,
    )
    case = replace(
        case_with("generation-effect.identical-to-base"), usual={"learning_rate": (1e-4, 1e-2)}
    )
    judgement = tried(lab, case, "learning-rate-too-low")["learning-rate-too-low"]
    assert judgement.verdict == "confirmed"
    assert judgement.fix.after == {"learning_rate": 1e-3}


@pytest.mark.parametrize(
    "code",
    [
        "fused-agreement.worse",
        "score.worse-than-base",
        "end-state.worse-than-logged",
    ],
)
def test_what_no_rerun_can_show_is_no_symptom(code: str) -> None:
    # A rerun is not fused and has no log of another trainer, and no code of the user is run on it.
    case = case_with(code)
    assert not case.recorded.all
    assert not case.everything.wanted


def test_a_change_that_cures_nothing_is_refuted_and_has_no_placebo() -> None:
    lab = Canned(lambda change, seed: BAD)
    found = tried(lab, DIVERGED, "learning-rate-too-high")
    assert found["learning-rate-too-high"].verdict == "refuted"
    assert "another order" not in [one.kind for one in lab.asked]


@pytest.mark.parametrize(
    ("loss", "verdict"), [(0.97, "confirmed"), (0.99, "undecided"), (1.5, "undecided")]
)
def test_an_earlier_stop_that_is_no_better_does_not_refute(loss: float, verdict: str) -> None:
    late, early = seen("loss-trend.overfitting", loss=1.0), replace(GOOD, loss=loss)
    lab = Canned(lambda change, _: early if change.kind == "change" else late)
    found = tried(lab, case_with("loss-trend.overfitting"), "overfitting")
    assert found["overfitting"].verdict == verdict
    same = Canned(lambda change, _: late)
    again = tried(same, case_with("loss-trend.overfitting"), "overfitting")
    assert again["overfitting"].verdict == "refuted"


@pytest.mark.parametrize(
    ("cause", "code", "rerun", "verdict", "said"),
    [
        (
            "learning-rate-too-high",
            "loss-trend.diverged",
            GOOD,
            "refuted",
            "50 iterations are sound",
        ),
        (
            "gradients-blocked",
            "adapter-presence.zero-b",
            seen("adapter-presence.zero-b"),
            "refuted",
            "which does not have this fault, fails in the same way",
        ),
        (
            "known-upstream-bug",
            "loss-trend.diverged",
            BAD,
            "undecided",
            "only the versions installed here",
        ),
        ("memory-pressure", "loss-trend.diverged", BAD, "undecided", "the memory of the machine"),
        pytest.param(
            *("bad-data", "loss-trend.diverged", BAD, "undecided"),
            "to decide it: which rows are wrong",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_what_no_change_is_tried_for(
    cause: str, code: str, rerun: Observation, verdict: str, said: str
) -> None:
    lab = Canned(lambda change, seed: rerun)
    ruling = tried(lab, case_with(code), cause)[cause]
    assert (ruling.verdict, said in ruling.reason) == (verdict, True)
    assert {change.kind for change in lab.asked} <= {"as recorded"}


@pytest.mark.slow
def test_a_fault_that_is_re_created_is_confirmed_by_its_first_form_that_does() -> None:
    def answer(change: Change, seed: int) -> Observation:
        del seed
        is_it = change.kind == "injection" and change.severity == "all"
        return seen("adapter-presence.zero-b") if is_it else GOOD

    lab = Canned(answer)
    found = tried(lab, case_with("adapter-presence.zero-b"), "adapter-not-trained")
    assert found["adapter-not-trained"].verdict == "confirmed"
    assert [one.severity for one in lab.asked if one.kind == "injection"] == ["all", "all"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("off", "verdict"), [(0.0, "refuted"), (0.01, "confirmed"), (1.0, "confirmed")]
)
def test_a_fault_that_shows_in_the_losses_is_refuted_by_the_same_losses(
    off: float, verdict: str
) -> None:
    fails = seen("learned-targets.wrong-shift-learned")
    lab = Canned(lambda change, _: fails if change.kind == "injection" else GOOD)
    replay = Replay((), (Level("report", 10, 2.0 + off, 2.0, 0.3),), None, ())
    case = case_with("learned-targets.wrong-shift-learned")
    found = tried(lab, case, "labels-misaligned", run=RUN.having(replay))
    assert found["labels-misaligned"].verdict == verdict
    assert ("injection" in [one.kind for one in lab.asked]) is (verdict == "confirmed")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("repaired", "at_random", "verdict", "said"),
    [
        (GOOD, BAD, "confirmed", "as many rows left out at random"),
        (GOOD, GOOD, "undecided", "so does an irrelevant change"),
        (BAD, BAD, "undecided", "other rows than those"),
    ],
)
def test_rows_left_out_cure_only_if_any_rows_do_not(
    repaired: Observation, at_random: Observation, verdict: str, said: str
) -> None:
    answers = {"repair": repaired, "random rows": at_random}
    lab = Canned(lambda change, seed: answers.get(change.kind, BAD))
    case = case_with("loss-trend.diverged", "data-quality.leftovers")
    found = tried(lab, case, "bad-data")["bad-data"]
    assert found.verdict == verdict
    assert said in found.reason
    assert "repair" in [one.kind for one in lab.asked]


@pytest.mark.parametrize("after", [0, 1, 2, 3, 4])
def test_out_of_time_nothing_is_confirmed_and_what_is_missing_is_named(after: int) -> None:
    lab = Canned(cured_by("learning_rate", lambda rate: rate < 1e-3), spent_after=after)
    found = tried(lab, DIVERGED, "learning-rate-too-high", "bad-data")
    assert {one.verdict for one in found.values()} == {"undecided"}
    first = found["learning-rate-too-high"].reason
    labels = ["rerun as recorded", "learning_rate 0.005 → 0.0005", "placebo: another order of the"]
    label = labels[after // 2]
    assert f"the time was over before this could be done: {label}" in first
    assert "not tried" not in first
    assert "over before it was tried" in found["bad-data"].reason


@pytest.mark.slow
def test_what_was_confirmed_before_the_time_was_over_waits_for_its_rivals() -> None:
    lab = Canned(cured_by("learning_rate", lambda rate: rate < 1e-3), spent_after=7)
    case = case_with("loss-trend.diverged", "data-quality.leftovers")
    found = tried(lab, case, "learning-rate-too-high", "bad-data")
    judgement = found["learning-rate-too-high"]
    assert judgement.verdict == "undecided"
    assert "cures it with 2 of 2 seeds" in judgement.reason
    assert "before bad-data could be tried" in judgement.reason


def test_what_is_shown_directly_settles_it() -> None:
    lab = Canned(cured_by("learning_rate", lambda rate: rate < 1e-3))
    case = case_with("loss-trend.diverged", "adapter-structure.modules-not-in-base")
    names = ("adapter-not-loaded", "learning-rate-too-high")
    found = tried(lab, case, *names)
    assert found.keys() == {"adapter-not-loaded"}
    assert not lab.asked
    both = tried(lab, case, *names, asked=names[1:])
    judgement = both["learning-rate-too-high"]
    assert judgement.verdict == "undecided"
    assert "adapter-not-loaded was shown directly" in judgement.reason


def test_a_report_that_is_spoiled_settles_nothing_else() -> None:
    lab = Canned(cured_by("learning_rate", lambda rate: rate < 1e-3))
    case = case_with("loss-trend.diverged", "loss-finite.validation-non-finite")
    found = tried(lab, case, "no-validation-data", "learning-rate-too-high")
    assert {one.verdict for one in found.values()} == {"confirmed"}


@pytest.mark.parametrize(
    ("codes", "status", "verdict", "said"),
    [
        (["resume.not-loaded"], "possible", "confirmed", "resume.not-loaded"),
        (["loss-trend.diverged"], "ruled-out", "refuted", "looked for and not there: no file"),
        (["loss-trend.diverged"], "open", "undecided", "no file; to decide it: the file"),
        (["loss-trend.diverged"], "possible", "undecided", "no file speaks for it, and is no"),
        (
            ["loss-trend.diverged"],
            "no-sign",
            "undecided",
            "nothing that was looked at speaks",
        ),
    ],
)
def test_what_facts_prove_needs_no_rerun(
    codes: list[str], status: str, verdict: str, said: str
) -> None:
    cause = "resume-mismatch"
    coverage = Coverage(cause, CauseStatus(status), "no file", "the file")
    case = replace(case_with(*codes), coverage={cause: coverage})
    lab = Canned(lambda change, seed: BAD)
    ruling = tried(lab, case, cause)[cause]
    assert (ruling.verdict, said in ruling.reason) == (verdict, True)
    assert not lab.asked


@pytest.mark.parametrize(
    ("code", "status", "verdict"),
    [
        ("loss-finite.validation-non-finite", "named", "confirmed"),
        ("loss-finite.validation-non-finite", "possible", "undecided"),
        # A fact of the rows.
        ("data-format.no-validation-split", "possible", "confirmed"),
    ],
)
def test_a_warning_proves_what_the_diagnosis_names(code: str, status: str, verdict: str) -> None:
    cause = "no-validation-data"
    finding = Finding(code=code, severity=Severity.WARNING, message="")
    outcome = Outcome(code.partition(".")[0], Status.FOUND, findings=(finding,))
    coverage = Coverage(cause, CauseStatus(status), finding.code)
    case = replace(DIVERGED, outcomes=(outcome,), coverage={cause: coverage})
    assert shown_by_diagnosis(case, KNOWLEDGE.causes[cause]).verdict == verdict


def test_a_run_that_is_refused_leaves_every_cause_undecided() -> None:
    def answer(change: Change, seed: int) -> Observation:
        raise InputError(None, "the data are unreadable")

    found = tried(Canned(answer), DIVERGED, "learning-rate-too-high", "scale-too-large")
    assert {one.verdict for one in found.values()} == {"undecided"}
    assert all("data are unreadable" in one.reason for one in found.values())
