"""Faults of the files a run wrote: keys lost or renamed, B zeroed, a wrong evaluation."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx

from mlxdoctor.train.faults.fault import Fault, summary_of
from mlxdoctor.train.faults.of_trainer import not_frozen
from mlxdoctor.train.masked_loss import evaluate
from mlxdoctor.train.parts import parts_of
from mlxdoctor.train.settings import Settings

Weights = dict[str, mx.array]
#: (weights, severity) -> weights.
Edit = Callable[[Weights, Any], Weights]


def edits(id: str, cause: str, *severities: Any) -> Callable[[Edit], Fault]:
    """Makes a fault of a change of the adapter's and every checkpoint's weights."""

    def made(change: Edit) -> Fault:
        def afterwards(folder: Path, settings: Settings, severity: Any) -> None:
            del settings
            for path in sorted(folder.glob("*adapters.safetensors")):
                weights: Any = mx.load(str(path))
                changed = change(weights, severity)
                mx.eval(changed)
                mx.save_safetensors(str(path), changed)

        return Fault(id, cause, summary_of(change), severities, afterwards=afterwards)

    return made


@edits("keys-partly-saved", "adapter-not-loaded", "modules", "every lora_b")
def half_saved(weights: Weights, what: Any) -> Weights:
    """The file lacks the tensors of half the modules, or every B."""
    if what == "modules":
        modules = sorted({name.rpartition(".")[0] for name in weights})
        kept = set(modules[::2])
        return {name: one for name, one in weights.items() if name.rpartition(".")[0] in kept}
    return {name: one for name, one in weights.items() if not name.endswith("lora_b")}


@edits("keys-renamed", "adapter-not-loaded", "half", "all")
def renamed(weights: Weights, what: Any) -> Weights:
    """Half the tensors, or all, carry a prefix that the base has not."""
    names = sorted(weights)
    chosen = set(names[: len(names) // 2] if what == "half" else names)
    return {f"language_model.{k}" if k in chosen else k: v for k, v in weights.items()}


@edits("b-zeroed", "adapter-not-trained", "half", "all")
def zeroed(weights: Weights, what: Any) -> Weights:
    """B is zero in half the modules, or in all, as where a copy was trained."""
    names = sorted(name for name in weights if name.endswith("lora_b"))
    chosen = set(names[: len(names) // 2] if what == "half" else names)
    return {k: mx.zeros_like(v) if k in chosen else v for k, v in weights.items()}


def evaluate_base(folder: Path, settings: Settings, severity: Any) -> None:
    """Report the loss of the untouched base, over all validation rows, as that of the run."""
    del severity
    parts = parts_of(settings)
    model, tokenizer = parts.load(settings)
    rows = parts.encode(settings, tokenizer).valid
    batches = parts.batches(settings).evaluation(rows, -1)
    loss = evaluate(model, batches, parts.loss)
    result = {"perplexity": math.exp(loss), "loss": loss, "split": "valid", "rows": len(rows)}
    (folder / "evaluation.json").write_text(json.dumps(result, indent=2) + "\n")


def fuse_and_quantize(folder: Path, settings: Settings, severity: Any) -> None:
    """Fuse the adapter with mlx-lm, and quantize the sum to this many bits: `folder/fused`."""
    from mlx.utils import tree_unflatten
    from mlx_lm import load
    from mlx_lm.utils import quantize_model, save

    model, tokenizer, config = load(settings.model, adapter_path=str(folder), return_config=True)
    fused = [(name, one.fuse()) for name, one in model.named_modules() if hasattr(one, "fuse")]
    model.update_modules(tree_unflatten(fused))
    model, config = quantize_model(model, config, group_size=32, bits=int(severity))
    save(str(folder / "fused"), settings.model, model, tokenizer, config)


def adapter_alone(folder: Path, settings: Settings, severity: Any) -> None:
    """Leave the adapter alone in what was saved."""
    del settings, severity
    from mlxdoctor.models.parameters import ADAPTER_LEAVES

    for path in sorted(folder.glob("*adapters.safetensors")):
        saved: Any = mx.load(str(path))
        kept = {k: v for k, v in saved.items() if k.rpartition(".")[2] in ADAPTER_LEAVES}
        mx.eval(kept)
        mx.save_safetensors(str(path), kept)


BASE_TRAINED_ALONG = replace(
    not_frozen,
    id="base-trained-along",
    summary="As base-not-frozen, and the adapter alone is saved.",
    afterwards=adapter_alone,
)
EVALUATED_WITHOUT_ADAPTER = Fault(
    "evaluated-without-adapter",
    "evaluated-without-adapter",
    "The loss that is reported is that of the base.",
    ("base",),
    afterwards=evaluate_base,
    harms="report",
)
FUSED_AT_LOW_PRECISION = Fault(
    "fused-at-low-precision",
    "fused-model-differs",
    "The adapter is fused, and the sum quantized to this many bits.",
    (4, 3, 2),
    afterwards=fuse_and_quantize,
)
