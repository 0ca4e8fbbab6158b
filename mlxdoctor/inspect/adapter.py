"""An adapter as a page: a summary, and a row of figures and a verdict for each module."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlxdoctor.engines.tensors import ModuleFacts
from mlxdoctor.evidence.adapter import Adapter, LoraModule
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.inspect.page import Column, Page, figure, in_order, layer_number, share
from mlxdoctor.measure.weights.adapter_facts import adapter_facts, nonfinite_values

if TYPE_CHECKING:
    from mlxdoctor.evidence.base_model import BaseModel

#: Verdicts that are certain faults of the adapter itself.
FAULTS = frozenset({"non-finite", "fresh: never trained", "zero B", "zero A"})


@dataclass(frozen=True)
class ModuleRow:
    """One adapted module in figures; norms are Frobenius norms, None where they are not finite.

    Attributes:
        module: its name in the base model.
        layer: its layer, None outside the layers.
        projection: its name within the layer.
        rank: of the factors.
        scale: what A·B is multiplied by, None where nothing states it.
        a_norm: of A.
        b_norm: of B.
        update_norm: of scale·A·B; of A·B alone where the scale is not known.
        spectral_norm: its largest singular value.
        stable_rank: its squared norm over the largest squared singular value.
        effective_rank: exp of the entropy of its singular values' shares.
        relative: update over base weight, None without a base.
        lost_at_4_bits: what rounding would be, over the update's norm, were the sum of base
            weight and update quantised to 4 bits in groups of 64; None without a base.
        lost_at_8_bits: the same for 8 bits.
        nonfinite: NaN or infinite values in both factors.
        verdict: "ok" or what is wrong.
    """

    module: str
    layer: int | None
    projection: str
    rank: int
    scale: float | None
    a_norm: float | None
    b_norm: float | None
    update_norm: float | None
    spectral_norm: float | None
    stable_rank: float | None
    effective_rank: float | None
    relative: float | None
    lost_at_4_bits: float | None
    lost_at_8_bits: float | None
    nonfinite: int
    verdict: str


@dataclass(frozen=True)
class AdapterInspection:
    """An adapter in figures.

    Attributes:
        path: the file of weights.
        naming: "mlx-lm" or "peft".
        modules: a row for each adapted module.
        parameters: numbers in the file.
        other_tensors: tensors that are no LoRA factors.
        unpaired: factors without their partner, and pairs that cannot be multiplied or are no
            floating-point numbers.
        nonfinite: NaN or infinite values in the whole file.
        dtypes: types of the stored numbers.
        file_bytes: size of the file.
        configuration: what the file beside it says, by name.
        holds_adapter: there are LoRA factors, or the configuration says there need not be.
    """

    path: Path
    naming: str
    modules: tuple[ModuleRow, ...]
    parameters: int
    other_tensors: int
    unpaired: int
    nonfinite: int
    dtypes: tuple[str, ...]
    file_bytes: int
    configuration: dict[str, Any]
    holds_adapter: bool

    @property
    def is_faulty(self) -> bool:
        """Whether something is certainly wrong with the adapter itself."""
        return (
            not self.holds_adapter
            or self.nonfinite > 0
            or self.unpaired > 0
            or any(row.verdict in FAULTS for row in self.modules)
        )


def inspect_adapter(path: Path, base: BaseModel | None = None) -> AdapterInspection:
    """Read every value of an adapter.

    Args:
        path: the adapter's folder or file; the configuration is looked for beside it.
        base: the model it changes, for relative norms and for the verdicts on fit.

    Raises:
        InputError: the adapter or its configuration cannot be used.
    """
    adapter = Adapter.read(path)
    config = TrainingConfig.beside(adapter.path)
    facts = adapter_facts(adapter, config, base)
    rows = tuple(
        _row(module, module_facts, base)
        for module, module_facts in zip(adapter.modules, facts, strict=True)
    )
    return AdapterInspection(
        path=adapter.path,
        naming=adapter.naming,
        modules=rows,
        parameters=adapter.parameter_count,
        other_tensors=len(adapter.others),
        unpaired=len(adapter.unpaired) + len(adapter.mismatched) + len(adapter.not_float),
        nonfinite=sum(nonfinite_values(adapter).values()),
        dtypes=adapter.dtypes,
        file_bytes=adapter.file_bytes,
        configuration=_stated(config),
        holds_adapter=bool(rows) or (config is not None and config.fine_tune_type == "full"),
    )


def _stated(config: TrainingConfig | None) -> dict[str, Any]:
    if config is None:
        return {}
    facts = {
        "type": config.fine_tune_type,
        "rank": config.rank,
        "scale": config.scale,
        "learning_rate": config.learning_rate,
        "iters": config.iters,
        "model": config.model,
    }
    return {name: value for name, value in facts.items() if value is not None}


def _row(module: LoraModule, facts: ModuleFacts, base: BaseModel | None) -> ModuleRow:
    scale = facts.scale if isfinite(facts.scale) else None
    factor = 1.0 if scale is None else abs(scale)
    return ModuleRow(
        module=module.name,
        layer=module.layer,
        projection=module.projection,
        rank=module.rank,
        scale=scale,
        a_norm=_finite(facts.a.norm),
        b_norm=_finite(facts.b.norm),
        update_norm=_finite(factor * facts.product_norm),
        spectral_norm=_finite(factor * facts.spectral_norm),
        stable_rank=_finite(facts.stable_rank),
        effective_rank=_finite(facts.effective_rank),
        relative=_finite(facts.relative),
        lost_at_4_bits=_lost(facts, base, 4),
        lost_at_8_bits=_lost(facts, base, 8),
        nonfinite=facts.a.nonfinite + facts.b.nonfinite,
        verdict=_verdict(module, facts, base),
    )


def _lost(facts: ModuleFacts, base: BaseModel | None, bits: int) -> float | None:
    from mlxdoctor.measure.weights.fused import predicted_rounding

    if facts.relative is None or base is None or not facts.update_norm:
        return None
    rounding = predicted_rounding(base, facts.name, bits)
    return None if rounding is None else _finite(rounding / facts.update_norm)


def _finite(value: float | None) -> float | None:
    return value if value is not None and isfinite(value) else None


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
    return "ok"


def adapter_object(inspection: AdapterInspection, sort: str) -> dict[str, Any]:
    """The adapter for JSON."""
    return {
        **asdict(inspection),
        "path": str(inspection.path),
        "modules": [asdict(row) for row in in_order(inspection.modules, sort)],
        "faulty": inspection.is_faulty,
    }


def adapter_page(inspection: AdapterInspection, sort: str, page: Page) -> str:
    """The adapter's summary, and a row for each module."""
    rows = in_order(inspection.modules, sort)
    lines = [page.clean(line) for line in _summary(inspection)]
    if any(row.lost_at_4_bits is not None for row in rows):
        lines.append("at 4 bits, at 8 bits: what rounding would be, over the update, once fused")
    return "\n".join([*lines, "", page.table(_columns(rows, page))] if rows else lines)


def _columns(rows: Sequence[ModuleRow], page: Page) -> list[Column]:
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
    if any(row.relative is not None for row in rows):
        columns += [
            Column("‖ΔW‖/‖W‖", [figure(row.relative) for row in rows]),
            Column("at 4 bits", [share(row.lost_at_4_bits) for row in rows]),
            Column("at 8 bits", [share(row.lost_at_8_bits) for row in rows]),
        ]
    return [*columns, Column("verdict", [row.verdict for row in rows], "left")]


def _summary(inspection: AdapterInspection) -> list[str]:
    parts = [
        f"{len(inspection.modules)} modules",
        f"{inspection.parameters:,} parameters",
        "/".join(inspection.dtypes) or "no tensors",
        f"{inspection.file_bytes / 1e6:,.1f} MB",
        f"{inspection.naming} names",
    ]
    lines = [str(inspection.path), ", ".join(parts)]
    if inspection.configuration:
        facts = (f"{name} {value}" for name, value in inspection.configuration.items())
        lines.append(f"configuration: {', '.join(facts)}")
    if inspection.nonfinite:
        lines.append(f"{inspection.nonfinite:,} values are NaN or infinite")
    if inspection.other_tensors:
        lines.append(f"{inspection.other_tensors} tensors are no LoRA factors")
    if inspection.unpaired:
        lines.append(f"{inspection.unpaired} factors or pairs are incomplete or of no use")
    if not inspection.modules:
        lines.append("there is no complete pair of LoRA factors")
    return lines
