"""Which rows a validation looks at, held against mlx-lm's own loop."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.models.validation import ValidationOrder

SETTINGS = {
    "fine_tune_type": "lora",
    "seed": 7,
    "batch_size": 4,
    "val_batches": 3,
    "steps_per_eval": 25,
    "iters": 130,
}


def order(
    folder: Path, train: int = 203, valid: int = 41, **changes: Any
) -> ValidationOrder | None:
    path = folder / "adapter_config.json"
    path.write_text(json.dumps({**SETTINGS, **changes}))
    return ValidationOrder.of(TrainingConfig.read(path), 203, 41)


@pytest.mark.slow
@pytest.mark.parametrize("val_batches", [3, 10])
def test_it_is_that_of_mlx_lm(tmp_path: Path, val_batches: int) -> None:
    from mlx_lm.tuner.trainer import iterate_batches

    # Every row is its own number: what a batch holds tells which rows it was made of.
    train, valid = ([([number], 0) for number in range(count)] for count in (203, 41))
    np.random.seed(7)
    seen: dict[int, list[int]] = {}
    loop = iterate_batches(train, 4, 64, loop=True)
    for now, _ in zip(range(1, 131), loop, strict=False):
        if now == 1 or now % 25 == 0 or now == 130:
            batches = zip(range(val_batches), iterate_batches(valid, 4, 64), strict=False)
            seen[now] = [int(row[0]) for _, (rows, _) in batches for row in rows]
    found = order(tmp_path, val_batches=val_batches)
    assert found is not None
    mine = {now: [4 * one + at for one in found.batches(now) for at in range(4)] for now in seen}
    if val_batches == 10:
        assert {now: set(rows) for now, rows in mine.items()} == {
            now: set(rows) for now, rows in seen.items()
        }
    else:
        assert mine == seen
        assert mine[1] != mine[25] != mine[130]


def test_iterations_without_a_validation_have_no_rows(tmp_path: Path) -> None:
    found = order(tmp_path)
    assert found is not None
    assert found.batches(26) == () == found.batches(200)


@pytest.mark.parametrize(
    "changes",
    [{"seed": -1}, {"val_batches": 0}, {"steps_per_eval": 0}, {"iters": 0}, {"batch_size": 64}],
)
def test_what_gives_no_order(tmp_path: Path, changes: dict[str, int]) -> None:
    assert order(tmp_path, **changes) is None


def test_another_trainer_s_configuration_says_nothing(tmp_path: Path) -> None:
    path = tmp_path / "adapter_config.json"
    path.write_text(json.dumps({"peft_type": "LORA", "r": 8, "lora_alpha": 16}))
    assert ValidationOrder.of(TrainingConfig.read(path), 200, 40) is None
