"""`mlxdoctor inspect`: an adapter as a table."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mlxdoctor.cli import EXIT_CLEAN, EXIT_FOUND, options
from mlxdoctor.cli.progress import ProgressLine
from mlxdoctor.inspect.page import SORTS, Page
from mlxdoctor.safety.errors import InputError

if TYPE_CHECKING:
    from mlxdoctor.evidence.base_model import BaseModel
    from mlxdoctor.evidence.tuned_model import TunedModel


@click.command(name="inspect", short_help="Show an adapter as a table.")
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
    model = None
    if base is not None:
        from mlxdoctor.evidence.base_model import BaseModel

        model = BaseModel.read(base)
    if len(adapters) == 1 and (model is not None or (adapters[0] / "config.json").is_file()):
        from mlxdoctor.inspect.model import full_weights

        tuned = full_weights(adapters[0], model)
        if tuned is not None and model is not None:
            return _model(tuned, model, sort, output_format)
    return _adapters(adapters, model, sort, output_format)


def _adapters(paths: Sequence[Path], base: BaseModel | None, sort: str, output_format: str) -> int:
    from mlxdoctor.inspect.adapter import adapter_object, adapter_page, inspect_adapter

    adapters = [inspect_adapter(path, base) for path in paths]
    page = Page(output_format == "markdown")
    if output_format == "json":
        _echo_json({"adapters": [adapter_object(one, sort) for one in adapters]})
    else:
        click.echo("\n\n".join(adapter_page(one, sort, page) for one in adapters))
    return EXIT_FOUND if any(one.is_faulty for one in adapters) else EXIT_CLEAN


def _model(tuned: TunedModel, base: BaseModel, sort: str, output_format: str) -> int:
    from mlxdoctor.inspect.model import inspect_model, model_object, model_page

    if sort not in ("layer", "relative"):
        raise InputError(None, f"--sort {sort} is for adapters", "a model has layer and relative")
    with ProgressLine() as progress:
        found = inspect_model(tuned, base, partial(progress, "comparing weights"))
    if output_format == "json":
        _echo_json({"models": [model_object(found, sort)]})
    else:
        click.echo(model_page(found, sort, Page(output_format == "markdown")))
    return EXIT_FOUND if found.is_faulty else EXIT_CLEAN


def _echo_json(result: dict[str, Any]) -> None:
    click.echo(json.dumps(result, indent=2, allow_nan=False))
