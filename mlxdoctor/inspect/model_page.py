"""A fully fine-tuned or fused model as a page: what it changed of its base."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from typing import Any

from mlxdoctor.inspect.model_table import ModelInspection, TensorRow
from mlxdoctor.inspect.page import Column, Page, figure, in_order, layer_number


def model_object(found: ModelInspection, sort: str) -> dict[str, Any]:
    """The model for JSON."""
    return {
        **asdict(found),
        "path": str(found.path),
        "base": str(found.base),
        "tensors": [asdict(row) for row in in_order(found.tensors, sort)],
        "faulty": found.is_faulty,
    }


def model_page(found: ModelInspection, sort: str, page: Page) -> str:
    """The model's summary, its parts, and a row for each tensor."""
    parts, rows = found.components, in_order(found.tensors, sort)
    components = [
        Column("component", [one.component for one in parts], "left"),
        Column("changed", [f"{one.changed} of {one.tensors}" for one in parts]),
        Column("median ‖W'−W‖/‖W‖", [figure(one.median_relative) for one in parts]),
        Column("largest", [figure(one.largest_relative) for one in parts]),
    ]
    tensors = [
        Column("layer", [layer_number(row.layer) for row in rows]),
        Column("tensor", [page.clean(row.tensor) for row in rows], "left"),
        Column("shape", [" x ".join(map(str, row.shape)) for row in rows]),
        Column("stored as", [page.clean(_stored(row)) for row in rows], "left"),
        Column("status", [row.status for row in rows], "left"),
        Column("‖W'−W‖/‖W‖", [figure(row.relative) for row in rows]),
    ]
    if found.nonfinite:
        tensors.append(Column("NaN or infinite", [row.nonfinite or "" for row in rows]))
    return "\n".join([*_summary(found, page), "", page.table(components), "", page.table(tensors)])


def _summary(found: ModelInspection, page: Page) -> list[str]:
    counts = Counter(row.status for row in found.tensors)
    listed = ", ".join(f"{count} {status}" for status, count in counts.most_common())
    lines = [page.clean(str(found.path)), page.clean(f"against {found.base}"), f"tensors: {listed}"]
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
