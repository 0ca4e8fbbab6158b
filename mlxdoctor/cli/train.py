"""`mlxdoctor train`: the reference trainer."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from mlxdoctor.cli import EXIT_CLEAN, EXIT_FOUND, options

if TYPE_CHECKING:
    from mlxdoctor.twin import Settings, StepRecord, TrainingResult, ValidationRecord
    from mlxdoctor.twin.prepared import Plan

    Told = Plan | StepRecord | ValidationRecord


@click.command(name="train")
@click.option(
    "-c",
    "--config",
    type=options.PATH,
    required=True,
    help="A configuration of mlx_lm.lora: YAML, JSON or an adapter_config.json.",
)
@click.option(
    "--parity",
    is_flag=True,
    help="Batch, mask and average exactly as mlx_lm.lora does, faults included.",
)
@click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="Change a setting of the file; mlxdoctor.KEY for one of the table `mlxdoctor`.",
)
@click.option("--adapter-path", type=options.PATH, help="The folder to write.")
@click.option("--dry-run", is_flag=True, help="Print what would be done, and stop.")
def command(
    *,
    config: Path,
    parity: bool,
    overrides: tuple[str, ...],
    adapter_path: Path | None,
    dry_run: bool,
) -> int:
    """Fine-tune a model with the settings of an mlx_lm.lora configuration.

    Writes what mlx-lm writes (adapters.safetensors, checkpoints, adapter_config.json),
    so that mlx-lm loads it, and metrics.jsonl with loss, rate, gradient norm, tokens,
    time and memory of every step. The table `mlxdoctor:` of the file takes what mlx-lm
    has no key for: mode and grad_clip. A run that diverges is stopped (not with
    --parity), and the exit code is 1.

    \b
    Examples:
      mlxdoctor train -c lora.yaml
      mlxdoctor train -c lora.yaml --set iters=50 --set mlxdoctor.grad_clip=1
      mlxdoctor train -c adapters/adapter_config.json --parity --adapter-path again/
    """
    from mlxdoctor.twin import Settings

    stated = [*overrides]
    if parity:
        stated.append("mlxdoctor.mode=parity")
    if adapter_path is not None:
        stated.append(f"adapter_path={adapter_path}")
    result = _train(Settings.read(config, stated), dry_run)
    return EXIT_FOUND if result.ending == "diverged" else EXIT_CLEAN


def _train(settings: Settings, dry_run: bool) -> TrainingResult:
    from mlxdoctor.twin import train
    from mlxdoctor.twin.prepared import Plan

    report = _Report(settings)

    def tell(told: Told) -> str | None:
        is_plan = isinstance(told, Plan)
        lines = [*told.lines] if isinstance(told, Plan) else report.lines(told)
        if is_plan and not dry_run:
            lines.append(f"Starting training..., iters: {settings.iters}")
        for line in lines:
            click.echo(line)
        return "a dry run" if is_plan and dry_run else None

    result = train(settings, tell=tell)
    if not dry_run:
        if result.test_loss is not None:
            click.echo(f"Test loss {result.test_loss:.3f}")
        click.echo(f"Saved final weights to {result.adapter_path / 'adapters.safetensors'}.")
        if result.ending != "finished":
            click.echo(f"Ended early ({result.ending}): {result.reason}.", err=True)
    return result


class _Report:
    """The classic lines of mlx-lm; steps are taken together, `steps_per_report` a line."""

    def __init__(self, settings: Settings) -> None:
        self._every = settings.steps_per_report
        self._last = settings.iters
        self._steps: list[StepRecord] = []

    def lines(self, one: StepRecord | ValidationRecord) -> list[str]:
        """The lines due after a step or a validation."""
        from mlxdoctor.twin import ValidationRecord

        if isinstance(one, ValidationRecord):
            at = max(one.iteration, 1)
            return [f"Iter {at}: Val loss {one.val_loss:.3f}, Val took {one.val_seconds:.3f}s"]
        self._steps.append(one)
        if one.iteration % self._every and one.iteration != self._last:
            return []
        steps, self._steps = self._steps, []
        seconds = sum(step.seconds for step in steps)
        loss = sum(step.train_loss for step in steps) / len(steps)
        norms = [step.grad_norm for step in steps if step.grad_norm is not None]
        norm = f"Grad norm {max(norms):.3f}, " if norms else ""
        return [
            f"Iter {one.iteration}: Train loss {loss:.3f}, "
            f"Learning Rate {one.learning_rate:.3e}, {norm}"
            f"It/sec {len(steps) / seconds:.3f}, "
            f"Tokens/sec {sum(step.supervised_tokens for step in steps) / seconds:.3f}, "
            f"Trained Tokens {one.trained_tokens}, Peak mem {one.peak_memory:.3f} GB"
        ]
