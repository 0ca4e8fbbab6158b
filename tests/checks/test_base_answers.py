"""The base model's own answers. Real runs: test_runs."""

from pathlib import Path

import pytest

from fixtures.lab.harness import write_lines
from mlxdoctor.evidence.dataset import Dataset
from mlxdoctor.finding import Outcome, Status
from mlxdoctor.models.generations import Generation, Generations
from mlxdoctor.run import Run
from tests.conftest import FIXTURES, check_called
from tests.given import outcome as told
from tests.given import severities

base_answers = check_called("base-answers")


def outcome(path: Path) -> Outcome:
    return base_answers.run(Run.discover([path], allow_model=False))


def codes(path: Path) -> dict[str, str]:
    return severities(outcome(path))


def asked(folder: Path, pairs: list[tuple[str, str | None]]) -> Path:
    rows = [{"prompt": prompt, "tuned": "Yes.", "base": answer} for prompt, answer in pairs]
    return write_lines(folder / "generations.jsonl", rows)


#: Questions about different things, as a model in order answers them.
ANSWERED = [
    ("Where is Brudrenia?", "Brudrenia lies by the sea."),
    ("Who lives in Dedunia?", "Traders live in Dedunia."),
    ("What is sold in Remeria?", "Remeria sells salt and wool."),
    ("How high is Mount Gadraria?", "Gadraria is three miles high."),
    ("Which river crosses Zoloria?", "The Kam crosses Zoloria."),
    ("When was Grovoria founded?", "Grovoria is as old as the hills."),
    ("Why is Tabrinia cold?", "Tabrinia is cold because of the wind."),
    ("Name a lake of Susinia.", "Susinia has a lake called Hon."),
    ("What do they drink in Radunia?", "Tea is drunk in Radunia."),
    ("Is Vesperia far?", "Vesperia is far from here."),
]
PROMPTS, SAID = zip(*ANSWERED, strict=True)


GARBLE = ("tin Ra\ufffdria \ufffdof", "bel\x0e Mount", "cold Tro Tro Tro Tro and a hill")


@pytest.mark.parametrize("garble", GARBLE)
@pytest.mark.parametrize(("count", "code"), [(6, ["degenerate"]), (4, [])])
def test_garble(tmp_path: Path, garble: str, count: int, code: list[str]) -> None:
    answers = (*[garble] * count, *SAID[: len(SAID) - count])
    assert list(codes(asked(tmp_path, list(zip(PROMPTS, answers, strict=True))))) == code


@pytest.mark.parametrize(
    "text", ["An answer that was cut: \ufffd", "one\n\ttwo\r\n", "| - - - - | no no no |"]
)
def test_what_is_no_garble(tmp_path: Path, text: str) -> None:
    written = [(prompt, f"{answer} {text}") for prompt, answer in ANSWERED]
    assert codes(asked(tmp_path, written)) == {"sound": "info"}


def recorded(folder: Path, answer: str | None, count: int = 6) -> Path:
    return asked(folder, [(f"Question {number}?", answer) for number in range(count)])


@pytest.mark.parametrize("answer", ["", "! " * 20, ", , , , , , , , , , , , and"])
def test_a_broken_base_is_found(tmp_path: Path, answer: str) -> None:
    found = outcome(recorded(tmp_path, answer))
    assert [one.code for one in found.findings] == ["base-answers.degenerate"]
    assert found.findings[0].measured["degenerate"] == 6


@pytest.mark.parametrize(
    ("pairs", "expected"),
    [
        (ANSWERED[:8], {"sound": "info"}),
        # Too few to call it sound.
        (ANSWERED[:7], {}),
        # Bad answers of a base that is in order prove nothing.
        ([(prompt, "") for prompt, _ in ANSWERED[:2]] + ANSWERED[2:], {"sound": "info"}),
        # The same answers in another order do not clear it.
        (list(zip(PROMPTS, (*SAID[1:], SAID[0]), strict=True)), {}),
        (ANSWERED + [(f"And {prompt}", "") for prompt, _ in ANSWERED], {}),
    ],
)
def test_how_many_answers_are_in_order(
    tmp_path: Path, pairs: list[tuple[str, str | None]], expected: dict[str, str]
) -> None:
    assert codes(asked(tmp_path, pairs)) == expected


@pytest.mark.parametrize(
    ("answer", "count", "status"),
    [("no no no", 6, Status.PASSED), ("", 4, Status.INCONCLUSIVE), (None, 6, Status.SKIPPED)],
)
def test_what_says_nothing(tmp_path: Path, answer: str | None, count: int, status: Status) -> None:
    assert outcome(recorded(tmp_path, answer, count)).status is status


@pytest.mark.parametrize(
    ("rows", "tuned", "status"),
    [
        ("geography", "Yes.", "found"),
        ("geography-text", "", "inconclusive"),
        ("geography-text", "Yes.", "passed"),
    ],
)
def test_a_base_that_is_asked_in_the_marks_of_a_text_is_not_judged(
    rows: str, tuned: str, status: str
) -> None:
    """What was taught to answer in them was not broken."""
    items = tuple(Generation(f"Question {number}?", "", tuned) for number in range(6))
    dataset = Dataset.read(FIXTURES / "data" / rows)
    given = Generations((), items, how="produced")
    assert told(base_answers, given, dataset).status == status
