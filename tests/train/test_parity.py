"""Parity: step for step the losses of a real `mlx_lm.lora` run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.conftest import FIXTURES
from tests.train.peer import losses_of

pytestmark = pytest.mark.slow

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


def compare(tmp_path: Path, **values: Any) -> list[float]:
    """Train with both and compare; the losses on the training batches."""
    import mlx.core as mx

    theirs = {**USUAL, **values, "adapter_path": str(tmp_path / "theirs")}
    ours = {**theirs, "adapter_path": str(tmp_path / "ours"), "mlxdoctor": {"mode": "parity"}}
    wanted = losses_of("mlx-lm", theirs, tmp_path / "their-report")
    result = losses_of("ours", ours, tmp_path / "our-report")
    for split, count in (("train", 50), ("val", 4)):
        assert len(result[split]) == count
        assert [at for at, _ in result[split]] == [at for at, _ in wanted[split]]
        assert [loss for _, loss in result[split]] == pytest.approx(
            [loss for _, loss in wanted[split]], abs=CLOSE
        )
    left, right = (
        mx.load(str(tmp_path / name / "adapters.safetensors")) for name in ("theirs", "ours")
    )
    assert isinstance(left, dict)
    assert isinstance(right, dict)
    assert left.keys() == right.keys()
    assert all(mx.allclose(left[name], right[name], atol=1e-4).item() for name in left)
    return [loss for _, loss in result["train"]]


def test_a_plain_run_has_the_losses_of_mlx_lm(tmp_path: Path) -> None:
    found = compare(tmp_path)
    # Something was learned: both standing still would agree as well.
    assert found[-1] < found[0] / 3


def test_mask_schedule_checkpointing_and_accumulation_together_too(tmp_path: Path) -> None:
    found = compare(tmp_path, **EVERYTHING)
    assert found[-1] < found[0] / 2


def test_dropout_is_drawn_from_the_same_random_state(tmp_path: Path) -> None:
    compare(tmp_path, lora_parameters={"rank": 8, "scale": 20.0, "dropout": 0.1})


def test_exact_mode_is_another_run(tmp_path: Path) -> None:
    # The near miss: the same settings without parity have other batches and another mask.
    values = {**USUAL, "iters": 3, "adapter_path": str(tmp_path / "adapters")}
    wanted = losses_of("mlx-lm", values, tmp_path / "their-report")["train"]
    found = losses_of("ours", values, tmp_path / "our-report")["train"]
    differences = [abs(one[1] - other[1]) for one, other in zip(found, wanted, strict=True)]
    assert min(differences) > CLOSE
