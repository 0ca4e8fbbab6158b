"""How far an adapter moves each module, against the weight that it moves."""

from __future__ import annotations

from dataclasses import dataclass
from math import nan, sqrt

from mlxdoctor.evidence.adapter import Adapter, LoraModule
from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.measure.weights.lora_targets import matches
from mlxdoctor.measure.weights.spectrum import ModuleStatistics, adapter_statistics
from mlxdoctor.safety.errors import InputError


@dataclass(frozen=True)
class ModuleDrift:
    """One module's update in figures.

    Attributes:
        module: the module.
        statistics: its factors' norms and spectrum at scale 1.
        scale: what A·B is multiplied by; NaN where nothing states it.
        base_norm: Frobenius norm of the base weight, None where there is none to read.
    """

    module: LoraModule
    statistics: ModuleStatistics
    scale: float
    base_norm: float | None

    @property
    def norm(self) -> float:
        """Frobenius norm of the update, NaN where the scale is unknown or a factor not finite."""
        return abs(self.scale) * self.statistics.frobenius

    @property
    def spectral(self) -> float:
        """Largest singular value of the update."""
        return abs(self.scale) * self.statistics.spectral

    @property
    def relative(self) -> float | None:
        """‖ΔW‖/‖W‖, None without the base weight."""
        return self.norm / self.base_norm if self.base_norm else None

    @property
    def nominal(self) -> float:
        """‖ΔW‖ over the norm that a weight of rms 1/sqrt(in) would have, sqrt(out).

        What stands in for `relative` where there is no base model. Trained matrices
        have between about a third and three times that norm.
        """
        experts = self.module.experts or 1
        rows = min(self.module.in_features, self.module.out_features)
        return self.norm / sqrt(rows * experts) if rows else 0.0


def module_drifts(
    adapter: Adapter,
    config: TrainingConfig | None,
    base: BaseModel | None,
    norms: dict[str, float | None] | None = None,
) -> tuple[ModuleDrift, ...]:
    """The drift of every module, in the adapter's order. Reads every factor.

    Args:
        adapter: the factors.
        config: states the scale.
        base: the weights that the updates are added to.
        norms: of base weights that were read already, by module; what is read is added.

    Raises:
        InputError: the adapter's file changed or cannot be read.
    """
    norms = {} if norms is None else norms
    for module in adapter.modules:
        if module.name not in norms:
            norms[module.name] = _norm(module, base)
    return tuple(
        ModuleDrift(module, statistics, module_scale(module, config), norms[module.name])
        for module, statistics in zip(adapter.modules, adapter_statistics(adapter), strict=True)
    )


def module_scale(module: LoraModule, config: TrainingConfig | None) -> float:
    """What a module's A·B is multiplied by; NaN where nothing states it.

    PEFT divides its alpha by the module's own rank. The alpha is that of the first pattern
    that names the module, else the one for all.
    """
    if config is None:
        return nan
    if config.origin != "peft" or config.alpha is None or not module.rank:
        return nan if config.scale is None else config.scale
    patterns = config.values.get("alpha_pattern")
    alpha = config.alpha
    if isinstance(patterns, dict):
        named = (value for key, value in patterns.items() if matches(key, module.name, config))
        if isinstance(value := next(named, None), int | float):
            alpha = float(value)
    return alpha / (sqrt(module.rank) if config.values.get("use_rslora") else module.rank)


def _norm(module: LoraModule, base: BaseModel | None) -> float | None:
    if base is None or base.module_for(module.name) is None:
        return None
    try:
        return base.weight_norm(module.name)
    except InputError:
        return None
