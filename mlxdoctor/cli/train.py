"""`mlxdoctor train`: the reference trainer."""

from pathlib import Path

import click

from mlxdoctor.cli import EXIT_CLEAN, EXIT_FOUND, options
from mlxdoctor.template import fill
from mlxdoctor.twin import Settings, StepRecord, ValidationRecord, train
from mlxdoctor.twin.records import Plan
from mlxdoctor.watch.alarms import Alarm
from mlxdoctor.watch.monitor import LogRow, Watch


@click.command(name="train")
@click.option(
    "-c",
    "--config",
    type=options.PATH,
    required=True,
    help="A configuration of mlx_lm.lora: YAML, JSON or an adapter_config.json.",
)
@click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="Change a setting of the file; mlxdoctor.KEY for one of the table `mlxdoctor`.",
)
def command(*, config: Path, overrides: tuple[str, ...]) -> int:
    """Fine-tune a model with the settings of an mlx_lm.lora configuration.

    Writes what mlx-lm writes (adapters.safetensors, checkpoints, adapter_config.json),
    so that mlx-lm loads it, and metrics.jsonl with loss, rate, gradient norm, tokens,
    time and memory of every step. The table `mlxdoctor:` of the file takes what mlx-lm
    has no key for: grad_clip, and mode, which is "exact" or "parity": batches, mask and
    means exactly as mlx_lm.lora has them, faults included. At an alarm of `mlxdoctor
    watch` the run is stopped (not with parity), and the exit code is 1.

    \b
    Examples:
      mlxdoctor train -c lora.yaml
      mlxdoctor train -c lora.yaml --set iters=50 --set mlxdoctor.grad_clip=1
      mlxdoctor train -c lora.yaml --set mlxdoctor.mode=parity --set adapter_path=again
    """
    settings = Settings.read(config, overrides)
    watch = Watch(settings.iters)
    unreported: list[StepRecord] = []
    alarm: Alarm | None = None

    def tell(told: Plan | StepRecord | ValidationRecord) -> str | None:
        nonlocal alarm
        if isinstance(told, tuple):
            for line in (*told, f"Starting training..., iters: {settings.iters}"):
                click.echo(line)
            return None
        row = _report(told, unreported, settings)
        if row is not None:
            click.echo(_line(row))
            if settings.is_exact:
                alarm = alarm or watch.see(row)
        return None if alarm is None else f"{alarm.verdict.value}: {alarm.message}"

    result = train(settings, tell=tell)
    if result.test_loss is not None:
        click.echo(f"Test loss {result.test_loss:.3f}")
    click.echo(f"Saved final weights to {result.adapter_path / 'adapters.safetensors'}.")
    if result.stopped is not None:
        click.echo(f"Ended early, {result.stopped}", err=True)
    return EXIT_CLEAN if alarm is None else EXIT_FOUND


def _report(
    told: StepRecord | ValidationRecord, steps: list[StepRecord], settings: Settings
) -> LogRow | None:
    """The report due after a validation, or after a step: of all `steps` since the last one."""
    if isinstance(told, ValidationRecord):
        return LogRow(told.iteration, {"val_loss": told.val_loss, "val_seconds": told.val_seconds})
    steps.append(told)
    if told.iteration % settings.steps_per_report and told.iteration != settings.iters:
        return None
    seconds = sum(step.seconds for step in steps)
    norms = [step.grad_norm for step in steps if step.grad_norm is not None]
    values = {
        "train_loss": sum(step.train_loss for step in steps) / len(steps),
        "learning_rate": told.learning_rate,
        **({"grad_norm": max(norms)} if norms else {}),
        "iterations_per_second": len(steps) / seconds,
        "tokens_per_second": sum(step.supervised_tokens for step in steps) / seconds,
        "trained_tokens": told.trained_tokens,
        "peak_memory_gb": told.peak_memory,
    }
    steps.clear()
    return LogRow(told.iteration, values)


def _line(row: LogRow) -> str:
    """The classic line of mlx-lm."""
    form = (
        "Val loss {val_loss:.3f}, Val took {val_seconds:.3f}s"
        if "val_loss" in row.values
        else "Train loss {train_loss:.3f}, Learning Rate {learning_rate:.3e}, "
        "[Grad norm {grad_norm:.3f}, ]It/sec {iterations_per_second:.3f}, "
        "Tokens/sec {tokens_per_second:.3f}, Trained Tokens {trained_tokens}, "
        "Peak mem {peak_memory_gb:.3f} GB"
    )
    return fill(f"Iter {max(row.step, 1)}: {form}", row.values)
