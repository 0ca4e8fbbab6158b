"""No sentence is false: what is drawn at random, and an independent reading of what is said."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fixtures.lab.true_sentences.log_drawing import checks as log_checks
from fixtures.lab.true_sentences.subject import Subject, tried
from fixtures.lab.true_sentences.subjects import ADAPTERS, ANSWERS, LOGS, ROWS, SUBJECTS


@pytest.mark.slow
@settings(max_examples=400, derandomize=True, deadline=None, database=None)
@given(seed=st.integers(0, 2**48))
def test_every_sentence_about_a_log_is_true(seed: int) -> None:
    tally = tried(LOGS, [seed])
    assert tally.false == []


@pytest.mark.slow
@pytest.mark.parametrize("subject", [ADAPTERS, ROWS, ANSWERS], ids=lambda one: one.name)
@settings(max_examples=150, derandomize=True, deadline=None, database=None)
@given(seed=st.integers(0, 2**48))
def test_every_sentence_about_another_thing_is_true(subject: Subject[Any], seed: int) -> None:
    assert tried(subject, [seed]).false == []


def test_the_checks_of_a_log_are_asked() -> None:
    names = {one.name for one in log_checks()}
    assert {"loss-trend", "loss-level", "loss-finite", "loss-stability", "gradient-norm"} <= names
    assert {"learning-rate-schedule", "rate-effect", "training-length"} <= names


@pytest.mark.slow
@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda one: one.name)
def test_a_sentence_with_another_figure_is_caught(subject: Subject[Any], tmp_path: Path) -> None:
    """The reading can fail: each sentence with one of its figures changed."""
    caught = changed = 0
    for seed in range(80):
        drawn, folder = subject.draw(seed), tmp_path / str(seed)
        folder.mkdir()
        for said in subject.judged(drawn, folder):
            for match in re.finditer(r"\b\d+(?:\.\d+)?\b", said.message):
                whole = "." not in match[0]
                other = f"{int(match[0]) * 2 + 3}" if whole else f"{float(match[0]) * 1.3 + 1:.3f}"
                message = said.message[: match.start()] + other + said.message[match.end() :]
                changed += 1
                caught += bool(subject.falsehoods(replace(said, message=message), drawn))
    assert changed > 100
    # What is only held against a band, like a rate to try, may be another within it.
    assert caught >= 0.85 * changed
