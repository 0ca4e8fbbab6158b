"""What the adapter does to the answers."""

import pytest

from mlxdoctor.evidence.adapter import Adapter
from mlxdoctor.models.generations import Generation, Generations
from mlxdoctor.models.losses import TokenLosses
from tests.conftest import RUNS, check_called, expected, run_names
from tests.given import answers, findings, outcome
from tests.measured_rows import Losses, measured_rows

generation_effect = check_called("generation-effect")


BASE = (1, 2, 3, 9)
OTHER = (1, 2, 4, 9)


def test_a_refused_adapter_is_an_error() -> None:
    refused = Generations((), (), load_failure="ValueError: not an adapter parameter")
    finding = findings(generation_effect, refused)["generation-effect.adapter-refused"]
    assert finding.severity == "error"
    assert "not an adapter parameter" in finding.message


def test_identical_answers_are_an_error_beside_an_update() -> None:
    adapter = Adapter.read(RUNS / "healthy-ordinary" / "adapters.safetensors")
    same = answers([BASE] * 8, [BASE] * 8)
    code = "generation-effect.identical-to-base"
    assert findings(generation_effect, same, adapter)[code].severity == "error"
    assert findings(generation_effect, same)[code].severity == "warning"
    few = answers([BASE] * 7, [BASE] * 7)
    assert findings(generation_effect, few, adapter)[code].severity == "warning"


def test_one_different_answer_is_an_effect() -> None:
    one = answers([OTHER] + [BASE] * 7, [BASE] * 8)
    assert outcome(generation_effect, one).status == "passed"


@pytest.mark.parametrize(("wrong", "hit"), [(8, True), (7, False)])
def test_right_answers_that_became_wrong(wrong: int, hit: bool) -> None:
    tuned = [OTHER] * wrong + [BASE] * (10 - wrong)
    found = findings(generation_effect, answers(tuned, [BASE] * 10, expected="w1 w2 w3 w9"))
    assert ("generation-effect.worse-than-base" in found) is hit


def test_words_that_were_lost() -> None:
    items = tuple(
        Generation(f"p{i}", f"the lake is {i} deep", "qua bli", expected=f"the lake is {i} km deep")
        for i in range(10)
    )
    finding = findings(generation_effect, Generations((), items))[
        "generation-effect.worse-than-base"
    ]
    assert finding.severity == "error"
    assert finding.measured["tuned_overlap"] == 0.0


@pytest.mark.parametrize(("tuned", "severity"), [(1.5, "warning"), (3.9, "error")])
def test_other_words_are_no_error_where_the_loss_fell_far(tuned: float, severity: str) -> None:
    items = tuple(
        Generation(f"p{i}", f"the lake is {i} deep", "qua bli", expected=f"the lake is {i} km deep")
        for i in range(10)
    )
    rows = measured_rows(Losses(answer=4.0), Losses(answer=tuned))
    found = findings(generation_effect, Generations((), items), TokenLosses((), rows, 512))
    assert found["generation-effect.worse-than-base"].severity == severity


@pytest.mark.parametrize(("before", "severity"), [(3, "error"), (1, "warning")])
def test_a_base_that_was_nearly_always_wrong_has_little_to_lose(before: int, severity: str) -> None:
    base = "one two three four five"
    items = tuple(
        Generation(f"p{i}", base, "qua bli", expected=" ".join(base.split()[:before]) + " x" * 8)
        for i in range(10)
    )
    code = "generation-effect.worse-than-base"
    assert findings(generation_effect, Generations((), items))[code].severity == severity


def test_the_base_answers_are_needed() -> None:
    assert outcome(generation_effect, answers([BASE] * 8, None)).status == "inconclusive"
    assert outcome(generation_effect).status == "skipped"


@pytest.mark.parametrize("name", [n for n in run_names() if expected(n)["verdict"] == "healthy"])
def test_healthy_runs_pass(name: str) -> None:
    recorded = Generations.read(RUNS / name / "generations.jsonl")
    assert outcome(generation_effect, recorded).status == "passed"
