"""The description of texts: what was seen in real runs, sound texts beside it, published values."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Sequence

import pytest

from mlxdoctor.engines import text as engine
from mlxdoctor.engines.text import describe
from mlxdoctor.measure.text.outputs import answer_words
from tests.conftest import FIXTURES


def sound_answers() -> list[str]:
    lines = (FIXTURES / "data" / "geography" / "train.jsonl").read_text().splitlines()
    return [json.loads(line)["messages"][-1]["content"] for line in lines]


SOUND = sound_answers()


def test_sound_answers_show_nothing() -> None:
    facts = describe(SOUND)
    assert facts.top_share < 0.05
    assert facts.cut.share < 0.1
    assert facts.order.ratio > 1.3


def test_answers_cut_at_38_characters() -> None:
    cut = describe([text[:38] for text in SOUND]).cut
    assert cut.length == 38
    assert cut.share > 0.9
    assert cut.unfinished > 0.9
    assert cut.mid_word > 0.25


def test_nine_answers_in_ten_are_the_same() -> None:
    facts = describe([SOUND[i] if i % 10 == 0 else " I can't say.\n" for i in range(200)])
    assert (facts.top_text, facts.top_share) == ("I can't say.", 0.9)
    assert facts.distinct <= 21


def test_words_in_no_order() -> None:
    rng = random.Random(0)
    shuffled = [" ".join(rng.sample(words := text.split(), len(words))) for text in SOUND]
    assert describe(shuffled).order.ratio < 1.1
    assert describe(SOUND).order.ratio > 1.3


def test_nothing_to_describe_is_an_error() -> None:
    with pytest.raises(ValueError, match="at least one"):
        describe([])


@pytest.mark.parametrize("texts", [[""], ["", ""], ["."], ["東京は大"] * 3, ["a\ud7ff", "b"]])
def test_any_text_can_be_described(texts: list[str]) -> None:
    assert describe(texts).distinct == len(set(texts))


@pytest.mark.slow
def test_a_hundred_thousand_texts_take_seconds_of_processor_time() -> None:
    words = [f"w{i}" for i in range(5_000)]
    rng = random.Random(0)
    texts = [" ".join(rng.choices(words, k=200)) for _ in range(100_000)]
    start = time.process_time()
    describe(texts)
    assert time.process_time() - start < 5


@pytest.mark.parametrize(
    ("text", "finished"),
    [
        ("It is Paris.", True),
        ('She said "yes!"', True),
        ("東京です。", True),
        ('{"a": 1}', True),
        ("f(x)", True),
        ("the second longest riv", False),
        ("red, green,", False),
        ("", False),
    ],
)
def test_how_a_text_ends(text: str, finished: bool) -> None:
    assert engine.is_finished(text) is finished


def test_huge_texts_cost_no_more_than_their_beginning() -> None:
    text = "word " * 4_000_000 + "("
    start = time.process_time()
    assert engine.word_order([text, text]).words == 200
    assert len(answer_words(text)) == engine.LONGEST // 5
    describe([random.Random(i).randbytes(3_000).hex() for i in range(400)])
    assert time.process_time() - start < 5


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Paris, 1867!", ["paris", "1867"]),
        ("Größe naïve", ["größe", "naïve"]),
        ("東京は", ["東", "京", "は"]),
        ("GPT東京4", ["gpt", "東", "京", "4"]),
        ("", []),
    ],
)
def test_words(text: str, expected: list[str]) -> None:
    assert engine.words(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Paris paris 1867", {"paris", "1867"}),
        ("東京は大", {"東京", "京は", "は大"}),
        ("東", {"東"}),
    ],
)
def test_vocabulary(text: str, expected: set[str]) -> None:
    assert engine.vocabulary(text) == expected


def test_repeated_ngrams_are_counted_once() -> None:
    # a b c d a b c d: 5 4-grams, 4 of them distinct.
    assert engine.seq_rep_n("abcdabcd", 4) == pytest.approx(1 / 5)
    assert engine.distinct_n("aaaa", 1) == 0.25
    assert engine.seq_rep_n("abc", 4) == 0.0


def test_top_share_names_the_unit() -> None:
    assert engine.top_share([11, 11, 11, 5]) == (11, 0.75)
    assert engine.top_share([]) == (None, 0.0)


def test_run_share() -> None:
    assert engine.run_share([1, 1, 1, 1, 2, 2, 2, 3]) == 0.5
    assert engine.run_share([1, 1, 1, 2, 2, 2]) == 0.0


@pytest.mark.parametrize(
    ("units", "period", "covered"),
    [
        ("xyabcabcabc", 3, 9),
        ("xyabcabca", 3, 7),  # the second period is cut off
        ("aaaa", 1, 4),
        ("abcd", 0, 0),
        ("", 0, 0),
    ],
)
def test_tail_loop(units: Sequence[str], period: int, covered: int) -> None:
    assert engine.tail_loop(units) == (period, covered)


def test_word_f1_is_the_harmonic_mean() -> None:
    # precision 2/4, recall 2/3
    assert engine.word_f1(["a", "b", "c", "d"], ["a", "b", "x"]) == pytest.approx(2 * 2 / 7)
    assert engine.word_f1([], ["a"]) == 0.0
