"""Parity: step for step the losses of a real `mlx_lm.lora` run."""

from pathlib import Path
from typing import Any, Literal

import pytest

from tests.preflight.small_run import SOUND
from tests.twin.peer import Losses, losses_of

pytestmark = pytest.mark.slow

#: How far two losses may be apart, nats.
CLOSE = 1e-4
ITERATIONS = 50
REPORTS = {"val_batches": 3, "steps_per_eval": 20, "steps_per_report": 1}
USUAL = {**SOUND, "iters": ITERATIONS, **REPORTS}
SCHEDULE = {"name": "cosine_decay", "warmup": 5, "arguments": [3e-4, 20, 1e-5]}
RUNS: dict[str, dict[str, Any]] = {
    "plain": {},
    "everything": {
        "mask_prompt": True,
        "grad_accumulation_steps": 3,
        "grad_checkpoint": True,
        "lr_schedule": SCHEDULE,
        "optimizer": "adamw",
    },
    "dropout": {"lora_parameters": {"rank": 8, "scale": 20.0, "dropout": 0.1}},
}


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Losses, Losses, Path]]:
    """Of each run mlx-lm's losses, ours, and the folder with both adapters."""
    folder = tmp_path_factory.mktemp("parity")

    def losses(trainer: Literal["mlx-lm", "ours"]) -> dict[str, Losses]:
        parity = {"mlxdoctor": {"mode": "parity"}} if trainer == "ours" else {}
        runs = {
            name: {**USUAL, **values, **parity, "adapter_path": str(folder / name / trainer)}
            for name, values in RUNS.items()
        }
        if trainer == "ours":
            path = str(folder / "exact")
            runs["exact"] = {**USUAL, "iters": 3, "adapter_path": path}
        return losses_of(trainer, runs, folder / f"{trainer}-reports")

    theirs, ours = losses("mlx-lm"), losses("ours")
    both = {name: (theirs[name], ours[name], folder / name) for name in RUNS}
    return {**both, "exact": (theirs["plain"], ours["exact"], folder / "exact")}


def agreed(wanted: Losses, result: Losses, folder: Path) -> list[float]:
    """Compare losses and weights; the losses on the training batches."""
    import mlx.core as mx

    for split, count in (("train", ITERATIONS), ("val", 4)):
        assert len(result[split]) == count
        assert [at for at, _ in result[split]] == [at for at, _ in wanted[split]]
        assert [loss for _, loss in result[split]] == pytest.approx(
            [loss for _, loss in wanted[split]], abs=CLOSE
        )
    left, right = (
        mx.load(str(folder / name / "adapters.safetensors")) for name in ("mlx-lm", "ours")
    )
    assert isinstance(left, dict)
    assert isinstance(right, dict)
    assert left.keys() == right.keys()
    assert all(mx.allclose(left[name], right[name], atol=1e-4).item() for name in left)
    return [loss for _, loss in result["train"]]


@pytest.mark.parametrize("name", RUNS)
def test_a_run_has_the_losses_of_mlx_lm(compared: Any, name: str) -> None:
    found = agreed(*compared[name])
    # Something was learned: both standing still would agree as well.
    assert found[-1] < found[0] / 2


def test_exact_mode_is_another_run(compared: Any) -> None:
    # The near miss: the same settings without parity have other batches and another mask.
    wanted, found, _ = compared["exact"]
    pairs = zip(found["train"], wanted["train"][:3], strict=True)
    assert min(abs(one[1] - other[1]) for one, other in pairs) > CLOSE
