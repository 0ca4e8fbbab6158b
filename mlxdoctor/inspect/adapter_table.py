"""An adapter as rows of figures, with a verdict for each module."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

from mlxdoctor.evidence.adapter import Adapter
from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.tensor import count_nonfinite
from mlxdoctor.measure.weights.drift import ModuleDrift, module_drifts
from mlxdoctor.measure.weights.fused import predicted_rounding

#: Verdicts that are certain faults of the adapter itself.
FAULTS = frozenset({"non-finite", "fresh: never trained", "zero B", "zero A"})


@dataclass(frozen=True)
class ModuleRow:
    """One adapted module in figures; norms are Frobenius norms.

    Attributes:
        module: its name in the base model.
        layer: its layer, None outside the layers.
        projection: its name within the layer.
        rank: of the factors.
        scale: what A·B is multiplied by, None where nothing states it.
        a_norm: of A, None where it is not finite; likewise the others.
        b_norm: of B.
        update_norm: of scale·A·B; of A·B alone where the scale is not known.
        spectral_norm: its largest singular value.
        stable_rank: its squared norm over the largest squared singular value.
        effective_rank: exp of the entropy of its singular values' shares.
        relative: update over base weight, None without a base.
        lost_at_4_bits: what rounding would be, over the update's norm, were the sum of base
            weight and update quantised to 4 bits in groups of 64; None without a base.
        lost_at_8_bits: the same for 8 bits.
        intruders: how many of the ten largest directions of base weight plus update are new
            (see `weights.intruders`); None where they were not asked for or cannot be computed.
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
    intruders: int | None
    nonfinite: int
    verdict: str


@dataclass(frozen=True)
class Inspection:
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


def inspect_adapter(
    path: Path, base: BaseModel | None = None, *, with_intruders: bool = False
) -> Inspection:
    """Read every value of an adapter.

    Args:
        path: the adapter's folder or file; the configuration is looked for beside it.
        base: the model it changes, for relative norms and for the verdicts on fit.
        with_intruders: count intruder dimensions too, which takes a decomposition of every
            base weight; needs the base.

    Raises:
        InputError: the adapter or its configuration cannot be used.
    """
    adapter = Adapter.read(path)
    config = TrainingConfig.beside(adapter.path)
    counts = _intruders(adapter, config, base) if with_intruders and base is not None else {}
    rows = tuple(
        _row(drift, base, counts.get(drift.module.name))
        for drift in module_drifts(adapter, config, base)
    )
    factors = {name for one in adapter.modules for name in (one.a.name, one.b.name)}
    rest = (one for name, one in adapter.tensors.items() if name not in factors)
    return Inspection(
        path=adapter.path,
        naming=adapter.naming,
        modules=rows,
        parameters=adapter.parameter_count,
        other_tensors=len(adapter.others),
        unpaired=len(adapter.unpaired) + len(adapter.mismatched) + len(adapter.not_float),
        nonfinite=sum(row.nonfinite for row in rows) + sum(map(count_nonfinite, rest)),
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


def _intruders(
    adapter: Adapter, config: TrainingConfig | None, base: BaseModel
) -> dict[str, int | None]:
    from mlxdoctor.measure.weights.intruders import module_intruders

    return {one.module: one.count for one in module_intruders(adapter, config, base)}


def _row(drift: ModuleDrift, base: BaseModel | None, intruders: int | None) -> ModuleRow:
    module, figures = drift.module, drift.statistics
    scale = drift.scale if isfinite(drift.scale) else None
    factor = 1.0 if scale is None else scale
    return ModuleRow(
        module=module.name,
        layer=module.layer,
        projection=module.projection,
        rank=module.rank,
        scale=scale,
        a_norm=_finite(figures.a_norm),
        b_norm=_finite(figures.b_norm),
        update_norm=_finite(factor * figures.frobenius),
        spectral_norm=_finite(factor * figures.spectral),
        stable_rank=_finite(figures.stable_rank),
        effective_rank=_finite(figures.effective_rank),
        relative=_finite(drift.relative),
        lost_at_4_bits=_lost(drift, base, 4),
        lost_at_8_bits=_lost(drift, base, 8),
        intruders=intruders,
        nonfinite=figures.a_nonfinite + figures.b_nonfinite,
        verdict=_verdict(drift, base),
    )


def _lost(drift: ModuleDrift, base: BaseModel | None, bits: int) -> float | None:
    if drift.relative is None or base is None or not drift.norm:
        return None
    rounding = predicted_rounding(base, drift.module.name, bits)
    return None if rounding is None else _finite(rounding / drift.norm)


def _finite(value: float | None) -> float | None:
    return value if value is not None and isfinite(value) else None


def _verdict(drift: ModuleDrift, base: BaseModel | None) -> str:
    module, figures = drift.module, drift.statistics
    if not figures.is_finite:
        return "non-finite"
    if figures.b_is_zero:
        return "fresh: never trained" if figures.a_is_initial else "zero B"
    if figures.a_is_zero:
        return "zero A"
    if base is not None:
        shape = base.linear_shapes.get(module.name)
        if shape is None:
            return "not in the base"
        if shape != (module.in_features, module.out_features):
            return "does not fit the base"
    if drift.relative is not None and drift.relative > 1:
        return "larger than its weight"
    return "ok"
