"""`mlxdoctor train`: the reference trainer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mlxdoctor.cli import EXIT_CLEAN, EXIT_FOUND

if TYPE_CHECKING:
    from mlxdoctor.train import Settings, StepRecord, TrainingResult, ValidationRecord
    from mlxdoctor.train.plan import Plan

    Told = Plan | StepRecord | ValidationRecord


@click.command(name="train", short_help="Train as mlx_lm.lora does, and record every step.")
@click.option(
    "-c",
    "--config",
    type=click.Path(path_type=Path),
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
@click.option("--adapter-path", type=click.Path(path_type=Path), help="The folder to write.")
@click.option(
    "--resume",
    type=click.Path(path_type=Path),
    metavar="STATE",
    help="Continue from a state.safetensors, optimizer and random state included.",
)
@click.option("--allow-downloads", is_flag=True, help="Fetch a model or data set that is not here.")
@click.option("--trust-remote-code", is_flag=True, help="Run code that comes with the model.")
@click.option("--dry-run", is_flag=True, help="Print what would be done, and stop.")
def command(
    *,
    config: Path,
    parity: bool,
    overrides: tuple[str, ...],
    adapter_path: Path | None,
    resume: Path | None,
    allow_downloads: bool,
    trust_remote_code: bool,
    dry_run: bool,
) -> int:
    """Fine-tune a model with the settings of an mlx_lm.lora configuration.

    Writes what mlx-lm writes (adapters.safetensors, checkpoints, adapter_config.json),
    so that mlx-lm loads it, and metrics.jsonl with loss, rate, gradient norm, tokens,
    skipped batches, time and memory of every step. The table `mlxdoctor:` of the file
    takes what mlx-lm has no key for: mode, grad_clip, max_skipped, stop_on_divergence,
    patience, module_norms, save_state, resume_state. The exit code is 1 where the run
    diverged or too many batches were not finite.

    \b
    Examples:
      mlxdoctor train -c lora.yaml
      mlxdoctor train -c lora.yaml --set iters=50 --set mlxdoctor.grad_clip=1
      mlxdoctor train -c adapters/adapter_config.json --parity --adapter-path again/
      mlx.launch -n 2 -- mlxdoctor train -c lora.yaml
    """
    from mlxdoctor.train import Settings

    stated = [*overrides]
    if parity:
        stated.append("mlxdoctor.mode=parity")
    if adapter_path is not None:
        stated.append(f"adapter_path={adapter_path}")
    if resume is not None:
        stated.append(f"mlxdoctor.resume_state={resume}")
    if allow_downloads:
        stated.append("mlxdoctor.allow_downloads=true")
    settings = _with_trust(Settings.read(config, stated), trust_remote_code, allow_downloads)
    result = _train(settings, dry_run)
    is_clean = result.ending in {"finished", "no-improvement", "stopped"}
    return EXIT_CLEAN if is_clean else EXIT_FOUND


def _with_trust(settings: Settings, is_trusted: bool, may_download: bool) -> Settings:
    """A configuration may come with a run that is looked into: it alone allows nothing."""
    from mlxdoctor.safety.errors import InputError

    if settings.extras.allow_downloads and not may_download:
        raise InputError(
            None,
            "the configuration asks to fetch what is not here",
            "add --allow-downloads if that is wanted, or set allow_downloads to false",
        )
    if settings.trust_remote_code and not is_trusted:
        raise InputError(
            None,
            "the configuration asks to run code that comes with the model",
            "add --trust-remote-code if you trust it, or set trust_remote_code to false",
        )
    return replace(settings, trust_remote_code=is_trusted)


def _train(settings: Settings, dry_run: bool) -> TrainingResult:
    from mlxdoctor.train import train
    from mlxdoctor.train.loop import worker_here
    from mlxdoctor.train.plan import Plan

    leads, report = worker_here().rank == 0, _Report(settings)

    def tell(one: Told) -> str | None:
        is_plan = isinstance(one, Plan)
        lines = [*one.lines] if isinstance(one, Plan) else report.lines(one)
        if is_plan and not dry_run:
            lines.append(f"Starting training..., iters: {settings.iters}")
        if leads:
            for line in lines:
                click.echo(line)
        return "a dry run" if is_plan and dry_run else None

    result = train(settings, tell=tell)
    if leads and not dry_run:
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
        from mlxdoctor.train import ValidationRecord

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
        skipped = f", Skipped {one.skipped}" if one.skipped else ""
        return [
            f"Iter {one.iteration}: Train loss {loss:.3f}, "
            f"Learning Rate {one.learning_rate:.3e}, {norm}"
            f"It/sec {len(steps) / seconds:.3f}, "
            f"Tokens/sec {sum(step.supervised_tokens for step in steps) / seconds:.3f}, "
            f"Trained Tokens {one.trained_tokens}, Peak mem {one.peak_memory:.3f} GB{skipped}"
        ]
