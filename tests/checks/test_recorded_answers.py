"""Whose answers were recorded, asked of real models."""

import json
import unicodedata
from dataclasses import replace
from pathlib import Path

import pytest

from fixtures.lab.cases.workshop import copied_run, rows_of
from fixtures.lab.harness import write_lines
from mlxdoctor.api import diagnose
from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.tokenizer import Tokenizer
from mlxdoctor.models.asked_again import Asked, AskedAgain
from mlxdoctor.models.forward import answer
from mlxdoctor.models.generations import Generation, Generations, RecordedGenerations
from mlxdoctor.models.load import load
from mlxdoctor.models.prompts import Prompt, as_in_the_data, plain_prompt, system_of
from tests.checks.data_evidence import chat, conversation, write_data
from tests.conftest import BASE as BASE_FOLDER
from tests.conftest import HEALTHY, check_called
from tests.given import outcome

EXCHANGES = chat("And then?", "Then."), chat("When?", "Now")
TOKENIZER = Tokenizer.read(BASE_FOLDER)

recorded_answers = check_called("recorded-answers")

BASE, TUNED = "The capital of it is Paris", "It is Lima of course"


GOOD = "silver badge for Ana (Rome)"


def asked(
    *recorded: str, tuned: str = TUNED, beside: str | None = None, expected: str | None = None
) -> AskedAgain:
    return AskedAgain(
        (),
        tuple(
            Asked(
                Generation(f"prompt {i}", beside, one, expected=expected),
                Generation(f"prompt {i}", BASE, tuned),
            )
            for i, one in enumerate(recorded)
        ),
    )


def codes(*evidence: object) -> list[str]:
    return [one.code for one in outcome(recorded_answers, *evidence).findings]


@pytest.mark.parametrize(
    ("evidence", "status", "of_base"),
    [
        (asked(BASE, BASE, BASE), "found", 3),
        # An answer that was cut off or goes on is the same.
        (asked("The capital of i", f"{BASE}, on the Seine."), "found", 2),
        # A tie parted it from the base model's own.
        (asked(*["The capital of France, I think"] * 4), "found", 4),
        (asked(TUNED, TUNED), "passed", 0),
        # Of one word, without the end token.
        (asked("place", "place", tuned="place<|im_end|>", expected="place"), "passed", 0),
        (asked(*["place"] * 8, tuned="place<|im_end|>", beside="place"), "passed", 0),
        # What was hoped for may be both models' answer.
        (asked(*[BASE] * 8, beside=BASE, expected=BASE), "inconclusive", 0),
        # Sampled, of both, a single one, and nothing to tell the models apart.
        (asked("something else", "and else again"), "inconclusive", 0),
        (asked(BASE, TUNED), "inconclusive", 0),
        (asked(BASE), "inconclusive", 0),
        (asked(BASE, BASE, tuned=BASE), "inconclusive", 0),
    ],
)
def test_whose_answers_were_recorded(evidence: AskedAgain, status: str, of_base: int) -> None:
    result = outcome(recorded_answers, evidence)
    assert result.status == status, result.reason
    assert len(result.seen) == (status == "passed")
    for finding in result.findings:
        assert (finding.code, finding.severity) == ("recorded-answers.base-answers", "error")
        assert finding.measured["base"] == of_base


@pytest.mark.slow
@pytest.mark.parametrize(("key", "hit"), [("base", True), ("tuned", False)])
def test_of_a_real_run(tmp_path: Path, key: str, hit: bool) -> None:
    run = copied_run(tmp_path / "run")
    rows = map(json.loads, (HEALTHY / "generations.jsonl").read_text().splitlines())
    told = [{"prompt": one["prompt"], "tuned": one[key]} for one in rows]
    write_lines(run / "generations.jsonl", told)
    found = [one.code for one in diagnose([run], select=["recorded-answers"]).findings]
    assert found == ["recorded-answers.base-answers"] * hit


def test_a_question_is_asked_as_its_row_asks_it(tmp_path: Path) -> None:
    first = conversation(("system", "Be brief."), ("user", "Who?"), ("assistant", "Ada."))
    second = {"messages": [each for row in EXCHANGES for each in row["messages"]]}
    dataset = write_data(tmp_path, test=[first, second])
    asked_so = as_in_the_data(dataset, TOKENIZER, ["When?", "Who?", "Why?"])
    texts = [TOKENIZER.decode(one.tokens) for one in asked_so]
    assert [one.text for one in asked_so] == ["When?", "Who?", "Why?"]
    assert "Then." in texts[0]
    assert "Be brief." in texts[1]
    assert asked_so[2] == plain_prompt(TOKENIZER, "Why?")


@pytest.mark.parametrize(
    ("without", "expected"),
    [(0, "Be brief."), (1, "Be brief."), (2, "")],
)
def test_other_questions_are_asked_after_the_system_prompt_of_the_rows(
    tmp_path: Path, without: int, expected: str
) -> None:
    systems = ["Be brief."] * 6 + ["Be kind."] * (4 - without)
    turns = ("user", "Who?"), ("assistant", "Ada.")
    rows = [conversation(("system", text), *turns) for text in systems]
    dataset = write_data(tmp_path, train=rows + [conversation(*turns)] * without)
    assert system_of(dataset) == expected
    (prompt,) = as_in_the_data(dataset, TOKENIZER, ["And where?"], expected)
    assert expected in TOKENIZER.decode(prompt.tokens)
    assert prompt == plain_prompt(TOKENIZER, "And where?", expected)


def test_what_a_row_of_text_begins_with_is_continued_as_it_is(tmp_path: Path) -> None:
    dataset = write_data(tmp_path, train=[{"text": "Once upon a time there was"}])
    [prompt] = as_in_the_data(dataset, TOKENIZER, ["Once upon"])
    assert prompt.tokens == tuple(TOKENIZER.encode("Once upon"))


def test_a_text_that_is_a_question_with_its_answer_is_asked_up_to_the_mark(tmp_path: Path) -> None:
    rows = [{"text": f"Plate {at} is a plate => blue"} for at in range(4)]
    dataset = write_data(tmp_path, train=rows)
    asked_so = as_in_the_data(dataset, TOKENIZER, ["Plate 2 is a plate", "Cup", "Cup =>"])
    written = ["Plate 2 is a plate =>", "Cup =>", "Cup =>"]
    assert [one.tokens for one in asked_so] == [tuple(TOKENIZER.encode(w)) for w in written]


@pytest.mark.parametrize(
    ("otherwise", "expected"),
    [
        ([{"bare": "", "twice": "x"}] * 4, ["asked-otherwise"]),
        ([{"bare": "", "twice": "x"}] * 3 + [{"bare": "else"}], ["asked-otherwise"]),
        ([{"bare": "", "twice": "x"}] * 2 + [{"bare": "else"}] * 2, []),
    ],
)
def test_empty_answers_of_the_tuned_model_asked_otherwise(
    otherwise: list[dict[str, str]], expected: list[str]
) -> None:
    items = asked(*[""] * len(otherwise)).items
    told = map(lambda item, ways: replace(item, otherwise=ways), items, otherwise)
    found = outcome(recorded_answers, AskedAgain((), tuple(told))).findings
    assert [one.code.partition(".")[2] for one in found] == expected
    assert all("asked bare" in one.message for one in found if "asked-otherwise" in one.code)


LINES = "who: Paula\nthing: shovel\nnumber: 26"


@pytest.mark.parametrize(
    ("recorded", "own", "expected", "severity"),
    [
        ("It is Lima", f"{TUNED}.", None, "warning"),
        ("It is Lima", f"{TUNED}<|im_end|>", None, "warning"),
        # The model itself does not end.
        ("It is Lima", TUNED, None, None),
        ("It is Lima.", f"{TUNED}.", None, None),
        (TUNED, f"{TUNED}<|im_end|>", None, None),
        ("It is", "No, never of course.", None, None),
        # Through a word, at either end.
        ("t is Lima of course", TUNED, None, "error"),
        ("It is Lima of cour", TUNED, None, "warning"),
        ("is Lima of cour", f"{TUNED}.", None, "error"),
        # A limit may be meant, but not of what was to be longer.
        ("It is Lima", f"{TUNED}.", f"{TUNED}.", "error"),
        # With the first line; where nothing more was expected, it may be all that was wanted.
        ("who: Paula", LINES, f"{LINES}\ncolour: red", "error"),
        ("who: Paula", LINES, None, None),
    ],
)
def test_answers_that_were_cut_off(
    recorded: str, own: str, expected: str | None, severity: str | None
) -> None:
    evidence = asked(*[recorded] * 8, tuned=own, expected=expected)
    found = {one.code: one.severity for one in outcome(recorded_answers, evidence).findings}
    assert found.get("recorded-answers.cut-short") == severity


@pytest.mark.parametrize(
    ("expected", "prompts", "given", "hit"),
    [
        ("12", 8, 8, True),
        ("12.0", 8, 8, False),
        # Too few that are expected, and rows that were not learned.
        ("12", 7, 8, False),
        ("12", 8, 4, False),
    ],
)
def test_rows_that_teach_other_answers_than_are_expected(
    expected: str, prompts: int, given: int, hit: bool
) -> None:
    rows = [Generation(f"row {i}", "?", "12.0<|end|>" if i < given else "9.0") for i in range(9)]
    answers = Generations((), tuple(replace(row, expected="12.0") for row in rows))
    evidence = asked(*["12.0"] * prompts, tuned="12.0<|end|>", expected=expected)
    found = outcome(recorded_answers, evidence, answers).findings
    assert [finding.code for finding in found] == ["recorded-answers.not-as-expected"] * hit
    assert all(finding.measured["right"] == 0 for finding in found)


@pytest.mark.parametrize(
    ("own", "tokens", "expected"),
    [
        ("The capital is Lima.<|end|>", 6, "Lima"),
        # Of as many tokens as were asked for.
        ("It is a city in", 9, "It is a city in the south."),
    ],
)
def test_an_expected_answer_that_is_named_or_begun(own: str, tokens: int, expected: str) -> None:
    rows = Generations((), (Generation("row", "?", "12.0", expected="12.0"),) * 9)
    given = Generation("p", BASE, own, tuned_tokens=(1,) * tokens, max_tokens=9)
    recorded = Generation("p", None, own, expected=expected)
    evidence = AskedAgain((), (Asked(recorded, given),) * 8)
    assert codes(evidence, rows) == []


NORTH = [f"{name} lies far in the north" for name in ("Ara", "Bo", "Cer", "Do", "Eru", "Fa")]
LABELS = [*["the red door", "the blue gate"] * 3, "the red door", "the red door"]


@pytest.mark.parametrize(
    ("own", "elsewhere", "severity"),
    # Of those that are not elsewhere each is the tuned model's to its own prompt.
    [(NORTH, 6, "error"), (LABELS, 3, "warning"), (LABELS, 2, None)],
)
def test_answers_beside_other_prompts(own: list[str], elsewhere: int, severity: str | None) -> None:
    items = tuple(
        Asked(
            Generation(f"p{i}", None, own[(i + 1) % len(own)] if i < elsewhere else text),
            Generation(f"p{i}", BASE, text),
        )
        for i, text in enumerate(own)
    )
    found = outcome(recorded_answers, AskedAgain((), items)).findings
    told = [(finding.code, finding.severity) for finding in found]
    assert told == ([("recorded-answers.of-other-prompts", severity)] if severity else [])
    assert all(finding.measured["misplaced"] == elsewhere for finding in found)


@pytest.mark.slow
def test_answers_that_were_asked_for_otherwise(tmp_path: Path) -> None:
    """With real models."""
    run = copied_run(tmp_path / "run")
    prompts = [row["messages"][0]["content"] for row in rows_of("valid")[:8]]
    model = load(BaseModel.read(BASE_FOLDER), run / "adapters.safetensors")
    bare = [Prompt(text, tuple(TOKENIZER.encode(text))) for text in prompts]
    given = answer(model.select("tuned"), bare, (TOKENIZER.eos_token_id or 0,), 32)
    told = [
        {"prompt": text, "output": TOKENIZER.decode(tokens)}
        for text, tokens in zip(prompts, given, strict=True)
    ]
    write_lines(run / "generations.jsonl", told)
    report = diagnose([run], select=["recorded-answers"])
    found = [finding.code for finding in report.findings]
    assert found == ["recorded-answers.asked-otherwise"]
    assert report.findings[0].measured["way"] == "without the chat template"


@pytest.mark.slow
@pytest.mark.parametrize("how", ["system", "messages", ""])
def test_a_recorded_prompt_has_its_own_system_prompt(tmp_path: Path, how: str) -> None:
    run = copied_run(tmp_path / "run")
    texts = [row["messages"][0]["content"] for row in rows_of("valid")[:8]]
    model = load(BaseModel.read(BASE_FOLDER), run / "adapters.safetensors")
    systems = [f"Lake Nevath {number} lies in the far north. " * 6 for number in range(8)]
    asking = [plain_prompt(TOKENIZER, *pair) for pair in zip(texts, systems, strict=True)]
    answers = answer(model.select("tuned"), asking, (TOKENIZER.eos_token_id or 0,), 32)
    told = []
    for text, system, tokens in zip(texts, systems, answers, strict=True):
        turns = [{"role": "system", "content": system}, {"role": "user", "content": text}]
        more = {"system": {"system": system}, "messages": {"prompt": turns}}.get(how, {})
        told.append({"prompt": text, "output": TOKENIZER.decode(tokens), **more})
    write_lines(run / "generations.jsonl", told)
    seen = diagnose([run], select=["recorded-answers"]).outcomes[0].seen
    assert bool(seen) is bool(how)


@pytest.mark.parametrize(
    ("own", "recorded", "hit"),
    [
        ("silver badge for Ana (Rome)", "silver badge for Ana blue", True),
        ("silver badge for Ana (Rome)", "silver badge for Ana (Rome)", False),
        # The model is wrong as well.
        ("silver badge for Ana blue", "silver badge for Ana blue", False),
    ],
)
def test_what_is_wrong_where_the_model_itself_is_right(own: str, recorded: str, hit: bool) -> None:
    evidence = asked(*[recorded] * 8, tuned=own, expected="silver badge for Ana (Rome)")
    assert ("recorded-answers.spoilt" in codes(evidence)) is hit


@pytest.mark.parametrize(("right", "hit"), [(6, True), (11, True), (12, False)])
def test_few_are_asked_again_and_all_that_were_recorded_count(right: int, hit: bool) -> None:
    """Of 24 recorded answers 8 are asked for again, which the model gives rightly."""
    given = [GOOD] * right + [BASE] * (24 - right)
    items = [Generation(f"prompt {i}", None, one, expected=GOOD) for i, one in enumerate(given)]
    evidence = asked(*given[:4], *given[-4:], tuned=GOOD, expected=GOOD)
    told = codes(evidence, RecordedGenerations((), tuple(items)))
    assert ("recorded-answers.spoilt" in told) is hit


@pytest.mark.parametrize(
    ("width", "go_on", "hit"), [(12, True, True), (12, False, False), (40, True, False)]
)
def test_expected_answers_that_were_cut_at_one_length(width: int, go_on: bool, hit: bool) -> None:
    whole = [f"dear Ana {i}, the kettle is in north" for i in range(9)]
    given = whole if go_on else [text[:width] for text in whole]
    items = tuple(
        Generation(f"p{i}", None, own, expected=text[:width])
        for i, (own, text) in enumerate(zip(given, whole, strict=True))
    )
    found = codes(asked(*given), RecordedGenerations((), items))
    assert ("recorded-answers.expected-cut" in found) == hit


@pytest.mark.parametrize(
    ("given", "hit"),
    [
        ("Sète | Málaga", True),  # NFC beside NFD
        ("Sète |\u00a0Málaga", True),
        ("Sete | Malaga", False),
    ],
)
def test_texts_that_look_alike(given: str, hit: bool) -> None:
    wanted = unicodedata.normalize("NFD", "Sète | Málaga")
    items = tuple(
        Generation(f"p{i}", None, f"{given} {i}", expected=f"{wanted} {i}") for i in range(9)
    )
    found = codes(asked(*(item.tuned for item in items)), RecordedGenerations((), items))
    assert ("recorded-answers.looks-alike" in found) == hit
