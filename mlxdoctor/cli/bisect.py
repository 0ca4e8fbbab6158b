"""`mlxdoctor bisect`: which saved checkpoint is the last good one, and which the best."""

from __future__ import annotations

import json
from pathlib import Path

import click

from mlxdoctor.cli import EXIT_CLEAN, EXIT_FOUND, EXIT_INCONCLUSIVE, options, output
from mlxdoctor.cli.progress import ProgressLine

#: The report that `-o` writes, by format.
_REPORTS = {"text": "bisect.txt", "markdown": "bisect.md", "json": "bisect.json"}
_PICTURE = "heat_map.png"


@click.command(
    name="bisect",
    epilog="""\b
Exit codes: 0 the newest checkpoint is good, 1 it is not, 2 unusable input, 3 nothing
here can tell a good checkpoint from a broken one.""",
)
@click.argument("run", type=options.PATH)
@options.base_model()
@options.no_generate
@options.printed(*_REPORTS)
@click.option(
    "-o",
    "--output",
    "folder",
    type=options.PATH,
    help=f"Also write it into this folder, with {_PICTURE}, the sizes of all updates over time.",
)
def command(
    *,
    run: Path,
    base: Path | None,
    no_generate: bool,
    output_format: str,
    folder: Path | None,
) -> int:
    """Find the last good checkpoint of a run and the best, and say when and how it broke.

    RUN is the folder with the numbered checkpoints. Every value of every file is
    read: NaN, a B of zeros, updates that outgrow the weights, and saves made after
    the log's loss blew up. Where the base model and the data are at hand, the loss of
    each checkpoint is measured on the validation rows: the lowest is the best. Its
    answers to prompts are looked at for collapse. Without models, the best is where
    the log's validation loss was lowest.

    \b
    Examples:
      mlxdoctor bisect adapters/
      mlxdoctor bisect adapters/ --base models/Llama-3.2-1B -o reports/bisect
      mlxdoctor bisect adapters/ --format json | jq -r .best.file
    """
    if folder is not None:
        output.refuse_inside(folder, [run, *([base] if base is not None else [])])

    from mlxdoctor.bisect import answer
    from mlxdoctor.bisect.table import bisect
    from mlxdoctor.run import Run

    with ProgressLine() as progress:
        evidence = Run.discover([run], base=base, allow_model=not no_generate, progress=progress)
        table = bisect(evidence, progress)
    if output_format == "json":
        text = json.dumps(answer.as_object(table), indent=2, allow_nan=False) + "\n"
    else:
        text = answer.render(table, is_markdown=output_format == "markdown")
    click.echo(text, nl=False)
    if folder is not None:
        from mlxdoctor.formats.figures import png
        from mlxdoctor.measure.weights.save_norms import heat_map

        files = {_REPORTS[output_format]: text.encode()}
        picture = heat_map(
            [row.save for row in table.rows], [not row.is_good for row in table.rows]
        )
        if picture is not None:
            files[_PICTURE] = png("checkpoints", picture)
        output.write_files(folder, files, stale=(_PICTURE,))
    if not table.is_decided:
        return EXIT_INCONCLUSIVE
    return EXIT_CLEAN if table.newest_is_good else EXIT_FOUND
