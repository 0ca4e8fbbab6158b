"""`mlxdoctor preflight`: would this run fail, before it is made?"""

from pathlib import Path
from typing import Any

import click

from mlxdoctor.cli import options, output
from mlxdoctor.cli.progress import ProgressLine
from mlxdoctor.evidence.mlx_lm_defaults import MLX_LM_DEFAULTS
from mlxdoctor.safety.atomic import refuse_inside, write_files

#: The keys of `mlx_lm.lora` that are its options as well -> a value of their type.
_KEYS: dict[str, Any] = {
    **MLX_LM_DEFAULTS,
    "model": "",
    "data": "",
    "adapter_path": "",
    "resume_adapter_file": "",
    "grad_checkpoint": False,
    "train": False,
    "test": False,
    "test_batches": 1,
}
#: Those that the help shows; it names the others in a sentence.
_SHOWN = {
    "model": "Folder of the base model, if it is not where the file says.",
    "data": "Folder with train.jsonl and valid.jsonl, likewise.",
}


def _as_mlx_lm(command: Any) -> Any:
    """The command with the options of `mlx_lm.lora`, which go before the file's keys."""
    for key, value in reversed(_KEYS.items()):
        kind = {"is_flag": True} if isinstance(value, bool) else {"type": type(value)}
        names = ["--base"] * (key == "model") + [f"--{key.replace('_', '-')}", key]
        text = _SHOWN.get(key, "")
        command = click.option(*names, default=None, help=text, hidden=not text, **kind)(command)
    return command


@click.command(
    name="preflight",
    epilog="""\b
Exit codes: 0 ready (or ready, but: 1 with --fail-on warning), 1 not ready,
2 unusable input or options, 3 unknown: too little is here to tell.""",
)
@click.argument("config", required=False, type=options.PATH, metavar="[CONFIG]")
@click.option(
    "-c", "--config", "named", type=options.PATH, help="As CONFIG, as mlx_lm.lora has it."
)
@click.option(
    "--write",
    "fixed",
    type=options.PATH,
    metavar="FILE",
    help="Write the configuration with all advised changes; comments stay.",
)
@click.option(
    "--steps",
    is_flag=True,
    help="Make a few dozen updates too, on the model and its rows: which rate, and whether a step "
    "does what it should.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(min=1),
    default=120.0,
    show_default=True,
    help="About the time that --steps may take.",
)
@click.option(
    "--elsewhere",
    is_flag=True,
    help="The run will be made on another machine: don't look at this one's memory.",
)
@click.option(
    "--memory",
    type=click.FloatRange(min=0, min_open=True),
    metavar="GB",
    help="The memory of the machine that will train.",
)
@_as_mlx_lm
@options.reported
@options.fails_on()
def command(  # noqa: PLR0917 - click passes every option by name
    config: Path | None,
    named: Path | None,
    fixed: Path | None,
    steps: bool,
    seconds: float,
    elsewhere: bool,
    memory: float | None,
    names: tuple[str, ...],
    folder: Path,
    printed: str | None,
    no_text: bool,
    fail_on: str,
    **keys: Any,
) -> int:
    """See whether a run would fail, before it is made.

    CONFIG is what `mlx_lm.lora --config` takes, YAML or JSON, or an
    adapter_config.json. Base model and data are looked up where it says. All
    options of mlx_lm.lora that set one of its keys are taken too, such as
    --learning-rate, --batch-size or --num-layers: they go before the file's
    keys, and do without a file.

    \b
    Examples:
      mlxdoctor preflight lora.yaml
      mlxdoctor preflight lora.yaml --write fixed.yaml
      mlxdoctor preflight lora.yaml --steps
      mlxdoctor preflight --model models/llama --data data/ --learning-rate 1e-4
    """
    from mlxdoctor.evidence.config import TrainingConfig
    from mlxdoctor.preflight import preflight
    from mlxdoctor.preflight.configuration import changed_text

    if config is not None and named is not None:
        raise click.UsageError("name the configuration once")
    with ProgressLine() as progress:
        report = preflight(
            config or named,
            options=keys,
            steps=steps,
            seconds=seconds,
            elsewhere=elsewhere,
            memory=None if memory is None else round(memory * 1e9),
            with_text=not no_text,
            progress=progress,
        )
    files = report.run.files
    inspected = [path for path in (files.base, files.data) if path]
    written = []
    if fixed is not None:
        plan = report.run.need(TrainingConfig)
        refuse_inside(fixed.parent, inspected)
        text = changed_text(plan, report.fix.after if report.fix is not None else {})
        written += write_files(fixed.parent, {fixed.name: text.encode()})
    output.deliver(report, names, folder, printed, inspected=inspected, written=written)
    return output.exit_code(report, fail_on)
