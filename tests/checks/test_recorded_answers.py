"""Whose answers were recorded, asked of real models."""

import json
import shutil
from pathlib import Path

import pytest

from mlxdoctor.api import diagnose
from mlxdoctor.finding import Status
from mlxdoctor.measure.asked_again import Asked, AskedAgain
from tests.conftest import FIXTURES, RUNS, check_called
from tests.given import findings, outcome

recorded_answers = check_called("recorded-answers")

BASE, TUNED = "The capital of it is Paris", "It is Lima of course"


def asked(*recorded: str, tuned: str = TUNED) -> AskedAgain:
    return AskedAgain(
        (), tuple(Asked(f"prompt {i}", one, BASE, tuned) for i, one in enumerate(recorded))
    )


def test_the_base_models_answers() -> None:
    found = findings(recorded_answers, asked(BASE, BASE, BASE))
    assert found["recorded-answers.base-answers"].severity == "error"


def test_an_answer_that_was_cut_off_or_goes_on_is_the_same() -> None:
    assert findings(recorded_answers, asked("The capital of i", f"{BASE}, on the Seine."))


def test_the_tuned_models_answers_are_as_they_should_be() -> None:
    found = outcome(recorded_answers, asked(TUNED, TUNED))
    assert found.status is Status.PASSED
    assert len(found.seen) == 1


@pytest.mark.parametrize(
    "evidence",
    [
        asked("something else", "and else again"),  # sampled
        asked(BASE, TUNED),
        asked(BASE),  # one is no evidence
        asked(BASE, BASE, tuned=BASE),  # nothing to tell the models apart
    ],
)
def test_what_tells_nothing_is_inconclusive(evidence: AskedAgain) -> None:
    assert outcome(recorded_answers, evidence).status is Status.INCONCLUSIVE


@pytest.mark.slow
@pytest.mark.parametrize(("key", "hit"), [("base", True), ("tuned", False)])
def test_of_a_real_run(tmp_path: Path, key: str, hit: bool) -> None:
    shutil.copytree(RUNS / "healthy-ordinary", tmp_path / "run")
    path = tmp_path / "run" / "generations.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    told = [{"prompt": one["prompt"], "tuned": one[key]} for one in rows]
    path.write_text("".join(json.dumps(one) + "\n" for one in told))
    report = diagnose(
        [tmp_path / "run"],
        base=FIXTURES / "base",
        data=FIXTURES / "data" / "geography",
        select=["recorded-answers"],
    )
    codes = [one.code for one in report.findings]
    assert codes == (["recorded-answers.base-answers"] if hit else [])
