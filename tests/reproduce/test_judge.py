"""The rules that turn observations into verdicts."""

from dataclasses import replace

import pytest

from mlxdoctor.causes import load_causes
from mlxdoctor.diagnosis import Diagnosed
from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.finding import Severity
from mlxdoctor.judge.rate import usual_rates
from mlxdoctor.reproduce.bench import length_of
from mlxdoctor.reproduce.investigate import resolve
from mlxdoctor.reproduce.rules import (
    Observation,
    Question,
    Ruling,
    Signs,
    judge_change,
    judge_injection,
    needed,
)
from mlxdoctor.run import Run
from tests.conftest import RUNS
from tests.reproduce.test_investigate import seen

KNOWLEDGE = load_causes()
LOOKED = ("loss-trend", "learned-targets", "token-collapse", "generation-effect", "series-facts")


def question(code: str, *recorded: str) -> Question:
    """What is asked of reruns of a run with these errors, the first being the key one."""
    every = Signs(dict.fromkeys((code, *recorded), Severity.ERROR), frozenset(LOOKED))
    keys = frozenset({KNOWLEDGE.group(code)})
    return Question(keys, keys, every, 3)


BAD = seen("loss-trend.diverged", loss=4.9)
GOOD = seen()
ASKED = question("loss-trend.diverged")


@pytest.mark.parametrize(
    ("placebo", "changed", "verdict"),
    [
        ([BAD, BAD], [GOOD, GOOD], "confirmed"),
        ([BAD] * 3, [GOOD, BAD, BAD], "undecided"),
        ([BAD, BAD], [BAD, BAD], "refuted"),
        # A placebo that cures as well.
        ([BAD, GOOD], [GOOD, GOOD], "undecided"),
    ],
)
def test_a_change_is_judged_by_its_cures_and_those_of_a_placebo(
    placebo: list[Observation], changed: list[Observation], verdict: str
) -> None:
    plain = dict.fromkeys(range(len(changed)), BAD)
    judged = judge_change(ASKED, plain, dict(enumerate(placebo)), dict(enumerate(changed)), 0.1)
    assert judged.verdict == verdict


@pytest.mark.parametrize(
    ("placebo", "changed", "verdict"),
    [(4.0, 2.0, "confirmed"), (3.4, 2.0, "undecided"), (4.9, 4.5, "refuted")],
)
def test_where_no_sign_tells_the_held_out_loss_does(
    placebo: float, changed: float, verdict: str
) -> None:
    """Of a run that ended too soon; an irrelevant change takes half as much off by chance."""
    asked = replace(ASKED, wanted=frozenset(), keys=frozenset())
    plain, other, longer = (
        dict.fromkeys(range(2), seen(loss=loss)) for loss in (4.9, placebo, changed)
    )
    assert judge_change(asked, plain, other, longer, 0.1).verdict == verdict


@pytest.mark.parametrize(
    ("changed", "cured"),
    [
        (seen(loss=4.5), False),
        (seen(loss=4.3), True),
        (seen(loss=float("nan")), False),
        # Another error is no cure.
        (seen("series-facts.gradient-zero"), False),
    ],
)
def test_a_cure_takes_a_tenth_off_the_held_out_loss(changed: Observation, cured: bool) -> None:
    assert ASKED.is_cured(BAD, changed, 0.1) is cured
    # Where the loss is all that tells, one that could not be measured is none.
    assert not replace(ASKED, wanted=frozenset()).is_cured(BAD, seen(loss=None), 0.1)


SHIFTED, IDLE = "learned-targets.wrong-shift-learned", "learned-targets.nothing-learned"
STILL = "series-facts.gradient-zero"


@pytest.mark.parametrize(
    ("codes", "sound", "injected", "verdict", "said"),
    [
        # Only the key symptom shows that a fault was created again.
        ([SHIFTED, "learned-targets.answers-worse"], GOOD, seen(SHIFTED), "confirmed", ""),
        ([SHIFTED, IDLE], GOOD, seen(IDLE), "undecided", ""),
        # Errors that the run has not refute it.
        ([IDLE], GOOD, seen(IDLE, STILL), "refuted", STILL),
        # A reference trainer that fails too proves nothing.
        (["loss-trend.diverged"], BAD, BAD, "undecided", ""),
    ],
)
def test_a_fault_is_judged_by_what_it_creates(
    codes: list[str], sound: Observation, injected: Observation, verdict: str, said: str
) -> None:
    judged = judge_injection(
        question(*codes), dict.fromkeys(range(2), sound), dict.fromkeys(range(2), injected)
    )
    assert (judged.verdict, said in judged.reason) == (verdict, True)


def test_an_error_that_could_not_be_looked_for_refutes_nothing() -> None:
    asked = question(IDLE)
    asked = replace(asked, recorded=replace(asked.recorded, unsought=frozenset({STILL})))
    injected = dict.fromkeys(range(2), seen(IDLE, STILL))
    assert judge_injection(asked, dict.fromkeys(range(2), GOOD), injected).verdict == "confirmed"


@pytest.mark.parametrize(
    ("ruling", "verdicts"),
    [
        # Of two cures the one that restores a known value is confirmed.
        (
            Ruling("confirmed", "cured", 1.0),
            {"learning-rate-too-high": "undecided", "scale-too-large": "confirmed"},
        ),
        (
            Ruling("confirmed", "made", 0.5),
            {"adapter-never-attached": "undecided", "base-weights-changed": "undecided"},
        ),
    ],
)
def test_of_two_that_are_confirmed(ruling: Ruling, verdicts: dict[str, str]) -> None:
    both = dict.fromkeys(verdicts, ruling)
    causes = [Diagnosed(KNOWLEDGE.causes[name], 3.0, (), (), (), ()) for name in both]
    assert {name: one.verdict for name, one in resolve(both, causes).items()} == verdicts


@pytest.mark.parametrize(("seeds", "enough"), [(2, 2), (3, 2), (4, 3), (6, 4)])
def test_two_thirds_of_the_seeds_have_to_agree(seeds: int, enough: int) -> None:
    assert needed(seeds) == enough


@pytest.mark.parametrize(
    ("onset", "recorded", "length"),
    [(10, 300, 50), (None, 300, 100), (70, 300, 200), (70, 120, 120)],
)
def test_a_rerun_goes_past_the_onset(onset: int | None, recorded: int, length: int) -> None:
    assert length_of(onset, None, recorded) == length


def test_the_usual_rate_is_the_models_whatever_the_runs_is() -> None:
    run = Run.discover([RUNS / "collapse-frequent-token"], allow_model=False)
    base, config = run.get(BaseModel), run.need(TrainingConfig)
    usual = usual_rates(config, base)
    assert usual[0] < 3e-4 < usual[1] < 0.005
    for changes in ({"learning_rate": 0.0}, {"lr_schedule": {"name": "x", "arguments": [0.0]}}):
        other = replace(config, values={**config.values, **changes})
        assert usual_rates(other, base) == usual
    wide = {"lora_parameters": {"rank": 8, "dropout": 0.0, "scale": 200.0}}
    rates = usual_rates(replace(config, values={**config.values, **wide}), base)
    assert rates == pytest.approx((usual[0] / 10, usual[1] / 10))
    full = replace(config, values={**config.values, "fine_tune_type": "full"})
    assert usual_rates(full, base) is None
