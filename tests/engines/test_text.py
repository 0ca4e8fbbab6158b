"""The description of texts: what was seen in real runs, sound texts beside it, published values."""

import random
import time
from collections.abc import Sequence

import pytest

from mlxdoctor.engines import text as engine
from mlxdoctor.engines.text import describe
from mlxdoctor.measure.text.outputs import answer_words


def test_what_is_described() -> None:
    """How answers that are cut or shuffled look: tests/checks/test_data_quality.py."""
    facts = describe(["It is late.", " It is late.\n", "It is la", "The late hou", "It is early."])
    assert (facts.distinct, facts.top_text) == (4, "It is late.")
    assert (facts.cut.length, facts.cut.share) == (13, 1 / 5)
    texts = ["She is here in town now", "He is at hom in bed", "We are home by now today"]
    facts = describe([*texts, "He is at home now"])
    assert (facts.order.texts, facts.order.words, facts.order.shared) == (3, 18, 3)


@pytest.mark.parametrize("texts", [[""], ["", ""], ["."], ["東京は大"] * 3, ["a\ud7ff", "b"]])
def test_any_text_can_be_described(texts: list[str]) -> None:
    assert describe(texts).distinct == len(set(texts))


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


@pytest.mark.slow
def test_many_texts_and_huge_ones_cost_no_more_than_a_sample() -> None:
    vocabulary = [f"w{i}" for i in range(5_000)]
    rng = random.Random(0)
    texts = [" ".join(rng.choices(vocabulary, k=200)) for _ in range(100_000)]
    start = time.process_time()
    describe(texts)
    assert time.process_time() - start < 5
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


def test_how_units_repeat() -> None:
    # a b c d a b c d: 5 4-grams, 4 of them distinct.
    assert engine.distinct_n("abcdabcd", 4) == pytest.approx(4 / 5)
    assert engine.distinct_n("abc", 4) == 1.0
    assert engine.distinct_n("aaaa", 1) == 0.25
    assert engine.top_share([11, 11, 11, 5]) == (11, 0.75)
    assert engine.top_share([]) == (None, 0.0)
    assert engine.run_share([1, 1, 1, 1, 2, 2, 2, 3]) == 0.5


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
