"""Adapters as a page: one with a row for each module, or several side by side."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from mlxdoctor.inspect.adapter_table import Inspection
from mlxdoctor.inspect.page import Column, Page, figure, in_order, layer_number, share
from mlxdoctor.measure.weights.combining import Combination


def adapter_object(one: Inspection, sort: str) -> dict[str, Any]:
    """The adapter for JSON."""
    return {
        **asdict(one),
        "path": str(one.path),
        "modules": [asdict(row) for row in in_order(one.modules, sort)],
        "faulty": one.is_faulty,
    }


def adapter_page(one: Inspection, sort: str, page: Page) -> str:
    """The adapter's summary, and a row for each module."""
    rows = in_order(one.modules, sort)
    with_base = any(row.relative is not None for row in rows)
    with_intruders = any(row.intruders is not None for row in rows)
    lines = [page.clean(line) for line in _summary(one)]
    if any(row.lost_at_4_bits is not None for row in rows):
        lines.append("at 4 bits, at 8 bits: what rounding would be, over the update, once fused")
    if with_intruders:
        lines.append("intruders: of the weight's ten largest directions with the update, new ones")
    if not rows:
        return "\n".join(lines)
    update = "‖ΔW‖" if all(row.scale is not None for row in rows) else "‖A·B‖"
    columns = [
        Column("layer", [layer_number(row.layer) for row in rows]),
        Column("module", [page.clean(row.projection) for row in rows], "left"),
        Column("rank", [row.rank for row in rows]),
        Column("scale", [figure(row.scale) for row in rows]),
        Column("‖A‖", [figure(row.a_norm) for row in rows]),
        Column("‖B‖", [figure(row.b_norm) for row in rows]),
        Column(update, [figure(row.update_norm) for row in rows]),
        Column("σ1", [figure(row.spectral_norm) for row in rows]),
        Column("stable rank", [figure(row.stable_rank) for row in rows]),
    ]
    if with_base:
        columns += [
            Column("‖ΔW‖/‖W‖", [figure(row.relative) for row in rows]),
            Column("at 4 bits", [share(row.lost_at_4_bits) for row in rows]),
            Column("at 8 bits", [share(row.lost_at_8_bits) for row in rows]),
        ]
    if with_intruders:
        columns.append(Column("intruders", [figure(row.intruders) for row in rows]))
    columns.append(Column("verdict", [row.verdict for row in rows], "left"))
    return "\n".join([*lines, "", page.table(columns)])


def side_by_side(found: Sequence[Inspection], together: Sequence[Combination], page: Page) -> str:
    """The adapters' summaries, numbered, and one row for each module that any of them changes."""
    lines = []
    for number, one in enumerate(found, start=1):
        faults = Counter(row.verdict for row in one.modules if row.verdict != "ok")
        listed = ", ".join(f"{count} {what}" for what, count in faults.items())
        first, *others = [*_summary(one), *([listed] if listed else [])]
        lines += [f"[{number}] {page.clean(first)}", *(f"    {page.clean(x)}" for x in others)]
    if together:
        norms = zip(*(one.norms for one in together), strict=True)
        errors = [one.factor_error for one in together]
        columns = [
            Column("module", [page.clean(one.module) for one in together], "left"),
            *(Column(f"‖ΔW‖ [{n}]", [*map(figure, x)]) for n, x in enumerate(norms, start=1)),
            Column("cosine", [figure(one.cosine) for one in together]),
            Column("‖sum‖", [figure(one.stacked) for one in together]),
            Column("‖mean‖", [figure(one.averaged) for one in together]),
            Column("A, B averaged: off by", ["–" if x is None else f"{x:.0%}" for x in errors]),
        ]
        lines += ["", page.table(columns)]
    return "\n".join(lines)


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
        lines.append(f"{one.unpaired} factors or pairs are incomplete or of no use")
    if not one.modules:
        lines.append("there is no complete pair of LoRA factors")
    return lines
