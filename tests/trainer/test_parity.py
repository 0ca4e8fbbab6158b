"""Parity: step for step the losses of a real `mlx_lm.lora` run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mlxdoctor.trainer import Settings, train
from tests.conftest import FIXTURES
from tests.trainer.peer import mlx_lm_run

pytestmark = pytest.mark.model

#: How far two losses may be apart, nats.
CLOSE = 1e-4
USUAL = {
    "model": str(FIXTURES / "base"),
    "data": str(FIXTURES / "data" / "geography"),
    "iters": 50,
    "num_layers": 4,
    "learning_rate": 3e-4,
    "val_batches": 3,
    "steps_per_eval": 20,
    "steps_per_report": 1,
    "max_seq_length": 256,
}
SCHEDULE = {"name": "cosine_decay", "warmup": 5, "arguments": [3e-4, 20, 1e-5]}
EVERYTHING = {
    "mask_prompt": True,
    "grad_accumulation_steps": 3,
    "grad_checkpoint": True,
    "lr_schedule": SCHEDULE,
    "optimizer": "adamw",
}


def compare(tmp_path: Path, **values: Any) -> tuple[list[float], list[float]]:
    """Train with both and compare; the losses of both on the training batches."""
    import mlx.core as mx

    theirs = {**USUAL, **values, "adapter_path": str(tmp_path / "theirs")}
    ours = {**theirs, "adapter_path": str(tmp_path / "ours"), "mlxdoctor": {"mode": "parity"}}
    wanted = mlx_lm_run(theirs, tmp_path)
    result = train(Settings.from_values(ours))
    found = [step.train_loss for step in result.steps]
    expected = [loss for _, loss in wanted["train"]]
    assert len(found) == 50
    assert found == pytest.approx(expected, abs=CLOSE)
    assert [one.iteration for one in result.validations] == [at for at, _ in wanted["val"]]
    validations = [one.val_loss for one in result.validations]
    assert validations == pytest.approx([loss for _, loss in wanted["val"]], abs=CLOSE)
    left, right = (
        mx.load(str(tmp_path / name / "adapters.safetensors")) for name in ("theirs", "ours")
    )
    assert isinstance(left, dict)
    assert isinstance(right, dict)
    assert left.keys() == right.keys()
    assert all(mx.allclose(left[name], right[name], atol=1e-4).item() for name in left)
    return found, expected


def test_a_plain_run_has_the_losses_of_mlx_lm(tmp_path: Path) -> None:
    found, _ = compare(tmp_path)
    # Something was learned: both standing still would agree as well.
    assert found[-1] < found[0] / 3


def test_mask_schedule_checkpointing_and_accumulation_together_too(tmp_path: Path) -> None:
    found, _ = compare(tmp_path, **EVERYTHING)
    assert found[-1] < found[0] / 2


def test_dropout_is_drawn_from_the_same_random_state(tmp_path: Path) -> None:
    compare(tmp_path, lora_parameters={"rank": 8, "scale": 20.0, "dropout": 0.1})


def test_exact_mode_is_another_run(tmp_path: Path) -> None:
    # The near miss: the same settings without parity have other batches and another mask.
    settings = Settings.from_values({**USUAL, "iters": 3, "adapter_path": str(tmp_path)})
    wanted = mlx_lm_run({**USUAL, "iters": 3, "adapter_path": str(tmp_path / "x")}, tmp_path)
    found = [step.train_loss for step in train(settings).steps]
    assert found != pytest.approx([loss for _, loss in wanted["train"]], abs=CLOSE)
