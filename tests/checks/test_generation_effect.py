"""What the adapter does to the answers."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from mlxdoctor.evidence.adapter import Adapter
from mlxdoctor.evidence.dataset import Dataset
from mlxdoctor.evidence.supervision import SupervisedRows
from mlxdoctor.evidence.training_log import TrainingLog
from mlxdoctor.models.generations import Generation, Generations
from mlxdoctor.models.losses import TokenLosses
from tests.checks.data_evidence import DATA, config_of, log_of, rows_of
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


def unsure(losses: Sequence[float], origin: str = "train") -> Generations:
    """Answers of a tuned model with these losses on its own choices; the base is at 0.3."""
    items = tuple(
        replace(one, origin=origin, base_loss=0.3, tuned_loss=loss)
        for one, loss in zip(
            answers([OTHER] * len(losses), [BASE] * len(losses)).items, losses, strict=True
        )
    )
    return Generations((), items, (9,))


def ending_at(loss: float) -> TrainingLog:
    return log_of(train_loss=(range(10, 210, 10), [4.0, 2.0, *[loss] * 18]))


@pytest.fixture(scope="module")
def masked(tmp_path_factory: pytest.TempPathFactory) -> SupervisedRows:
    config = config_of(tmp_path_factory.mktemp("rows"), mask_prompt=True)
    return rows_of(Dataset.read(DATA / "geography"), config)


UNSURER = "generation-effect.unsurer-than-trained"


@pytest.mark.parametrize(
    ("losses", "end", "severity"),
    [
        ([0.85] * 8, 0.5, "error"),
        ([0.75] * 8, 0.5, None),
        # One answer that is sure: it may be the others that are hard.
        ([*[0.85] * 7, 0.4], 0.5, None),
        ([*[1.2] * 7, 0.4], 0.5, "warning"),
        # A loss above one nat leaves room for any answer.
        ([1.9] * 8, 0.98, "error"),
        ([1.9] * 8, 1.02, None),
        ([2.0] * 5, 0.5, None),
        ([float("nan")] * 8, 0.5, None),
    ],
)
def test_less_sure_than_it_was_trained_to_be(
    masked: SupervisedRows, losses: list[float], end: float, severity: str | None
) -> None:
    found = findings(generation_effect, unsure(losses), ending_at(end), masked)
    assert (found[UNSURER].severity if UNSURER in found else None) == severity


def test_the_prompt_may_have_carried_little_of_the_loss(tmp_path: Path) -> None:
    config = config_of(tmp_path, mask_prompt=False)
    unmasked = rows_of(Dataset.read(DATA / "geography"), config)
    found = findings(generation_effect, unsure([0.95] * 8), ending_at(0.5), unmasked)
    assert UNSURER not in found
    found = findings(generation_effect, unsure([1.1] * 8), ending_at(0.5), unmasked)
    share = found[UNSURER].measured["answers_share_of_targets"]
    assert 0.5 < share < 0.8
    assert found[UNSURER].measured["highest_loss_of_answers"] == pytest.approx(0.5 / share)


def test_other_prompts_are_not_held_against_training(masked: SupervisedRows) -> None:
    found = findings(generation_effect, unsure([2.0] * 8, "valid"), ending_at(0.5), masked)
    assert not found


def test_a_checkpoint_is_held_against_the_loss_at_its_iteration(
    masked: SupervisedRows, copied: Callable[[str], Path]
) -> None:
    folder = copied("healthy-ordinary")
    early = folder / "0000020_adapters.safetensors"
    early.write_bytes((folder / "adapters.safetensors").read_bytes())
    log = ending_at(0.5)
    last = findings(generation_effect, unsure([1.5] * 8), log, masked)
    assert last[UNSURER].severity == "error"
    found = findings(generation_effect, unsure([1.5] * 8), log, masked, Adapter.read(early))
    assert UNSURER not in found


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
