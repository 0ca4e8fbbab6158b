"""Which runs were hurt, and the figures and the page, from runs judged by hand."""

import math
from typing import Any

import pytest

from fixtures.lab.ablation import effects, ignorance, of_judged
from fixtures.lab.harness import Share
from fixtures.lab.judged import (
    Judged,
    Label,
    called,
    is_hurt,
    ranked_first,
    top,
    weighed,
    wrongly_ruled_out,
)
from fixtures.lab.study import (
    Part,
    by_fault,
    missed,
    official,
    overview,
    sound_runs,
)
from fixtures.lab.ward.study import label_of, learned, subjects
from mlxdoctor.causes import load_causes
from mlxdoctor.finding import Finding, Outcome, Seen, Severity, Status
from mlxdoctor.verdict import Verdict

RUNS = {run.name: run for run in subjects()}
#: A symptom that names one cause, by itself.
CODE, CAUSE = "learning-rate.zero", "learning-rate-too-low"


def judged(
    name: str, cause: str | None, label: Label, severity: Severity | None, loss: float = 1.0
) -> Judged:
    found = (
        () if severity is None else (Finding(code=CODE, severity=severity, message="It is so."),)
    )
    outcomes = (
        Outcome(check="learning-rate", status=Status.FOUND if found else Status.PASSED,
                findings=found),
        Outcome(check="loss-trend", status=Status.PASSED,
                seen=(Seen("The validation loss fell.", learned=True),)),
    )  # fmt: skip
    measured = {"loss": loss}
    alarms = {"rule": severity is Severity.ERROR}
    return weighed(RUNS[name], cause, label, measured, outcomes=outcomes, alarms=alarms)


def some() -> tuple[Judged, ...]:
    return (
        judged("llama-rate-too-low-2-s50", CAUSE, "faulty", Severity.ERROR),
        judged("llama-rate-too-low-1-s50", CAUSE, "faulty", Severity.WARNING),
        judged("llama-answers-shuffled-0-s50", "bad-data", "faulty", Severity.ERROR),
        judged("llama-answers-shuffled-1-s50", "bad-data", "faulty", None),
        judged("llama-base-not-frozen-0-s50", "base-weights-changed", "equivalent", None),
        judged("llama-ordinary-s0", None, "healthy", None, loss=0.25),
        judged("llama-ordinary-s1", None, "healthy", Severity.WARNING, loss=0.35),
        judged("llama-low-rate-s27", None, "not sound", Severity.ERROR),
    )


@pytest.mark.parametrize(
    ("hits", "count", "low", "high"),
    [
        # Newcombe 1998, table I.
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
        (29, 29, 0.8830, 1.0),
    ],
)
def test_wilson_interval(hits: int, count: int, low: float, high: float) -> None:
    assert Share(hits, count).interval == pytest.approx((low, high), abs=5e-5)


def test_a_share_of_nothing_says_so() -> None:
    assert str(Share(0, 0)) == "none"
    assert str(Share(3, 4)) == "75.0% (3/4; 30 to 95%)"


def test_counts() -> None:
    runs = some()
    assert top(runs, 1) == top(runs, 3) == Share(1, 4)
    assert ranked_first(runs) == Share(2, 4)
    assert called(runs, "faulty", Verdict.UNHEALTHY) == Share(2, 4)
    assert called(runs, "healthy", Verdict.UNHEALTHY) == Share(0, 2)
    assert called(runs, "healthy", Verdict.SUSPECT) == Share(1, 2)
    assert wrongly_ruled_out(runs).count == 4


def test_without_the_check_that_saw_it_nothing_is_named() -> None:
    cases, knowledge = of_judged(some()), load_causes()
    found = effects(cases, knowledge, "check")
    by_check = {one.part: one for one in found}
    assert by_check["learning-rate"].decides == ("llama-rate-too-low-2-s50",)
    assert by_check["learning-rate"].disturbs == ("llama-ordinary-s1",)
    # What was seen to be learned is all that speaks for these.
    assert by_check["loss-trend"].decides == ()
    shares = ignorance(cases, found, knowledge)
    assert shares["learning-rate"] == Share(1, 1)
    assert shares["loss-trend"] == Share(0, 0)


def test_the_score_is_with_the_models_run_unless_fewer_runs_were() -> None:
    runs = some()
    models, static = Part("dev", "models run", runs), Part("dev", "static", runs)
    assert official([models, static]) == [models]
    few = Part("dev", "models run", runs[:3])
    assert official([few, static]) == [static]
    assert official([static]) == [static]


def test_the_page_tells_what_was_found() -> None:
    part = Part("dev", "static", some())
    assert "| dev | static | 4 of 2 causes | 25.0% (1/4; 5 to 70%) |" in overview("split", [part])
    faults = by_fault("split", [part])
    assert "| dev | rate-too-low | 0 | 1/1 | learning-rate-too-low 1 |" in faults
    assert "| dev | rate-too-low | 0.0001 | 0/1 | suspect 1 |" in faults
    assert "| dev | base-not-frozen | norms | 0/0 |  |" in faults
    row = f"| dev | llama-answers-shuffled-0-s50 | `bad-data` | {CAUSE} | {CODE} |"
    assert row in missed("split", [part])
    sound = sound_runs("split", [part])
    assert f"| dev | error | {CODE} | 0 | 1 | llama-low-rate-s27 |" in sound
    assert f"| dev | warning | {CODE} | 1 | 0 | llama-ordinary-s1 |" in sound


#: One-sided, 5% shared out over three figures.
P = 0.05 / 3
#: Student's t of one degree of freedom is Cauchy's; of two, t / sqrt(2 + t^2) is 1 - 2p.
CAUCHY = 1 / math.tan(math.pi * P)
TWO_DEGREES = math.sqrt(2) * (1 - 2 * P) / math.sqrt(1 - (1 - 2 * P) ** 2)
BASE = {"loss": 5.0, "similarity": 0.3}


def figures(loss: float, similarity: float = 0.8, stops: float = 1.0) -> dict[str, float]:
    return {"loss": loss, "similarity": similarity, "stops": stops}


@pytest.mark.parametrize(
    ("losses", "edge"),
    [
        ([1.0, 1.2], 1.1 + CAUCHY * math.sqrt(0.02) * math.sqrt(1 + 1 / 2)),
        ([1.0, 1.1, 1.2], 1.1 + TWO_DEGREES * 0.1 * math.sqrt(1 + 1 / 3)),
        # A spread of nothing is not believed.
        ([1.0] * 3, 1.0 + TWO_DEGREES * 0.01 * math.sqrt(1 + 1 / 3)),
    ],
)
def test_one_and_two_degrees_of_freedom(losses: list[float], edge: float) -> None:
    sound = [figures(loss) for loss in losses]
    assert is_hurt(figures(edge + 1e-6), sound)
    assert not is_hurt(figures(edge - 1e-6), sound)


@pytest.mark.parametrize(
    ("measured", "hurt"),
    [
        (figures(0.2), False),
        (figures(1.0, similarity=0.95), False),
        (figures(1.0, similarity=0.5), True),
        (figures(1.0, stops=0.5), True),
        ({**figures(1.0), "loss": None}, True),
        (figures(math.nan), True),
    ],
)
def test_better_is_not_hurt_and_worse_in_any_figure_is(
    measured: dict[str, float | None], hurt: bool
) -> None:
    assert is_hurt(measured, [figures(1.0)] * 3) is hurt


@pytest.mark.parametrize(
    ("measured", "sound"),
    [
        (figures(2.49, similarity=0.31), True),
        (figures(2.51, similarity=0.31), False),
        (figures(2.49, similarity=0.29), False),
        ({**figures(1.0), "loss": None}, False),
    ],
)
def test_a_sound_run_halves_the_loss_and_answers_better(
    measured: dict[str, float | None], sound: bool
) -> None:
    assert learned(measured, BASE) is sound


@pytest.mark.parametrize(
    ("cause", "harms", "loss", "label"),
    [
        (None, None, 1.0, "healthy"),
        (None, None, 4.0, "not sound"),
        ("bad-data", "model", 4.0, "faulty"),
        ("bad-data", "model", 1.0, "equivalent"),
        ("evaluated-without-adapter", "report", 1.0, "faulty"),
    ],
)
def test_labels(cause: str | None, harms: str | None, loss: float, label: str) -> None:
    truth: dict[str, Any] = {"cause": cause, "harms": harms, "measured": figures(loss)}
    assert label_of(truth, [figures(1.0), figures(1.01), figures(0.99)], BASE) == label
