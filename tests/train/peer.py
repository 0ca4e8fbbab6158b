"""Whole runs of mlx-lm's trainer and of ours, each in a process of its own, to compare.

    python -m tests.train.peer TRAINER CONFIG.json REPORT.json

mlx-lm's is a real `mlx_lm.lora` run: only the callback, which it would replace with its
own, is put in, so that losses come with all their digits. Processes of their own, because
gradient checkpointing in mlx-lm changes the layers' class for good, and so that both
have the same BLAS.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Literal

ROOT = Path(__file__).parents[2]


def environment() -> dict[str, str]:
    """The environment of a training process: OpenBLAS where there is one, it is faster."""
    found = sorted(Path("/usr/lib").glob("*/openblas-pthread/libopenblas.so.0"))
    preload = {"LD_PRELOAD": str(found[0]), "OPENBLAS_NUM_THREADS": "1"} if found else {}
    return {**os.environ, **preload, "PYTHONPATH": str(ROOT)}


def losses_of(
    trainer: Literal["mlx-lm", "ours"], values: dict[str, Any], folder: Path
) -> dict[str, list[list[float]]]:
    """The training and validation losses of a run with these settings.

    Args:
        values: mlx-lm's keys and values; `steps_per_report: 1` has mlx-lm report every step.
        folder: for the configuration and the report.

    Returns:
        `train` and `val`: pairs of iteration and loss, as mlx-lm's callback gets them.
    """
    folder.mkdir(parents=True, exist_ok=True)
    config, report = folder / "config.json", folder / "report.json"
    config.write_text(json.dumps(values))
    subprocess.run(
        [sys.executable, "-m", "tests.train.peer", trainer, str(config), str(report)],
        check=True,
        env=environment(),
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
    )
    losses: dict[str, list[list[float]]] = json.loads(report.read_text())
    return losses


def our_losses(config: Path) -> dict[str, list[list[float]]]:
    """Train with ours."""
    from mlxdoctor.train import Settings, train

    result = train(Settings.read(config))
    return {
        "train": [[one.iteration, one.train_loss] for one in result.steps],
        "val": [[one.iteration, one.val_loss] for one in result.validations],
    }


def mlx_lm_losses(config: Path) -> dict[str, list[list[float]]]:
    """Train with mlx-lm, as its command line does."""
    from types import SimpleNamespace

    from mlx_lm import lora
    from mlx_lm.tuner.callbacks import TrainingCallback

    losses: dict[str, list[list[float]]] = {"train": [], "val": []}

    class Callback(TrainingCallback):  # type: ignore[misc]
        def on_train_loss_report(self, train_info: dict[str, Any]) -> None:
            losses["train"].append([train_info["iteration"], train_info["train_loss"]])

        def on_val_loss_report(self, val_info: dict[str, Any]) -> None:
            losses["val"].append([val_info["iteration"], val_info["val_loss"]])

    lora.get_reporting_callbacks = lambda *_, **__: Callback()
    stated = {**lora.CONFIG_DEFAULTS, **json.loads(config.read_text()), "train": True}
    lora.run(SimpleNamespace(**stated))
    return losses


def main() -> None:
    """Run the trainer that is named."""
    trainer, config, report = sys.argv[1:]
    run = mlx_lm_losses if trainer == "mlx-lm" else our_losses
    Path(report).write_text(json.dumps(run(Path(config))))


if __name__ == "__main__":
    main()
