"""`mlxdoctor bisect`: which saved checkpoint is the last good one, and which the best."""

from pathlib import Path

import click

from mlxdoctor.cli import EXIT_CLEAN, EXIT_FOUND, EXIT_INCONCLUSIVE, options, output
from mlxdoctor.cli.progress import ProgressLine


@click.command(
    name="bisect",
    epilog="""\b
Exit codes: 0 the newest checkpoint is good, 1 it is not, 2 unusable input, 3 nothing
here can tell a good checkpoint from a broken one.""",
)
@click.argument("run", type=options.PATH)
@options.base_model()
@options.no_generate
@options.printed("text", "markdown", "json")
def command(*, run: Path, base: Path | None, no_generate: bool, printed: str) -> int:
    """Find the last good checkpoint of a run and the best, and say when and how it broke.

    RUN is the folder with the numbered checkpoints. Every value of every file is
    read: NaN, a B of zeros, updates that outgrow the weights, and saves made after
    the log's loss blew up. Where the base model and the data are at hand, the loss of
    each checkpoint is measured on the validation rows: the lowest is the best.

    \b
    Examples:
      mlxdoctor bisect adapters/
      mlxdoctor bisect adapters/ --base models/Llama-3.2-1B --stdout markdown > bisect.md
      mlxdoctor bisect adapters/ --stdout json | jq -r .best.file
    """
    from mlxdoctor.bisect import answer
    from mlxdoctor.bisect.table import bisect
    from mlxdoctor.run import Run

    with ProgressLine() as progress:
        evidence = Run.discover([run], base=base, allow_model=not no_generate, progress=progress)
        table = bisect(evidence)
    text = answer.render(table, is_markdown=printed == "markdown")
    output.show(answer.as_object(table), text, printed)
    if not table.is_decided:
        return EXIT_INCONCLUSIVE
    return EXIT_CLEAN if table.newest_is_good else EXIT_FOUND
