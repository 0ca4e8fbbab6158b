"""Whether the training answers are those to their prompts: by what prompts are worth."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlxdoctor.reproduce.pairing import Worth, chance, change_prompts, judge_pairs
from mlxdoctor.reproduce.recipe import recipe_of
from mlxdoctor.reproduce.rerun import Laboratory
from mlxdoctor.reproduce.rules import Ruling
from mlxdoctor.run import Run

RANDOM = np.random.default_rng(0)


def gains(mean: float, count: int = 48, spread: float = 0.5) -> list[float]:
    """As many rows whose gains have this mean and spread."""
    values = RANDOM.normal(size=count)
    values = (values - values.mean()) / values.std(ddof=1)
    return [float(one) for one in mean + spread * values]


def verdict(train: Sequence[float], valid: Sequence[float]) -> str | None:
    found = judge_pairs(Worth.of(train), Worth.of(valid), "the base")
    return found.verdict if found is not None else None


@pytest.mark.parametrize(
    ("train", "valid", "said"),
    [
        (1.95, 1.95, "undecided"),
        (0.02, 1.95, "confirmed"),
        (-0.05, 1.95, "confirmed"),
        (0.6, 1.95, "undecided"),
        (0.3, 0.34, "undecided"),
        (0.0, 0.02, None),
        (1.9, -0.13, None),
    ],
)
def test_what_the_worth_of_prompts_says(train: float, valid: float, said: str | None) -> None:
    # With this spread no prompt of another row suits better, save where nothing tells.
    assert verdict(gains(train, spread=0.2), gains(valid, spread=0.2)) == said


def test_a_part_of_the_answers_elsewhere() -> None:
    sound = gains(1.5, 192, 0.6)
    mixed = [*gains(1.5, 96, 0.6), *gains(0.0, 96, 0.6)]
    found = judge_pairs(Worth.of(mixed), Worth.of(sound), "the base")
    assert found is not None
    assert found.verdict == "confirmed"
    assert "a part of the training answers" in found.reason
    assert 0.4 < found.strength < 0.6
    few = judge_pairs(Worth.of(mixed[90:102]), Worth.of(sound[:12]), "the base")
    assert few is None or few.verdict == "undecided"


def test_a_harder_split_is_no_fault() -> None:
    # Worth half as much, but no answer is likelier after another row's prompt.
    harder, easier = gains(0.8, 192, 0.1), gains(1.6, 192, 0.1)
    assert verdict(harder, easier) == "undecided"


def test_too_few_rows_and_rows_that_are_not_finite() -> None:
    assert verdict(gains(0.0, 48, 0.2), gains(1.5, 8, 0.2)) is None
    assert verdict([*gains(0.0, 8, 0.2), float("nan")], gains(1.5, 48, 0.2)) == "undecided"
    assert verdict([], gains(1.5, 48, 0.2)) == "undecided"


def test_the_chance_is_fishers() -> None:
    one, other = Worth(0.0, 0.1, 10, 8), Worth(0.0, 0.1, 10, 2)
    # By hand: (C(10,8) C(10,2) + C(10,9) C(10,1) + C(10,10)) / C(20,10).
    assert chance(one, other) == pytest.approx((45 * 45 + 10 * 10 + 1) / 184756)
    assert chance(other, one) == pytest.approx(1.0, abs=0.01)


def made(folder: Path, answers: str) -> Run:
    """A run's configuration with rows whose answers are in place, shifted by one, or shuffled."""
    from tests.reproduce.real import BASE, DATA, SOUND

    data = folder / "data"
    data.mkdir(parents=True)
    for name in ("train", "valid", "test"):
        text = (DATA / f"{name}.jsonl").read_text()
        rows: list[dict[str, Any]] = [json.loads(line) for line in text.splitlines()]
        places = list(range(len(rows)))
        if name == "train" and answers == "shifted":
            places = [*places[1:], 0]
        if name == "train" and answers == "shuffled":
            random.Random(0).shuffle(places)
        moved = [
            {"messages": [*row["messages"][:-1], rows[at]["messages"][-1]]}
            for row, at in zip(rows, places, strict=True)
        ]
        (data / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in moved))
    config = {**SOUND, "data": str(data), "adapter_path": str(folder), "iters": 150}
    (folder / "adapter_config.json").write_text(json.dumps({**config, "learning_rate": 3e-4}))
    return Run.discover([folder], base=BASE, data=data)


def tried(folder: Path, answers: str) -> Ruling:
    run = made(folder / "run", answers)
    work = folder / "work"
    work.mkdir()
    return change_prompts(Laboratory(recipe_of(run), work), run, work)


@pytest.mark.slow(30)
def test_shuffled_answers_are_confirmed_and_sound_ones_not(tmp_path: Path) -> None:
    found = tried(tmp_path / "shuffled", "shuffled")
    assert found.verdict == "confirmed"
    assert "the base, trained on half of the validation and test rows" in found.reason
    sound = tried(tmp_path / "sound", "in place")
    assert sound.verdict == "undecided"
    assert "the training answers are those to their prompts" in sound.reason
