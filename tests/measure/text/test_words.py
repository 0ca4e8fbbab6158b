"""Words of any script, and what two texts share."""

from __future__ import annotations

import pytest

from mlxdoctor.measure.text.words import rarity, shared_share, vocabulary, words


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
def test_words(text, expected):
    assert words(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Paris paris 1867", {"paris", "1867"}),
        ("東京は大", {"東京", "京は", "は大"}),
        ("東", {"東"}),
    ],
)
def test_vocabulary(text, expected):
    assert vocabulary(text) == expected


def test_rare_words_weigh_more():
    texts = [{"the", "capital", name} for name in ("paris", "rome", "oslo", "bern")]
    weights = rarity(texts)
    assert weights["paris"] > weights["the"] > 0
    assert shared_share(texts[0], texts[0], weights) == 1.0
    assert shared_share(texts[0], texts[1], weights) < 0.5
    assert shared_share(texts[0], set(), weights) == 0.0
