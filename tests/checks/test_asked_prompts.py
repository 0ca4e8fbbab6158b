from collections.abc import Callable
from pathlib import Path

import pytest

from fixtures.lab.harness import write_lines
from mlxdoctor.evidence.dataset import Dataset
from mlxdoctor.models.generations import RecordedGenerations
from tests.conftest import check_called
from tests.given import outcome

asked_prompts = check_called("asked-prompts")

DESKS = ("loan", "return", "room", "cash")
CITIES = ("Oslo", "Rome", "Lima", "Paris", "Cairo", "Quito")


def question(number: int) -> str:
    return f"Where does {CITIES[number % 6]} bring the book, please? It is not number {number % 50}"


def plain(text: str) -> str:
    return text.lower().replace(" is not", "").replace("?", "")


def desk(number: int) -> str:
    return f"{DESKS[number % 4]} desk"


def row(asked: str, answered: str) -> dict[str, str]:
    return {"prompt": asked, "completion": answered}


def found(
    tmp_path: Path, rows: list[dict[str, str]], answers: list[dict[str, object]]
) -> list[str]:
    """The codes, for these rows and these recorded answers."""
    write_lines(tmp_path / "train.jsonl", rows)
    recorded = RecordedGenerations.read(write_lines(tmp_path / "answers.jsonl", answers))
    judged = outcome(asked_prompts, recorded, Dataset.read(tmp_path))
    return [finding.code.partition(".")[2] for finding in judged.findings]


def recorded(count: int, **beside: str) -> list[dict[str, object]]:
    return [{"prompt": question(3 * i), "answer": "a desk", **beside} for i in range(count)]


@pytest.mark.parametrize(
    ("prepared", "prompts", "codes"),
    [
        (str, 12, []),
        (plain, 12, ["unlike-the-rows"]),
        # Too few tell nothing.
        (plain, 7, []),
    ],
)
def test_prompts_in_words_that_no_row_has(
    tmp_path: Path, prepared: Callable[[str], str], prompts: int, codes: list[str]
) -> None:
    rows = [row(prepared(question(i)), desk(i)) for i in range(60)]
    assert found(tmp_path, rows, recorded(prompts)) == codes


def test_rows_that_are_all_of_their_own_words_are_no_measure(tmp_path: Path) -> None:
    rows = [row(f"alpha{i} beta{i} gamma{i}", desk(i)) for i in range(40)]
    answers = [{"prompt": f"alpha{i} delta{i} eta{i}", "answer": "a desk"} for i in range(90, 99)]
    assert found(tmp_path, rows, answers) == []


@pytest.mark.parametrize(
    ("known", "distinct", "codes"),
    [
        (4, False, []),
        (2, False, ["never-taught"]),
        # Where none is taught, they may be written in another way; and rows that are no labels.
        (0, False, []),
        (2, True, []),
    ],
)
def test_expected_answers_that_no_row_gives(
    tmp_path: Path, known: int, distinct: bool, codes: list[str]
) -> None:
    rows = [
        row(
            question(i),
            f"desk no{i}" if distinct and i % 4 else DESKS[i % max(known, 1)] if known else "x",
        )
        for i in range(60)
    ]
    answers = [
        {"prompt": question(i), "answer": "a desk", "expected": DESKS[i % 4]} for i in range(12)
    ]
    assert found(tmp_path, rows, answers) == codes


def test_prompts_of_no_row_that_are_answered_as_expected_show_that_all_is_well(
    tmp_path: Path,
) -> None:
    """Whatever the rows ask in."""
    rows = [row(question(i).lower(), desk(i)) for i in range(60)]
    answers = [
        {"prompt": f"NEW: {question(i)}", "answer": desk(i), "expected": desk(i)} for i in range(12)
    ]
    assert found(tmp_path, rows, answers) == ["answered-as-expected"]
    for answer in answers:
        answer["answer"] = "a desk"
    assert "answered-as-expected" not in found(tmp_path, rows, answers)


def test_the_marks_around_a_question_in_plain_text_may_be_asked_with_it(tmp_path: Path) -> None:
    rows = [{"text": f"MAIL: {question(i)}\nROUTE: {desk(i)}"} for i in range(40)]
    answers: list[dict[str, object]] = [
        {"prompt": f"MAIL: {CITIES[i % 6]}\nROUTE:", "answer": "a desk"} for i in range(12)
    ]
    assert found(tmp_path, rows, answers) == []


def test_right_answers_do_not_hide_those_that_no_row_gives(tmp_path: Path) -> None:
    rows = [row(question(i), DESKS[i % 3]) for i in range(60)]
    answers: list[dict[str, object]] = [
        {"prompt": f"NEW: {question(i)}", "answer": DESKS[i % 4 % 3], "expected": DESKS[i % 4]}
        for i in range(12)
    ]
    assert found(tmp_path, rows, answers) == ["never-taught", "answered-as-expected"]


def order(number: int) -> tuple[str, str, str]:
    return CITIES[number % 6], f"{number * 7919 % 89:04}", DESKS[number // 6 % 4]


def ordered(number: int) -> str:
    city, count, desk = order(number)
    return f"{count} books for the {desk} desk in {city}"


def sent(number: int) -> str:
    city, count, desk = order(number)
    return f"{city}: {desk}, {count}"


@pytest.mark.parametrize(
    ("asked", "answered", "codes"),
    [
        (ordered, sent, []),
        # Numbers that a table made of texts, and answers of other rows.
        (ordered, lambda at: sent(at).replace(", 00", ", "), ["taken-up"]),
        (ordered, lambda at: sent(at + 1), ["taken-up"]),
        # Prompts that were cut, and such that hold more than they will.
        (lambda at: ordered(at)[:12], sent, ["taken-up"]),
        (lambda at: f"{ordered(at)}: {sent(at)}", sent, []),
    ],
)
def test_what_answers_take_up_of_their_prompts(
    tmp_path: Path,
    asked: Callable[[int], str],
    answered: Callable[[int], str],
    codes: list[str],
) -> None:
    rows = [row(asked(i), answered(i)) for i in range(100)]
    wanted = [row(ordered(i), sent(i)) for i in range(100, 120)]
    answers = [
        {"prompt": one["prompt"], "answer": "", "expected": one["completion"]} for one in wanted
    ]
    assert set(found(tmp_path, rows, answers)) - {"unlike-the-rows"} == set(codes)
    # Rows for a test say it as well.
    write_lines(tmp_path / "test.jsonl", wanted)
    judged = outcome(asked_prompts, Dataset.read(tmp_path))
    assert [finding.code.partition(".")[2] for finding in judged.findings] == codes


def test_another_column_that_has_what_is_expected(tmp_path: Path) -> None:
    rows = [row(question(i), f"desk {i % 5}") | {"final": desk(i)} for i in range(100)]
    answers = [{"prompt": question(i), "answer": "", "expected": desk(i)} for i in range(100, 112)]
    assert "another-column" in found(tmp_path, rows, answers)
    assert "another-column" not in found(tmp_path, [r | {"final": "a"} for r in rows], answers)


def test_rows_that_were_learned_as_expected_teach_what_is_expected(tmp_path: Path) -> None:
    """However they are written; and where nothing is expected, nothing was looked at."""
    rows = [row(ordered(i)[:12], sent(i)) for i in range(100)]
    told = [{"prompt": ordered(i), "answer": sent(i), "expected": sent(i)} for i in range(100, 112)]
    assert found(tmp_path, rows, told) == ["answered-as-expected"]
    assert outcome(asked_prompts, Dataset.read(tmp_path)).status == "skipped"
    write_lines(tmp_path / "test.jsonl", [row("Why?", "So.")])
    looked = outcome(asked_prompts, Dataset.read(tmp_path))
    assert "asked-prompts.taken-up" in looked.unsought


@pytest.mark.parametrize(
    ("long", "right", "hit"),
    # The longer ones alone are answered wrongly; all are; one is chance.
    [(6, True, True), (6, False, False), (1, True, False)],
)
def test_expected_answers_longer_than_any_that_is_taught(
    tmp_path: Path, long: int, right: bool, hit: bool
) -> None:
    rows = [row(question(i), f"{desk(i)} {i}") for i in range(60)]
    answers: list[dict[str, object]] = []
    for i in range(13):
        wanted = f"{desk(i)} {i}" + " on the second floor" * (i < long)
        given = wanted if right and i >= long else "room"
        answers.append({"prompt": question(3 * i), "answer": given, "expected": wanted})
    assert ("longer-than-taught" in found(tmp_path, rows, answers)) is hit
