"""`mlxdoctor inspect`: an adapter as a table."""

from functools import partial
from pathlib import Path

import click

from mlxdoctor.cli import EXIT_CLEAN, EXIT_FOUND, options, output
from mlxdoctor.cli.progress import ProgressLine


@click.command(name="inspect")
@click.argument("adapters", nargs=-1, required=True, type=options.PATH)
@options.base_model("The base model's folder, for norms relative to its weights.")
@options.printed("text", "json", "markdown")
def command(*, adapters: tuple[Path, ...], base: Path | None, output_format: str) -> int:
    """Show every adapted module: rank, scale, norms, spectrum and a verdict.

    ADAPTERS are folders or files of mlx-lm or PEFT. Every value is read. The exit
    code is 1 where an adapter is certainly broken: NaN, a B of zeros, no factors.

    Two or more are shown one after the other.

    One folder or file of full weights is compared with --base, tensor by tensor:
    which were changed, bit for bit, and how far. The models may be quantised.

    \b
    Examples:
      mlxdoctor inspect adapters/
      mlxdoctor inspect adapters/ --base models/Llama-3.2-1B
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
            shown = [inspect_model(tuned, model, partial(progress, "comparing weights"))]
    else:
        shown = [inspect_adapter(path, model) for path in adapters]
    figures = {shown[0].kind: [inspection.figures for inspection in shown]}
    pages = [inspection.page(is_markdown=output_format == "markdown") for inspection in shown]
    output.show(figures, "\n\n".join(pages), output_format)
    is_faulty = any(inspection.figures["faulty"] for inspection in shown)
    return EXIT_FOUND if is_faulty else EXIT_CLEAN
