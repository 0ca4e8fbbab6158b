"""Whole runs of mlx-lm's trainer and of ours, in a process for each trainer, to compare.

    python -m tests.twin.peer TRAINER CONFIG.json...

Writes the losses to `CONFIG.losses.json`. mlx-lm's is a real `mlx_lm.lora` run: only the
callback, which it would replace with its own, is put in, so that losses come with all
their digits. Processes of their own, because gradient checkpointing in mlx-lm changes the
layers' class for good (such runs come last), and so that both have the same BLAS.
"""

import json
import sys
from pathlib import Path
from typing import Any, Literal

from fixtures.lab.harness import ROOT, faster_arithmetic
from tests.processes import python

Losses = dict[str, list[list[float]]]


def losses_of(
    trainer: Literal["mlx-lm", "ours"], runs: dict[str, dict[str, Any]], folder: Path
) -> dict[str, Losses]:
    """The training and validation losses of runs with these settings.

    Args:
        runs: a name for each; mlx-lm's keys and values, of which `steps_per_report: 1` has
            mlx-lm report every step.
        folder: for the configurations and the reports.

    Returns:
        For each run `train` and `val`: pairs of iteration and loss, as mlx-lm's callback
        gets them.
    """
    folder.mkdir(parents=True, exist_ok=True)
    ordered = sorted(runs, key=lambda name: bool(runs[name].get("grad_checkpoint")))
    configs = {name: folder / f"{name}.json" for name in ordered}
    for name, config in configs.items():
        config.write_text(json.dumps(runs[name]))
    environment = {**faster_arithmetic(), "PYTHONPATH": str(ROOT)}
    arguments = ("-m", "tests.twin.peer", trainer, *configs.values())
    python(*arguments, environment=environment, check=True, cwd=ROOT)
    return {name: json.loads(report_of(config).read_text()) for name, config in configs.items()}


def report_of(config: Path) -> Path:
    """Where the losses of a configuration are written."""
    return config.with_suffix(".losses.json")


def our_losses(config: Path) -> Losses:
    from mlxdoctor.twin import Settings, train

    result = train(Settings.read(config))
    return {
        "train": [[one.iteration, one.train_loss] for one in result.steps],
        "val": [[one.iteration, one.val_loss] for one in result.validations],
    }


def mlx_lm_losses(config: Path) -> Losses:
    """Train with mlx-lm, as its command line does."""
    from types import SimpleNamespace

    from mlx_lm import lora
    from mlx_lm.tuner.callbacks import TrainingCallback

    losses: Losses = {"train": [], "val": []}

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
    """Run the trainer that is named, on each configuration."""
    trainer, *configs = sys.argv[1:]
    run = mlx_lm_losses if trainer == "mlx-lm" else our_losses
    for config in map(Path, configs):
        report_of(config).write_text(json.dumps(run(config)))


if __name__ == "__main__":
    main()
