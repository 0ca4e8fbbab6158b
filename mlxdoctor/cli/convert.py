"""`mlxdoctor convert`: an adapter from PEFT's format to mlx-lm's and back."""

from pathlib import Path

import click

from mlxdoctor.cli import EXIT_CLEAN, options
from mlxdoctor.formats.escape import terminal
from mlxdoctor.safety.atomic import refuse_inside, write_files
from mlxdoctor.safety.errors import InputError


@click.command(name="convert")
@click.argument("adapter", type=options.PATH)
@options.output_folder("The folder to write. By default ./NAME-mlx or ./NAME-peft.", None)
@click.option(
    "--base",
    "--model",
    "model",
    help="The base model, a folder or a hub name, instead of the one that the adapter names.",
)
def command(adapter: Path, folder: Path | None, model: str | None) -> int:
    """Turn an adapter of PEFT into one of mlx-lm, or back, with no number rounded.

    ADAPTER is a folder with an adapter_config.json. What the other library has no place
    for is refused with the reason and exit code 2. Neither library is needed, and nothing
    is written into ADAPTER. Where the base model is on this machine, names and shapes are
    compared with it.

    \b
    Examples:
      mlxdoctor convert adapters/
      mlxdoctor convert adapters/ --base meta-llama/Llama-3.2-1B -o for-peft/
      mlxdoctor convert peft-adapter/ -o adapters/
    """
    from mlxdoctor.convert.conversion import convert

    converted = convert(adapter, model)
    target = folder or Path(f"{converted.source.resolve().name}-{converted.target}")
    refuse_inside(target, filter(None, (converted.source, converted.base)))
    if target.exists() and not target.is_dir():
        raise InputError(target, "is not a folder", "name another with --output")
    if target.is_dir() and any(target.iterdir()):
        raise InputError(target, "is not empty", "name another folder with --output")
    written = write_files(target, converted.files)
    fit = f", names and shapes as in {converted.base}" if converted.base is not None else ""
    click.echo(terminal(f"{converted.summary}{fit}"))
    for note in converted.notes:
        click.echo(f"note: {terminal(note)}")
    size = sum(map(len, converted.files.values()))
    names = " and ".join(path.name for path in written)
    click.echo(f"wrote {names} ({size / 1e6:,.1f} MB) to {terminal(str(target))}")
    return EXIT_CLEAN
