"""`mlxdoctor inspect`: an adapter as a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mlxdoctor.cli import EXIT_CLEAN, EXIT_FOUND, options
from mlxdoctor.cli.output import figure
from mlxdoctor.formats import escape
from mlxdoctor.safety.errors import InputError

if TYPE_CHECKING:
    from mlxdoctor.inspect.adapter_table import Inspection, ModuleRow
    from mlxdoctor.measure.weights.combining import Combination

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
@options.base_model("The base model's folder, for norms relative to its weights.")
@click.option(
    "--sort",
    type=click.Choice(list(SORTS)),
    default="layer",
    show_default=True,
    help="The order of the rows: by layer, or the largest figure first.",
)
@click.option(
    "--intruders",
    "with_intruders",
    is_flag=True,
    help="Count new large directions (intruder dimensions) in every weight; needs --base.",
)
@options.printed("text", "json", "markdown")
def command(
    *,
    adapters: tuple[Path, ...],
    base: Path | None,
    sort: str,
    with_intruders: bool,
    output_format: str,
) -> int:
    """Show every adapted module: rank, scale, norms, spectrum and a verdict.

    ADAPTERS are folders or files of mlx-lm or PEFT. Every value is read. The exit
    code is 1 where an adapter is certainly broken: NaN, a B of zeros, no factors.

    Two or more are shown side by side, with the norms that adding up their updates
    or averaging them would give, and how far off averaging A and B themselves is.

    One folder or file of full weights is compared with --base, tensor by tensor:
    which were changed, bit for bit, and how far. The models may be quantised.

    \b
    Examples:
      mlxdoctor inspect adapters/
      mlxdoctor inspect adapters/ --base models/Llama-3.2-1B --sort relative
      mlxdoctor inspect adapters/ --base models/Llama-3.2-1B --intruders
      mlxdoctor inspect french/ legal/
      mlxdoctor inspect fused_model/ --base models/Llama-3.2-1B
      mlxdoctor inspect adapters/ --format json | jq '.adapters[0].modules[].verdict'
    """
    from mlxdoctor.inspect.adapter_table import inspect_adapter

    if with_intruders and (base is None or len(adapters) != 1):
        raise InputError(None, "--intruders needs one adapter and its base", "add --base")
    model = None
    if base is not None:
        from mlxdoctor.evidence.base_model import BaseModel

        model = BaseModel.read(base)
    if len(adapters) == 1:
        from mlxdoctor.cli.inspect_model import full_weights, show

        tuned = full_weights(adapters[0], model)
        if tuned is not None and model is not None:
            if with_intruders:
                raise InputError(adapters[0], "is a whole model", "--intruders is for adapters")
            return show(tuned, model, sort, output_format)
    found = [inspect_adapter(path, model, with_intruders=with_intruders) for path in adapters]
    together = None
    if len(found) > 1:
        from mlxdoctor.measure.weights.combining import combine

        together = combine(adapters)
    if output_format == "json":
        import json

        result = {
            "adapters": [_object(one, sort) for one in found],
            "together": None if together is None else [asdict(one) for one in together],
        }
        click.echo(json.dumps(result, indent=2, allow_nan=False))
    elif together is None:
        click.echo(_text(found[0], sort, output_format))
    else:
        click.echo(_side_by_side(found, together, output_format))
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
    return {
        **asdict(one),
        "path": str(one.path),
        "modules": [asdict(row) for row in _sorted(one.modules, sort)],
        "faulty": one.is_faulty,
    }


def _text(one: Inspection, sort: str, output_format: str) -> str:
    from tabulate import tabulate

    is_markdown = output_format == "markdown"
    clean = escape.markdown if is_markdown else escape.terminal
    with_base = any(row.relative is not None for row in one.modules)
    update = "‖ΔW‖" if all(row.scale is not None for row in one.modules) else "‖A·B‖"
    headers = ["layer", "module", "rank", "scale", "‖A‖", "‖B‖", update, "σ1", "stable rank"]
    headers += ["‖ΔW‖/‖W‖", "at 4 bits", "at 8 bits"] if with_base else []
    with_intruders = any(row.intruders is not None for row in one.modules)
    headers += ["intruders"] if with_intruders else []
    cells = [
        [
            "" if row.layer is None else row.layer,
            clean(row.projection),
            row.rank,
            *map(
                figure,
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
            *(map(_share, (row.lost_at_4_bits, row.lost_at_8_bits)) if with_base else ()),
            *((figure(row.intruders),) if with_intruders else ()),
            row.verdict,
        ]
        for row in _sorted(one.modules, sort)
    ]
    lines = [clean(line) for line in _summary(one)]
    if any(row.lost_at_4_bits is not None for row in one.modules):
        lines.append("at 4 bits, at 8 bits: what rounding would be, over the update, once fused")
    if with_intruders:
        lines.append("intruders: of the weight's ten largest directions with the update, new ones")
    if not cells:
        return "\n".join(lines)
    style = "pipe" if is_markdown else "simple"
    table = tabulate(
        cells, [*headers, "verdict"], tablefmt=style, disable_numparse=True, colalign=_align(cells)
    )
    return "\n".join([*lines, "", table])


def _side_by_side(
    found: Sequence[Inspection], together: Sequence[Combination], output_format: str
) -> str:
    """The adapters' summaries, numbered, and one row for each module that any of them changes."""
    from tabulate import tabulate

    is_markdown = output_format == "markdown"
    clean = escape.markdown if is_markdown else escape.terminal
    lines = []
    for number, one in enumerate(found, start=1):
        lines += [
            f"[{number}] {clean(line)}" if not i else f"    {clean(line)}"
            for i, line in enumerate(_summary(one))
        ]
        faults = Counter(row.verdict for row in one.modules if row.verdict != "ok")
        if faults:
            lines.append("    " + clean(", ".join(f"{n} {what}" for what, n in faults.items())))
    headers = ["module", *(f"‖ΔW‖ [{number}]" for number in range(1, len(found) + 1))]
    headers += ["cosine", "‖sum‖", "‖mean‖", "A, B averaged: off by"]
    cells = [
        [
            clean(one.module),
            *map(figure, (*one.norms, one.cosine, one.stacked, one.averaged)),
            "–" if one.factor_error is None else f"{one.factor_error:.0%}",
        ]
        for one in together
    ]
    if cells:
        style = "pipe" if is_markdown else "simple"
        align = ["left", *["right"] * (len(headers) - 1)]
        lines += [
            "",
            tabulate(cells, headers, tablefmt=style, disable_numparse=True, colalign=align),
        ]
    return "\n".join(lines)


def _align(cells: list[list[Any]]) -> list[str]:
    return ["right", "left", *["right"] * (len(cells[0]) - 3), "left"]


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.0%}" if value < 10 else f"{value:.0f} x"


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
