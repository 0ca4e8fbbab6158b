"""`mlxdoctor inspect`: an adapter as a table."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import click

from mlxdoctor.cli import EXIT_CLEAN, EXIT_FOUND, options
from mlxdoctor.cli.progress import ProgressLine
from mlxdoctor.inspect.page import SORTS


@click.command(name="inspect")
@click.argument("adapters", nargs=-1, required=True, type=options.PATH)
@options.base_model("The base model's folder, for norms relative to its weights.")
@click.option(
    "--sort",
    type=click.Choice(list(SORTS)),
    default="layer",
    show_default=True,
    help="The order of the rows: by layer, or the largest figure first.",
)
@options.printed("text", "json", "markdown")
def command(
    *,
    adapters: tuple[Path, ...],
    base: Path | None,
    sort: str,
    output_format: str,
) -> int:
    """Show every adapted module: rank, scale, norms, spectrum and a verdict.

    ADAPTERS are folders or files of mlx-lm or PEFT. Every value is read. The exit
    code is 1 where an adapter is certainly broken: NaN, a B of zeros, no factors.

    Two or more are shown one after the other.

    One folder or file of full weights is compared with --base, tensor by tensor:
    which were changed, bit for bit, and how far. The models may be quantised.

    \b
    Examples:
      mlxdoctor inspect adapters/
      mlxdoctor inspect adapters/ --base models/Llama-3.2-1B --sort relative
      mlxdoctor inspect french/ legal/
      mlxdoctor inspect fused_model/ --base models/Llama-3.2-1B
      mlxdoctor inspect adapters/ --format json | jq '.adapters[0].modules[].verdict'
    """
    from mlxdoctor.evidence.base_model import BaseModel
    from mlxdoctor.inspect.adapter import inspect_adapter
    from mlxdoctor.inspect.model import full_weights, inspect_model

    model = BaseModel.read(base) if base is not None else None
    tuned = full_weights(adapters[0], model) if len(adapters) == 1 else None
    if tuned is not None and model is not None:
        with ProgressLine() as progress:
            compared = partial(progress, "comparing weights")
            found = [inspect_model(tuned, model, compared, sort)]
    else:
        found = [inspect_adapter(path, model, sort) for path in adapters]
    if output_format == "json":
        objects = {found[0].kind: [one.figures for one in found]}
        click.echo(json.dumps(objects, indent=2, allow_nan=False))
    else:
        is_markdown = output_format == "markdown"
        click.echo("\n\n".join(one.page(is_markdown=is_markdown) for one in found))
    return EXIT_FOUND if any(one.is_faulty for one in found) else EXIT_CLEAN
