"""`mlxdoctor reproduce`: the failure made again, and the one change that cures it."""

from pathlib import Path
from typing import Any

import click

from mlxdoctor.cli import (
    EXIT_CLEAN,
    EXIT_FOUND,
    EXIT_INCONCLUSIVE,
    EXIT_INTERRUPTED,
    options,
    output,
)
from mlxdoctor.cli.progress import ProgressLine
from mlxdoctor.safety.atomic import refuse_inside


@click.command(
    name="reproduce",
    epilog="""\b
Exit codes: 0 nothing to reproduce, 1 a cause is confirmed, 2 unusable input or
options, 3 no cause could be confirmed, 130 stopped with Ctrl-C.""",
)
@click.argument("paths", nargs=-1, required=True, type=options.PATH, metavar="RUN...")
@options.base_model()
@options.data
@click.option(
    "--cause", "causes", multiple=True, metavar="ID", help="Try this cause as well. Repeatable."
)
@click.option(
    "--iters",
    "iterations",
    type=click.IntRange(1),
    help="Iterations of each rerun.  [default: past the onset]",
)
@click.option(
    "--seeds",
    type=click.IntRange(2),
    default=3,
    show_default=True,
    help="Seeds at most; two thirds of them have to agree.",
)
@click.option(
    "--budget",
    "minutes",
    type=click.FloatRange(0),
    metavar="MINUTES",
    help="Stop trying after this long.",
)
@options.reported
def command(
    *,
    paths: tuple[Path, ...],
    base: Path | None,
    data: Path | None,
    causes: tuple[str, ...],
    folder: Path,
    names: tuple[str, ...],
    printed: str | None,
    no_text: bool,
    **given: Any,
) -> int:
    """Rerun a failed run as recorded, shortened, and again with one thing changed.

    A cause is confirmed where its change cures the failure in two of three seeds, and
    neither the rerun as recorded nor an irrelevant change (another order of the rows)
    does. Where the fault lies in the run's own trainer, the reference trainer has to be
    sound without it, and to fail in the same way with it. Nothing is written into the run.

    \b
    Examples:
      mlxdoctor reproduce adapters/
      mlxdoctor reproduce adapters/ --cause scale-too-large --budget 10
    """
    inspected = [path for path in (*paths, base, data) if path is not None]
    refuse_inside(folder, inspected)

    from mlxdoctor.api import diagnose
    from mlxdoctor.formats.summary import slug
    from mlxdoctor.reproduce import reproduce

    with ProgressLine() as progress:
        report = diagnose(
            paths, base=base, data=data, replay=True, with_text=not no_text, progress=progress
        )
        if not report.diagnosis and not causes:
            click.echo(f"{report.name}: nothing to reproduce; no cause is suspected.")
            return EXIT_CLEAN
        work = folder / slug(report.name)
        refuse_inside(work, inspected)
        try:
            report = reproduce(report, work, causes=causes, **given)
        except KeyboardInterrupt:
            progress.clear()
            click.echo("Stopped. Nothing is kept of it.", err=True)
            return EXIT_INTERRUPTED
    output.deliver(report, names, folder, printed, inspected=inspected)
    confirmed = any(one.confirmation == "confirmed" for one in report.diagnosis)
    return EXIT_FOUND if confirmed else EXIT_INCONCLUSIVE
