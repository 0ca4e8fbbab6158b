"""The base model's own answers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mlxdoctor.api import run_checks
from mlxdoctor.check import discover
from mlxdoctor.finding import Outcome, Status
from mlxdoctor.run import Run
from tests.conftest import RUNS, run_names


def outcome(path: Path) -> Outcome:
    checks = [one for one in discover() if one.name == "base-answers"]
    (found,) = run_checks(checks, Run.discover([path], allow_model=False))
    return found


def recorded(folder: Path, answers: list[str | None]) -> Path:
    rows = [
        {"prompt": f"Question {number}?", "tuned": "An answer in words.", "base": answer}
        for number, answer in enumerate(answers)
    ]
    path = folder / "generations.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize("name", run_names())
def test_the_base_of_the_fixtures_is_sound(name: str) -> None:
    assert outcome(RUNS / name).findings == ()


@pytest.mark.parametrize("answer", ["", "! " * 20, ", , , , , , , , , , , , and"])
def test_a_broken_base_is_found(tmp_path: Path, answer: str) -> None:
    found = outcome(recorded(tmp_path, [answer] * 6))
    assert [one.code for one in found.findings] == ["base-answers.degenerate"]
    assert found.findings[0].measured["degenerate"] == 6


def test_half_of_the_answers_are_not_enough(tmp_path: Path) -> None:
    assert outcome(recorded(tmp_path, ["", "It is a town."] * 8)).status is Status.PASSED


def test_a_short_repetition_is_an_answer(tmp_path: Path) -> None:
    assert outcome(recorded(tmp_path, ["no no no"] * 6)).status is Status.PASSED


def test_few_prompts_are_inconclusive(tmp_path: Path) -> None:
    assert outcome(recorded(tmp_path, [""] * 4)).status is Status.INCONCLUSIVE


def test_without_the_base_nothing_is_judged(tmp_path: Path) -> None:
    assert outcome(recorded(tmp_path, [None] * 6)).status is Status.SKIPPED
