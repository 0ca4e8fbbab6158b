"""`mlxdoctor inspect MODEL --base BASE`: what a full fine-tune or a fused model changed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mlxdoctor.cli import EXIT_CLEAN, EXIT_FOUND
from mlxdoctor.cli.output import figure
from mlxdoctor.cli.progress import ProgressLine
from mlxdoctor.formats import escape
from mlxdoctor.safety.errors import InputError

if TYPE_CHECKING:
    from mlxdoctor.evidence.base_model import BaseModel
    from mlxdoctor.evidence.tuned_model import TunedModel
    from mlxdoctor.inspect.model_table import ModelInspection, TensorRow


def full_weights(path: Path, base: BaseModel | None) -> TunedModel | None:
    """The whole model at the path, to be compared with its base; None where an adapter is.

    Raises:
        InputError: there is a whole model and no base.
    """
    from mlxdoctor.inspect.model_table import model_at

    if base is None and not (path / "config.json").is_file():
        return None
    tuned = model_at(path)
    if tuned is not None and base is None:
        raise InputError(path, "is a whole model", "name the base to compare it with by --base")
    return tuned


def show(tuned: TunedModel, base: BaseModel, sort: str, table_format: str) -> int:
    """Print the drift of every tensor, and return the exit code.

    Raises:
        InputError: a model cannot be read, or there is no such order of its tensors.
    """
    from mlxdoctor.inspect.model_table import inspect_model, summarised

    if sort not in ("layer", "relative"):
        raise InputError(None, f"--sort {sort} is for adapters", "a model has layer and relative")
    with ProgressLine() as progress:
        rows = []
        for row in inspect_model(tuned, base):
            rows.append(row)
            progress("comparing weights", len(rows), len(tuned.tensors))
    found = summarised(tuned, base, tuple(rows))
    if table_format == "json":
        import json

        result = {
            **asdict(found),
            "path": str(found.path),
            "base": str(found.base),
            "tensors": [asdict(row) for row in _sorted(found.tensors, sort)],
            "faulty": found.is_faulty,
        }
        click.echo(json.dumps({"models": [result]}, indent=2, allow_nan=False))
    else:
        click.echo(_text(found, sort, table_format))
    return EXIT_FOUND if found.is_faulty else EXIT_CLEAN


def _sorted(rows: tuple[TensorRow, ...], sort: str) -> Sequence[TensorRow]:
    if sort == "layer":
        return rows
    return sorted(rows, key=lambda row: (row.relative is None, -(row.relative or 0.0)))


def _text(found: ModelInspection, sort: str, table_format: str) -> str:
    from tabulate import tabulate

    is_markdown = table_format == "markdown"
    clean = escape.markdown if is_markdown else escape.terminal
    style = "pipe" if is_markdown else "simple"
    components = [
        [
            one.component,
            f"{one.changed} of {one.tensors}",
            figure(one.median_relative),
            figure(one.largest_relative),
        ]
        for one in found.components
    ]
    tensors = [
        [
            "" if row.layer is None else row.layer,
            clean(row.tensor),
            " x ".join(map(str, row.shape)),
            clean(_stored(row)),
            row.status,
            figure(row.relative),
            *([row.nonfinite or ""] if found.nonfinite else []),
        ]
        for row in _sorted(found.tensors, sort)
    ]
    headers = ["layer", "tensor", "shape", "stored as", "status", "‖W'−W‖/‖W‖"]
    align = ["right", "left", "right", "left", "left", "right"]
    if found.nonfinite:
        headers, align = [*headers, "NaN or infinite"], [*align, "right"]
    return "\n".join(
        [
            *_summary(found, clean),
            "",
            tabulate(
                components,
                ["component", "changed", "median ‖W'−W‖/‖W‖", "largest"],
                tablefmt=style,
                disable_numparse=True,
                colalign=("left", "right", "right", "right"),
            ),
            "",
            tabulate(tensors, headers, tablefmt=style, disable_numparse=True, colalign=align),
        ]
    )


def _summary(found: ModelInspection, clean: Callable[[str], str]) -> list[str]:
    counts = Counter(row.status for row in found.tensors)
    listed = ", ".join(f"{count} {status}" for status, count in counts.most_common())
    lines = [clean(str(found.path)), clean(f"against {found.base}"), f"tensors: {listed}"]
    if found.nonfinite:
        lines.append(f"{found.nonfinite:,} values are NaN or infinite")
    if found.stated_type in ("lora", "dora"):
        lines.append(
            f"the configuration beside it says {found.stated_type}, but these are full weights"
        )
    return lines


def _stored(row: TensorRow) -> str:
    if row.base_stored is None or row.stored is None or row.base_stored == row.stored:
        return row.stored or row.base_stored or ""
    return f"{row.base_stored} -> {row.stored}"
