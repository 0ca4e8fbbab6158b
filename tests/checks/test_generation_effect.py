"""What the adapter does to the answers. Real runs: test_runs."""

from dataclasses import replace
from pathlib import Path

import pytest

from mlxdoctor.evidence.adapter import Adapter
from mlxdoctor.models.generations import Generation, Generations
from mlxdoctor.models.losses import TokenLosses
from tests.checks.log_evidence import LogWriter
from tests.conftest import RUNS, check_called
from tests.given import answers, findings, outcome
from tests.measured_rows import Losses, measured_rows

generation_effect = check_called("generation-effect")

BASE = (1, 2, 3, 9)
OTHER = (1, 2, 4, 9)
ADAPTER = Adapter.read(RUNS / "healthy-ordinary" / "adapters.safetensors")


def test_a_refused_adapter_is_an_error() -> None:
    refused = Generations((), (), load_failure="ValueError: not an adapter parameter")
    finding = findings(generation_effect, refused)["generation-effect.adapter-refused"]
    assert finding.severity == "error"
    assert "not an adapter parameter" in finding.message


def test_identical_answers_are_an_error_beside_an_update() -> None:
    same = answers([BASE] * 8, [BASE] * 8)
    code = "generation-effect.identical-to-base"
    assert findings(generation_effect, same, ADAPTER)[code].severity == "error"
    assert findings(generation_effect, same)[code].severity == "warning"
    few = answers([BASE] * 7, [BASE] * 7)
    assert findings(generation_effect, few, ADAPTER)[code].severity == "warning"
    # One different answer is an effect.
    one = answers([OTHER] + [BASE] * 7, [BASE] * 8)
    assert outcome(generation_effect, one).status == "passed"


WORSE = "generation-effect.worse-than-base"


@pytest.mark.parametrize(("wrong", "hit"), [(8, True), (7, False)])
def test_right_answers_that_became_wrong(wrong: int, hit: bool) -> None:
    tuned = [OTHER] * wrong + [BASE] * (10 - wrong)
    found = findings(generation_effect, answers(tuned, [BASE] * 10, expected="w1 w2 w3 w9"))
    assert (WORSE in found) is hit


def answered(base: str, expected: str) -> Generations:
    items = (Generation(f"p{i}", base, "qua bli", expected=expected) for i in range(10))
    return Generations((), tuple(items))


LOST = answered("the lake is deep", "the lake is km deep")


@pytest.mark.parametrize(
    ("answers_given", "tuned_loss", "severity"),
    [
        (LOST, None, "error"),
        # Other words are no error where the loss on the rows fell far.
        (LOST, 1.5, "warning"),
        (LOST, 3.9, "error"),
        # A base that was nearly always wrong has little to lose.
        (answered("one two three four five", "one two three" + " x" * 8), None, "error"),
        (answered("one two three four five", "one" + " x" * 8), None, "warning"),
    ],
)
def test_words_that_were_lost(
    answers_given: Generations, tuned_loss: float | None, severity: str
) -> None:
    rows = measured_rows(Losses(answer=4.0), Losses(answer=tuned_loss or 4.0))
    evidence = [TokenLosses((), rows, 512)] if tuned_loss is not None else []
    finding = findings(generation_effect, answers_given, *evidence)[WORSE]
    assert (finding.severity, finding.measured["tuned_overlap"]) == (severity, 0.0)


NO_GAIN = "generation-effect.no-gain"


@pytest.mark.parametrize(
    ("last", "severity"), [(None, "warning"), (0.79, "warning"), (0.81, "info")]
)
def test_answers_that_came_no_nearer(tmp_path: Path, last: float | None, severity: str) -> None:
    same = answered("no idea what you mean", "the lake is deep")
    evidence = [] if last is None else [LogWriter(tmp_path).losses([2.0, last], {20: last})]
    assert findings(generation_effect, same, *evidence)[NO_GAIN].severity == severity


def test_labels_that_are_tokens_of_their_own_are_no_words() -> None:
    items = tuple(Generation(f"p{i}", "No", "<tag_a>", expected="<tag_a>") for i in range(12))
    assert outcome(generation_effect, Generations((), items)).findings == ()


def test_answers_that_came_nearer_were_learned() -> None:
    items = answered("no idea", "the lake is deep").items
    nearer = tuple(replace(item, tuned="the lake is cold") for item in items)
    result = outcome(generation_effect, Generations((), nearer))
    assert (result.status, [seen.learned for seen in result.seen]) == ("passed", [True])
    # Of ten prompts a single gain may be chance, and so may its being no more.
    few = outcome(generation_effect, Generations((), (*nearer[:2], *items[2:])))
    assert (few.status, few.seen) == ("passed", ())


def test_the_base_answers_are_needed() -> None:
    assert outcome(generation_effect, answers([BASE] * 8, None)).status == "inconclusive"
