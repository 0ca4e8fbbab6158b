"""The parameters of a model in memory: how many are trained and frozen, and what an adapter's are.

Imports MLX.
"""

import re
from collections import Counter
from typing import Any

from mlx import nn
from mlx.utils import tree_flatten

from mlxdoctor.evidence.adapter import ADAPTER_LEAVES

_LAYER = re.compile(r"\.\d+\.")


def count_parameters(model: Any) -> tuple[dict[str, int], dict[str, int]]:
    """Trainable and frozen parameters by component, the same module of all layers together.

    Quantized ones are counted unpacked.
    """
    # The base class's: an override may say anything.
    trained = {name for name, _ in tree_flatten(nn.Module.trainable_parameters(model))}
    bits = {
        name: module.bits
        for name, module in model.named_modules()
        if hasattr(module, "bits") and hasattr(module, "scales")
    }
    counts: tuple[Counter[str], Counter[str]] = (Counter(), Counter())
    for name, one in tree_flatten(nn.Module.parameters(model)):
        owner, _, leaf = name.rpartition(".")
        if owner in bits and leaf in {"scales", "biases"}:
            continue
        size = one.size * 32 // bits[owner] if owner in bits and leaf == "weight" else one.size
        component = _LAYER.sub(".*.", owner).removesuffix(".linear").removesuffix(".embedding")
        if leaf in ADAPTER_LEAVES:
            component += " (adapter)"
        counts[name not in trained][component] += size
    return dict(counts[0].most_common()), dict(counts[1].most_common())
