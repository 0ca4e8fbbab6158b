"""Faults of what is trained: adapter not attached, base not frozen, gradients stopped."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx

from mlxdoctor.train.attach import convert, trained_layers
from mlxdoctor.train.faults.fault import Fault, beside, fault
from mlxdoctor.train.parts import Parts
from mlxdoctor.train.settings import Settings


@fault("adapter-never-attached", "adapter-never-attached", "layers", "everything")
def never_attached(settings: Settings, parts: Parts, severity: Any) -> tuple[Settings, Parts]:
    """No layer is converted: the weights of the chosen layers, or all, are trained."""

    def prepare(model: Any, settings: Settings) -> None:
        mx.random.seed(settings.seed)
        model.freeze()
        _unfreeze(model, settings, str(severity))

    return settings, replace(parts, prepare=prepare)


@fault("base-not-frozen", "base-weights-changed", "norms", "layers", "everything")
def not_frozen(settings: Settings, parts: Parts, severity: Any) -> tuple[Settings, Parts]:
    """The adapter is attached, and norms, whole layers or everything is trained with it."""

    def prepare(model: Any, settings: Settings) -> None:
        mx.random.seed(settings.seed)
        model.freeze()
        convert(model, settings)
        _unfreeze(model, settings, str(severity))

    return settings, replace(parts, prepare=prepare)


def _unfreeze(model: Any, settings: Settings, what: str) -> None:
    if what == "everything":
        model.unfreeze()
    for layer in trained_layers(model, settings):
        if what == "layers":
            layer.unfreeze()
        elif what == "norms":
            for name, module in layer.named_modules():
                if "norm" in name:
                    module.unfreeze()


@fault("gradients-blocked", "gradients-blocked", "half", "all")
def gradients_blocked(settings: Settings, parts: Parts, severity: Any) -> tuple[Settings, Parts]:
    """Gradients are stopped half-way through the layers, or before the head."""
    prepare = parts.prepare

    def blocked(model: Any, settings: Settings) -> None:
        prepare(model, settings)
        half = len(model.layers) // 2
        module = model.model.norm if severity == "all" else model.layers[half]
        _stop_inputs(module)

    return settings, replace(parts, prepare=blocked)


def _stop_inputs(module: Any) -> None:
    """Let no gradient through this one module to what it was given."""
    kind = type(module)

    def call(self: Any, first: mx.array, *arguments: Any, **options: Any) -> Any:
        return kind.__call__(self, mx.stop_gradient(first), *arguments, **options)

    module.__class__ = type(kind.__name__, (kind,), {"__call__": call})


@fault("base-broken", "base-model-broken", 0.5, 1.0, 2.0)
def broken_base(settings: Settings, parts: Parts, severity: Any) -> tuple[Settings, Parts]:
    """The base has noise on every matrix, this many of its standard deviations."""
    source, target = Path(settings.model), beside(settings, "base")
    target.mkdir(parents=True, exist_ok=True)
    for path in source.iterdir():
        if path.is_file() and path.suffix != ".safetensors":
            shutil.copy(path, target)
    key = mx.random.key(settings.seed)
    for path in source.glob("*.safetensors"):
        weights: Any = mx.load(str(path))
        for name, one in weights.items():
            if one.ndim > 1 and mx.issubdtype(one.dtype, mx.floating):
                key, used = mx.random.split(key)
                noise = mx.random.normal(one.shape, one.dtype, key=used)
                weights[name] = one + float(severity) * mx.std(one) * noise
        mx.save_safetensors(str(target / path.name), weights, metadata={"format": "mlx"})
    return replace(settings, model=str(target)), parts


def another_base(settings: Settings, parts: Parts, severity: Any) -> tuple[Settings, Parts]:
    """Train on the model in another folder, which the severity names, than the one stated."""
    other = replace(settings, model=str(severity))

    def load(settings: Settings) -> tuple[Any, Any]:
        del settings
        return parts.load(other)

    return settings, replace(parts, load=load)


@fault("resume-drops-keys", "resume-mismatch", 0.5, 1.0)
def resumed(settings: Settings, parts: Parts, severity: Any) -> tuple[Settings, Parts]:
    """Resumed from an adapter of which this share of the tensors does not fit by name."""
    from mlxdoctor.train import train

    # The adapter resumed from is trained here, for as many iterations, beside the run's folder.
    first = replace(settings, adapter_path=str(beside(settings, "before")))
    done = train(replace(first, extras=replace(first.extras, save_state=False)), parts=parts)
    path = done.adapter_path / "adapters.safetensors"
    weights: Any = mx.load(str(path))
    lost = sorted(weights)[: round(len(weights) * float(severity))]
    renamed = {f"language_model.{k}" if k in lost else k: v for k, v in weights.items()}
    mx.save_safetensors(str(path), renamed)
    return replace(settings, resume_adapter_file=str(path)), _unchecked(parts)


def _unchecked(parts: Parts) -> Parts:
    """Load what fits without a word, in whatever mode, as mlx-lm does when it resumes."""
    prepare = parts.prepare

    def lenient(model: Any, settings: Settings) -> None:
        prepare(model, replace(settings, resume_adapter_file=None))
        weights: Any = mx.load(str(settings.resume_adapter_file))
        # mlxdoctor: ignore[non-strict-load] this is the fault
        model.load_weights(list(weights.items()), strict=False)

    return replace(parts, prepare=lenient)


def wrong_base(*others: Path) -> Fault:
    """The fault of having trained on one of these models, and stating another."""
    return Fault(
        "wrong-base",
        "wrong-base-model",
        "The adapter was trained on another model than the configuration names.",
        tuple(map(str, others)),
        another_base,
    )
