"""The description of every module of an adapter, with its scale and the weight that it changes."""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from math import nan, sqrt

from mlxdoctor.engines.tensors import ModuleFacts, describe
from mlxdoctor.evidence.adapter import Adapter, LoraModule
from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.tensor import count_nonfinite
from mlxdoctor.measure.weights.lora_targets import matches
from mlxdoctor.safety.errors import InputError
from mlxdoctor.safety.reading_limits import current, exceeded


@lru_cache(maxsize=16)  # several checks ask for those of one adapter
def factor_facts(adapter: Adapter, *, spectrum: bool = False) -> tuple[ModuleFacts, ...]:
    """Every module of an adapter without a scale, in its order. Reads every factor.

    Raises:
        InputError: the file changed or cannot be read, or a rank is over the limit.
    """
    highest = max((module.rank for module in adapter.modules), default=0)
    if highest > current().rank:
        raise exceeded(None, f"a module has factors of rank {highest:,}", "rank")
    return tuple(
        describe(module.name, *module.factors(), layer=module.layer, spectrum=spectrum)
        for module in adapter.modules
    )


def adapter_facts(
    adapter: Adapter,
    config: TrainingConfig | None,
    base: BaseModel | None,
    *,
    spectrum: bool = False,
) -> tuple[ModuleFacts, ...]:
    """As `factor_facts`, with the configuration's scale and the norms of the base's weights."""
    described = factor_facts(adapter, spectrum=spectrum)
    return tuple(
        replace(facts, scale=module_scale(module, config), base_norm=base_norm(module.name, base))
        for module, facts in zip(adapter.modules, described, strict=True)
    )


def nonfinite_values(
    adapter: Adapter, described: Sequence[ModuleFacts] | None = None
) -> dict[str, int]:
    """How many values of each tensor are NaN or infinite; those without any are left out."""
    described = factor_facts(adapter) if described is None else described
    counts: dict[str, int] = {}
    for module, facts in zip(adapter.modules, described, strict=True):
        counts |= {module.a.name: facts.a.nonfinite, module.b.name: facts.b.nonfinite}
    for name, tensor in adapter.tensors.items():
        if name not in counts:
            counts[name] = count_nonfinite(tensor)
    return {name: count for name, count in counts.items() if count}


def module_scale(module: LoraModule, config: TrainingConfig | None) -> float:
    """What a module's A·B is multiplied by; NaN where nothing states it.

    PEFT's alpha is that of the first pattern that names the module, else the one for all.
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


def base_norm(module: str, base: BaseModel | None) -> float | None:
    """The norm of the weight that a module changes, read once; None where there is none to read."""
    if base is None or not base.shape(module):
        return None
    if module not in base.norms:
        try:
            base.norms[module] = base.weight_norm(module)
        except InputError:
            return None
    return base.norms[module]
