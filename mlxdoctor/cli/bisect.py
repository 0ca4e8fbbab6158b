"""`mlxdoctor bisect`: which saved checkpoint is the last good one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from mlxdoctor.cli import EXIT_CLEAN, EXIT_FOUND, EXIT_INCONCLUSIVE, output
from mlxdoctor.cli.progress import ProgressLine

if TYPE_CHECKING:
    from mlxdoctor.bisect.result import Bisection

_PATH = click.Path(path_type=Path)
#: The files that `-o` writes, for each format the report, and the picture.
_REPORTS = {"text": "bisect.txt", "markdown": "bisect.md", "json": "bisect.json"}
_PICTURE = "heat_map.svg"


@click.command(
    name="bisect",
    short_help="Find the last good checkpoint.",
    epilog="""\b
Exit codes: 0 the newest checkpoint is good, 1 it is not, 2 unusable input, 3 nothing
here can tell a good checkpoint from a broken one.""",
)
@click.argument("run", type=_PATH)
@click.option("--model", type=_PATH, help="Folder of the base model, if the run does not name it.")
@click.option(
    "--no-generate", is_flag=True, help="Run no model: judge by the files and the log alone."
)
@click.option(
    "--format",
    "report_format",
    type=click.Choice(list(_REPORTS)),
    default="text",
    show_default=True,
    help="How to print the answer.",
)
@click.option(
    "-o",
    "--output",
    "folder",
    type=_PATH,
    help=f"Also write it into this folder, with {_PICTURE}, the sizes of all updates over time.",
)
def command(
    run: Path, model: Path | None, no_generate: bool, report_format: str, folder: Path | None
) -> int:
    """Find the last good checkpoint of a run, and say when and how it broke.

    RUN is the folder with the numbered checkpoints. Every value of every file is
    read: NaN, a B of zeros, updates that outgrow the weights, and saves made after
    the log's loss blew up. Where the base model and the data are at hand, about
    log2(n) of n checkpoints are loaded and their answers measured.

    \b
    Examples:
      mlxdoctor bisect adapters/
      mlxdoctor bisect adapters/ --model models/Llama-3.2-1B -o reports/bisect
      mlxdoctor bisect adapters/ --format json | jq -r .last_good
    """
    if folder is not None:
        output.refuse_inside(folder, [run, *([model] if model is not None else [])])

    from mlxdoctor.bisect.result import Limits, bisect
    from mlxdoctor.run import Run

    with ProgressLine() as progress:
        found = bisect(
            Run.discover([run], base=model, allow_model=not no_generate, progress=progress),
            Limits(),
            progress,
        )
    text = _rendered(found, report_format)
    click.echo(text, nl=False)
    if folder is not None:
        from mlxdoctor.bisect.heat_map import heat_map, svg

        files = {_REPORTS[report_format]: text.encode()}
        data = heat_map(found.followed, [one.value != "good" for one in found.standings])
        if data is not None:
            files[_PICTURE] = svg(data)
        output.write_files(folder, files, stale=(_PICTURE,))
    if not found.is_decided:
        return EXIT_INCONCLUSIVE
    return EXIT_CLEAN if found.newest_is_good else EXIT_FOUND


def _rendered(found: Bisection, report_format: str) -> str:
    from mlxdoctor.bisect import answer

    if report_format == "json":
        import json

        return json.dumps(answer.as_object(found), indent=2, allow_nan=False) + "\n"
    return answer.render(found, is_markdown=report_format == "markdown")
