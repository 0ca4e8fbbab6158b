"""Parameters counted by what they are for: attention, MLP, embeddings, norms, adapters, head."""

from __future__ import annotations

import re
from typing import Any

from mlx import nn
from mlx.utils import tree_flatten

from mlxdoctor.models.parameters import ADAPTER_LEAVES

#: In the order in which they are shown.
COMPONENTS = ("attention", "MLP", "embeddings", "norms", "adapters", "head", "other")
_NORMS = (nn.LayerNorm, nn.RMSNorm, nn.GroupNorm, nn.InstanceNorm, nn.BatchNorm)
_EMBEDDINGS = (nn.Embedding, nn.QuantizedEmbedding)
#: The first that fits a part of a parameter's name, from the innermost outwards.
_BY_NAME = (
    ("norms", re.compile(r"(layer|rms)?_?norm|^ln(_|$)|^ln\d")),
    ("head", re.compile(r"^(lm_)?head$|^output$|^classifier$|^score$")),
    ("embeddings", re.compile(r"embed|^w[tp]e$")),
    ("attention", re.compile(r"attn|attention|^[qkvo]_?proj$|^qkv|^w[qkvo]$")),
    ("MLP", re.compile(r"mlp|ffn|feed_?forward|expert|^moe|^(gate|up|down)_?proj$|^fc\d?$|^w\d$")),
)


def count_components(model: nn.Module) -> dict[str, tuple[int, int]]:
    """How many parameters of each component are trainable, and how many it has.

    Quantized ones are counted unpacked; components without any are left out.
    """
    # The base class's: an override may say anything.
    trained = {name for name, _ in tree_flatten(nn.Module.trainable_parameters(model))}
    modules = dict(model.named_modules())
    counts = dict.fromkeys(COMPONENTS, (0, 0))
    for name, array in tree_flatten(nn.Module.parameters(model)):
        owner, _, leaf = name.rpartition(".")
        module = modules.get(owner)
        bits = getattr(module, "bits", None) if hasattr(module, "scales") else None
        if bits is not None and leaf in {"scales", "biases"}:
            continue
        size = array.size * 32 // bits if bits is not None and leaf == "weight" else array.size
        of, every = counts[component := _component(owner, leaf, module)]
        counts[component] = (of + size * (name in trained), every + size)
    return {name: count for name, count in counts.items() if count[1]}


def _component(owner: str, leaf: str, module: Any) -> str:
    if leaf in ADAPTER_LEAVES and (leaf != "m" or "lora_a" in (module or {})):
        return "adapters"
    if isinstance(module, _NORMS):
        return "norms"
    if isinstance(module, _EMBEDDINGS):
        return "embeddings"
    for part in reversed(owner.lower().split(".")):
        for component, pattern in _BY_NAME:
            if pattern.search(part):
                return component
    return "other"
