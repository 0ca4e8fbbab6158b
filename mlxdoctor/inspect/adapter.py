"""An adapter in figures: a summary, and a row of figures and a verdict for each module."""

from collections.abc import Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import Any

from tabulate import tabulate

from mlxdoctor.engines.tensors import ModuleFacts
from mlxdoctor.evidence.adapter import Adapter, LoraModule
from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.formats import escape
from mlxdoctor.formats.strict_json import finite
from mlxdoctor.measure.weights.adapter_facts import adapter_facts, nonfinite_values

#: Verdicts that are certain faults of the adapter itself.
FAULTS = frozenset({"non-finite", "fresh: never trained", "zero B", "zero A"})
#: Cells that are words, at the left of their columns.
_WORDS = frozenset({"projection", "verdict"})

#: Figures by their names in JSON; those that are not finite are None.
Row = Mapping[str, Any]


def inspect_adapter(path: Path, base: BaseModel | None = None) -> Row:
    """Read every value of an adapter; the base is for relative norms and the verdicts on fit."""
    adapter = Adapter.read(path)
    config = TrainingConfig.beside(adapter.path)
    facts = adapter_facts(adapter, config, base, spectrum=True)
    rows = [_row(*pair, base) for pair in zip(adapter.modules, facts, strict=True)]
    # Factors without their partner, and pairs that can't be multiplied or are no floats.
    unpaired = len(adapter.unpaired) + len(adapter.mismatched) + len(adapter.not_float)
    nonfinite = sum(nonfinite_values(adapter, facts).values())
    names = ("fine_tune_type", "rank", "scale", "learning_rate", "iters", "model")
    stated = {name: getattr(config, name, None) for name in names}
    holds_adapter = bool(rows) or (config is not None and config.fine_tune_type == "full")
    is_broken = any(row["verdict"] in FAULTS for row in rows)
    return {
        "path": str(adapter.path),
        "naming": adapter.naming,
        "modules": rows,
        "parameters": adapter.parameter_count,
        "other_tensors": len(adapter.others),
        "unpaired": unpaired,
        "nonfinite": nonfinite,
        "dtypes": adapter.dtypes,
        "file_bytes": adapter.path.stat().st_size,
        "configuration": {name: value for name, value in stated.items() if value is not None},
        "holds_adapter": holds_adapter,
        "faulty": not holds_adapter or nonfinite > 0 or unpaired > 0 or is_broken,
    }


def page(figures: Row, *, is_markdown: bool) -> str:
    """Lines for a terminal, or Markdown; what an artifact wrote can do no harm in either."""
    clean = escape.markdown if is_markdown else escape.terminal
    rows = figures["modules"]
    columns = _columns(rows)
    table = tabulate(
        [[clean(_cell(row[key])) for key in columns] for row in rows],
        [*columns.values()],
        tablefmt="pipe" if is_markdown else "simple",
        colalign=["left" if key in _WORDS else "right" for key in columns],
        disable_numparse=True,
    )
    return "\n".join([*map(clean, _summary(figures)), *(["", table] if rows else [])])


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _row(module: LoraModule, facts: ModuleFacts, base: BaseModel | None) -> Row:
    """One adapted module."""
    # Norms are Frobenius norms. `update_norm` is of scale·A·B, and of A·B alone where nothing
    # states the scale; `spectral_norm` is its largest singular value, `stable_rank` its squared
    # norm over that value's square, and `relative` its norm over the base weight's.
    scale = facts.scale if isfinite(facts.scale) else None
    factor = 1.0 if scale is None else abs(scale)
    largest = facts.spectral_norm
    return {
        "module": module.name,
        "layer": module.layer,
        "projection": module.projection,
        "rank": module.rank,
        "scale": scale,
        "a_norm": finite(facts.a.norm),
        "b_norm": finite(facts.b.norm),
        "update_norm": finite(factor * facts.product_norm),
        "spectral_norm": finite(factor * largest),
        "stable_rank": finite((facts.product_norm / largest) ** 2 if largest else 0.0),
        "relative": finite(facts.relative),
        "nonfinite": facts.a.nonfinite + facts.b.nonfinite,
        "verdict": _verdict(module, facts, base),
    }


def _verdict(module: LoraModule, facts: ModuleFacts, base: BaseModel | None) -> str:
    if not facts.is_finite:
        return "non-finite"
    if facts.b.is_zero:
        return "fresh: never trained" if facts.a_is_drawn else "zero B"
    if facts.a.is_zero:
        return "zero A"
    if base is not None:
        shape = base.linear_shapes.get(module.name)
        if shape is None:
            return "not in the base"
        if shape != (module.in_features, module.out_features):
            return "does not fit the base"
    if facts.relative is not None and facts.relative > 1:
        return "larger than its weight"
    # Without the weights that it is added to, no size of an update is too large.
    return "finite" if facts.relative is None else "ok"


def _columns(rows: Sequence[Row]) -> dict[str, str]:
    """Keys of a module's figures, with the headers of their columns."""
    is_scaled = all(row["scale"] is not None for row in rows)
    is_beside_the_base = any(row["relative"] is not None for row in rows)
    return {
        "layer": "layer",
        "projection": "module",
        "rank": "rank",
        "scale": "scale",
        "a_norm": "‖A‖",
        "b_norm": "‖B‖",
        "update_norm": "‖ΔW‖" if is_scaled else "‖A·B‖",
        "spectral_norm": "σ1",
        "stable_rank": "stable rank",
        **({"relative": "‖ΔW‖/‖W‖"} if is_beside_the_base else {}),
        "verdict": "verdict",
    }


def _summary(figures: Row) -> list[str]:
    rows = figures["modules"]
    parts = [
        f"{len(rows)} modules",
        f"{figures['parameters']:,} parameters",
        "/".join(figures["dtypes"]) or "no tensors",
        f"{figures['file_bytes'] / 1e6:,.1f} MB",
        f"{figures['naming']} names",
    ]
    stated = (f"{name} {value}" for name, value in figures["configuration"].items())
    lines = {
        figures["path"]: True,
        ", ".join(parts): True,
        f"configuration: {', '.join(stated)}": figures["configuration"],
        f"{figures['nonfinite']:,} values are NaN or infinite": figures["nonfinite"],
        f"{figures['other_tensors']} tensors are no LoRA factors": figures["other_tensors"],
        f"{figures['unpaired']} factors or pairs are incomplete or of no use": figures["unpaired"],
        "there is no complete pair of LoRA factors": not rows,
        "not judged without the base's weights (--base): whether updates are too large": any(
            row["verdict"] == "finite" for row in rows
        ),
    }
    return [line for line, is_told in lines.items() if is_told]
