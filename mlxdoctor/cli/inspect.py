"""`mlxdoctor inspect`: an adapter as a table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mlxdoctor.cli import EXIT_CLEAN, EXIT_FOUND
from mlxdoctor.report import escape

if TYPE_CHECKING:
    from mlxdoctor.inspection import Inspection, ModuleRow

#: `--sort` -> the attribute of a row; figures sort from the largest down.
SORTS = {
    "layer": "layer",
    "update": "update_norm",
    "spectral": "spectral_norm",
    "stable-rank": "stable_rank",
    "relative": "relative",
}


@click.command(name="inspect", short_help="Show an adapter as a table.")
@click.argument("adapters", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--base",
    type=click.Path(path_type=Path),
    help="The base model's folder, for norms relative to its weights.",
)
@click.option(
    "--sort",
    type=click.Choice(list(SORTS)),
    default="layer",
    show_default=True,
    help="The order of the rows: by layer, or the largest figure first.",
)
@click.option(
    "--format",
    "table_format",
    type=click.Choice(["table", "json", "markdown"]),
    default="table",
    show_default=True,
    help="How to print the table.",
)
def command(adapters: tuple[Path, ...], base: Path | None, sort: str, table_format: str) -> int:
    """Show every adapted module: rank, scale, norms, spectrum and a verdict.

    ADAPTERS are folders or files of mlx-lm or PEFT. Every value is read. The exit
    code is 1 where an adapter is certainly broken: NaN, a B of zeros, no factors.

    \b
    Examples:
      mlxdoctor inspect adapters/
      mlxdoctor inspect adapters/ --base models/Llama-3.2-1B --sort relative
      mlxdoctor inspect adapters/ --format json | jq '.[0].modules[].verdict'
    """
    from mlxdoctor.inspection import inspect_adapter

    model = None
    if base is not None:
        from mlxdoctor.evidence.base_model import BaseModel

        model = BaseModel.read(base)
    found = [inspect_adapter(path, model) for path in adapters]
    if table_format == "json":
        import json

        click.echo(json.dumps([_object(one, sort) for one in found], indent=2, allow_nan=False))
    else:
        click.echo("\n\n".join(_text(one, sort, table_format) for one in found))
    return EXIT_FOUND if any(one.is_faulty for one in found) else EXIT_CLEAN


inspect = command


def _sorted(rows: tuple[ModuleRow, ...], sort: str) -> list[ModuleRow]:
    if sort == "layer":
        return list(rows)

    def descending(row: ModuleRow) -> tuple[bool, float]:
        value = getattr(row, SORTS[sort])
        return value is None, -(value or 0.0)

    return sorted(rows, key=descending)


def _object(one: Inspection, sort: str) -> dict[str, Any]:
    from dataclasses import asdict

    return {
        **asdict(one),
        "path": str(one.path),
        "modules": [asdict(row) for row in _sorted(one.modules, sort)],
        "faulty": one.is_faulty,
    }


def _text(one: Inspection, sort: str, table_format: str) -> str:
    from tabulate import tabulate

    is_markdown = table_format == "markdown"
    clean = escape.markdown if is_markdown else escape.terminal
    with_base = any(row.relative is not None for row in one.modules)
    update = "‖ΔW‖" if all(row.scale is not None for row in one.modules) else "‖A·B‖"
    headers = ["layer", "module", "rank", "scale", "‖A‖", "‖B‖", update, "σ1", "stable rank"]
    headers += ["‖ΔW‖/‖W‖"] if with_base else []
    cells = [
        [
            "" if row.layer is None else row.layer,
            clean(row.projection),
            row.rank,
            *map(
                _figure,
                (
                    row.scale,
                    row.a_norm,
                    row.b_norm,
                    row.update_norm,
                    row.spectral_norm,
                    row.stable_rank,
                    *((row.relative,) if with_base else ()),
                ),
            ),
            row.verdict,
        ]
        for row in _sorted(one.modules, sort)
    ]
    lines = [clean(line) for line in _summary(one)]
    if not cells:
        return "\n".join(lines)
    style = "pipe" if is_markdown else "simple"
    table = tabulate(
        cells, [*headers, "verdict"], tablefmt=style, disable_numparse=True, colalign=_align(cells)
    )
    return "\n".join([*lines, "", table])


def _align(cells: list[list[Any]]) -> list[str]:
    return ["right", "left", *["right"] * (len(cells[0]) - 3), "left"]


def _figure(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"


def _summary(one: Inspection) -> list[str]:
    parts = [
        f"{len(one.modules)} modules",
        f"{one.parameters:,} parameters",
        "/".join(one.dtypes) or "no tensors",
        f"{one.file_bytes / 1e6:,.1f} MB",
        f"{one.naming} names",
    ]
    lines = [str(one.path), ", ".join(parts)]
    if one.configuration:
        facts = (f"{name} {value}" for name, value in one.configuration.items())
        lines.append(f"configuration: {', '.join(facts)}")
    if one.nonfinite:
        lines.append(f"{one.nonfinite:,} values are NaN or infinite")
    if one.other_tensors:
        lines.append(f"{one.other_tensors} tensors are no LoRA factors")
    if one.unpaired:
        lines.append(f"{one.unpaired} factors or pairs are incomplete")
    if not one.modules:
        lines.append("there is no complete pair of LoRA factors")
    return lines
