"""`mlxdoctor diagnose`: why a fine-tune failed."""

from pathlib import Path
from typing import Any

import click

from mlxdoctor.cli import options, output
from mlxdoctor.cli.progress import ProgressLine
from mlxdoctor.evidence.options import Options
from mlxdoctor.formats.summary import headline, lowered, slug
from mlxdoctor.safety.atomic import refuse_inside
from mlxdoctor.safety.stages import Kind, Stage
from mlxdoctor.safety.time_budget import DEFAULT_SECONDS


def _codes(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(code.strip() for value in values for code in value.split(",") if code.strip())


@click.command(
    name="diagnose",
    epilog="""\b
Exit codes: 0 nothing at or above --fail-on, 1 such a finding, 2 unusable input
or options (a file that can't be read included), 3 too little to judge by.""",
)
@click.argument("paths", nargs=-1, required=True, type=options.PATH, metavar="PATH...")
@options.base_model()
@click.option("--adapter", type=options.PATH, help="Adapter folder or file, if it lies elsewhere.")
@click.option(
    "--log",
    type=options.PATH,
    multiple=True,
    help="Training log, if it lies elsewhere. Repeatable.",
)
@options.data
@click.option(
    "--generations",
    type=options.PATH,
    help="Recorded outputs: JSONL with prompt and tuned (and base).",
)
@options.no_generate
@click.option(
    "--replay/--no-replay",
    default=None,
    help="Compute again what the log recorded, and train a few steps, which takes up to as long "
    "as the rest. Default: where the cause is not clear without it.",
)
@click.option(
    "--budget",
    type=click.FloatRange(min=0, min_open=True),
    default=DEFAULT_SECONDS,
    show_default=True,
    metavar="SECONDS",
    help="The time that it may take, most of it for the models: they get fewer rows and prompts. "
    "Training again what was recorded may take as long again.",
)
@click.option(
    "--confirm", is_flag=True, help="Also rerun it to confirm the cause, as `reproduce` does."
)
@click.option(
    "--score",
    metavar="FILE:FUNCTION",
    help="Your own score of an output, a function of (prompt, output, expected). "
    "This runs code from FILE.",
)
@click.option(
    "--trainer",
    metavar="FILE:FUNCTION",
    help="Your own trainer's model, loss and batch, as `mlxdoctor probe` takes them. "
    "This runs code from FILE.",
)
@click.option(
    "--select", multiple=True, callback=_codes, metavar="CODE", help="Only these checks or codes."
)
@click.option(
    "--ignore",
    multiple=True,
    callback=_codes,
    metavar="CODE",
    help="All but these checks or codes.",
)
@options.reported
@options.fails_on()
def command(  # noqa: PLR0917 - click passes every option by name
    paths: tuple[Path, ...],
    no_generate: bool,
    no_text: bool,
    replay: bool | None,
    confirm: bool,
    names: tuple[str, ...],
    folder: Path,
    printed: str | None,
    fail_on: str,
    **given: Any,
) -> int:
    """Find out why a fine-tune failed, and write a report.

    PATH is the folder a run wrote (adapter, configuration, log), or one of its
    files: a log alone is enough for a first answer. Base model and data are
    looked up where the configuration names them.

    \b
    Examples:
      mlxdoctor diagnose adapters/
      mlxdoctor diagnose train.log
      mlxdoctor diagnose adapters/ --base models/llama --data data/
      mlxdoctor diagnose adapters/ --format html --no-text
      mlxdoctor diagnose adapters/ --stdout json | jq -r '.diagnosis[0].cause'

    The verdict is printed, and the report written to reports/<run>/report.md.
    Nothing is written into the folders that are inspected.
    """
    what = Options(allow_model=not no_generate, replay=replay, with_text=not no_text, **given)
    inspected = [*paths, *what.paths.values()]
    if printed is None:
        refuse_inside(folder, inspected)

    from mlxdoctor.api import diagnose

    # Training again what was recorded may take as long again.
    most = None if confirm else (1 if no_generate or replay is False else 2) * given["budget"]
    with ProgressLine(most=most) as progress:
        with Stage(f"examining {paths[0]}", Kind.ITEM):
            report = diagnose(
                paths,
                what,
                progress=progress,
                files_first=lambda report: progress.say(
                    f"from the files alone: {lowered(headline(report))}; the models are being asked"
                ),
            )
        if confirm:
            from mlxdoctor.reproduce import reproduce

            work = folder / slug(report.name)
            refuse_inside(work, inspected)
            report = reproduce(report, work)
    output.deliver(report, names, folder, printed, inspected=inspected)
    return output.exit_code(report, fail_on)
