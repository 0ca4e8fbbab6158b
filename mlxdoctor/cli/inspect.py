"""`mlxdoctor inspect`: an adapter as a table."""

from pathlib import Path

import click

from mlxdoctor.cli import EXIT_CLEAN, EXIT_FOUND, options, output


@click.command(name="inspect")
@click.argument("adapters", nargs=-1, required=True, type=options.PATH)
@options.base_model("The base model's folder, for norms relative to its weights.")
@options.printed("text", "json", "markdown")
def command(*, adapters: tuple[Path, ...], base: Path | None, printed: str) -> int:
    """Show every adapted module: rank, scale, norms, spectrum and a verdict.

    ADAPTERS are folders or files of mlx-lm or PEFT. Every value is read. The exit
    code is 1 where an adapter is certainly broken: NaN, a B of zeros, no factors.

    Two or more are shown one after the other.

    \b
    Examples:
      mlxdoctor inspect adapters/
      mlxdoctor inspect adapters/ --base models/Llama-3.2-1B
      mlxdoctor inspect french/ legal/
      mlxdoctor inspect adapters/ --stdout json | jq '.adapters[0].modules[].verdict'
    """
    from mlxdoctor.evidence.base_model import BaseModel
    from mlxdoctor.inspect.adapter import inspect_adapter, page

    model = BaseModel.read(base) if base is not None else None
    shown = [inspect_adapter(path, model) for path in adapters]
    pages = [page(figures, is_markdown=printed == "markdown") for figures in shown]
    output.show({"adapters": shown}, "\n\n".join(pages), printed)
    return EXIT_FOUND if any(figures["faulty"] for figures in shown) else EXIT_CLEAN
