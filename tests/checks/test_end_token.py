"""How answers end: at once, never, over and over, after padding."""

from dataclasses import replace

import numpy as np
import pytest

from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.dataset import Dataset
from mlxdoctor.evidence.supervision import Role, build
from mlxdoctor.evidence.tokenizer import Tokenizer
from mlxdoctor.models.generations import Generation, Generations
from mlxdoctor.models.losses import TokenLosses
from tests.conftest import FIXTURES, RUNS, check_called, expected, run_names
from tests.given import answers, findings, outcome
from tests.measured_rows import Losses, measured_rows

end_token = check_called("end-token")


SOUND = (1, 2, 3, 4, 5, 9)
LONG = tuple(range(10, 26))


@pytest.mark.parametrize(
    ("tuned", "base", "words", "expected"),
    [
        ((9,), SOUND, None, {"empty-answers": "error"}),
        # It is an error only where the length is known.
        (LONG, SOUND, 3, {"never-ends": "error"}),
        (LONG, SOUND, None, {"never-ends": "warning"}),
        # 16 tokens are more than 1.2 times 13 words, and not more than 1.2 times 14.
        (LONG, SOUND, 13, {"never-ends": "error"}),
        (LONG, SOUND, 14, {}),
        ((*LONG[:15], 9), SOUND, 1, {}),
        # What the base model does, too, the adapter is not to blame for.
        ((9,), (9,), None, {}),
    ],
)
def test_how_answers_end(
    tuned: tuple[int, ...], base: tuple[int, ...], words: int | None, expected: dict[str, str]
) -> None:
    wanted = None if words is None else "word " * words
    found = findings(end_token, answers([tuned] * 8, [base] * 8, expected=wanted))
    severities = {code.removeprefix("end-token."): one.severity for code, one in found.items()}
    assert severities == expected


@pytest.mark.parametrize(
    ("base_end", "tuned_end", "severity"),
    [(3.0, 3.5, "error"), (3.0, 2.5, "warning"), (0.1, 0.3, "warning")],
)
def test_a_base_that_often_goes_on_itself_leaves_it_to_the_rows(
    base_end: float, tuned_end: float, severity: str
) -> None:
    # 6 of 16 answers of the base run on as well.
    said = answers([LONG] * 16, [SOUND] * 10 + [LONG] * 6, expected="a b c")
    rows = measured_rows(Losses(end=base_end), Losses(answer=0.5, end=tuned_end), 16)
    losses = TokenLosses((), rows, 768)
    assert findings(end_token, said)["end-token.never-ends"].severity == "warning"
    found = findings(end_token, said, losses)
    assert found["end-token.never-ends"].severity == severity


@pytest.mark.parametrize(("cut", "hit"), [(8, True), (9, False)])
def test_a_limit_that_cuts_most_of_the_base_too_is_too_short_to_tell(cut: int, hit: bool) -> None:
    """As of a sound DPO run that answers at more length than its base, which is cut itself."""
    said = answers([LONG] * 16, [SOUND] * (16 - cut) + [LONG] * cut, expected="a b c")
    found = outcome(end_token, said)
    assert ("end-token.never-ends" in {one.code for one in found.findings}) is hit
    assert ("end-token.never-ends" in found.unsought) is not hit


def test_answers_that_end_need_no_base_beside_them() -> None:
    """As of a sound run that learned to stop from a base that nearly never does."""
    found = outcome(end_token, answers([SOUND] * 24, [LONG] * 24, expected="a b c"))
    assert "end-token.never-ends" not in found.unsought
    assert found.looked_for("end-token.never-ends")


def test_recorded_text_names_its_end_tokens() -> None:
    items = tuple(Generation(f"p{i}", "Yes.", "<|endoftext|>" * 5) for i in range(3))
    found = findings(end_token, Generations((), items))
    assert set(found) == {"end-token.empty-answers"}


def test_no_evidence_is_skipped() -> None:
    assert outcome(end_token).status == "skipped"
    assert outcome(end_token, Generations((), ())).status == "inconclusive"


@pytest.mark.parametrize(
    ("count", "status"), [(1, "inconclusive"), (7, "inconclusive"), (8, "passed")]
)
@pytest.mark.parametrize("base", [True, False])
def test_a_few_sound_answers_say_nothing(count: int, status: str, base: bool) -> None:
    said = outcome(end_token, answers([SOUND] * count, [SOUND] * count if base else None))
    assert said.status == status
    assert ("at least 8 different prompts" in said.reason) is (status == "inconclusive")


def test_what_a_few_answers_show_is_reported_all_the_same() -> None:
    said = outcome(end_token, answers([(9,)] * 3, [SOUND] * 3))
    assert said.status == "found"
    assert outcome(end_token, answers([(9,)] * 2, [SOUND] * 2)).status == "inconclusive"


@pytest.mark.parametrize(("length", "hit"), [(6, True), (7, False)])
def test_where_no_answer_is_expected_the_training_rows_say_how_long(length: int, hit: bool) -> None:
    config = TrainingConfig.read(RUNS / "healthy-ordinary" / "adapter_config.json")
    data = Dataset.read(FIXTURES / "data" / "geography")
    rows = build(data, Tokenizer.read(FIXTURES / "base"), config)
    row = replace(rows.rows[0], prompt_length=1, roles=np.full(length, Role.ANSWER, np.int8))
    rows = replace(rows, rows=(row,))
    tuned = answers([LONG[:8]] * 4, [SOUND] * 4, max_tokens=8)
    found = findings(end_token, tuned, rows)
    assert ("end-token.never-ends" in found) is hit
    assert not hit or found["end-token.never-ends"].severity == "error"


@pytest.mark.parametrize("name", [n for n in run_names() if expected(n)["verdict"] == "healthy"])
def test_healthy_runs_pass(name: str) -> None:
    recorded = Generations.read(RUNS / name / "generations.jsonl")
    assert outcome(end_token, recorded).status == "passed"
