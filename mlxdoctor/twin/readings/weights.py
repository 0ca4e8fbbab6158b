"""Other weights than those of the base model at hand, which take a model to be loaded anew."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from mlxdoctor.evidence.adapter import Adapter, adapter_file
from mlxdoctor.models.load import ADAPTER_FILE
from mlxdoctor.safety.errors import InputError
from mlxdoctor.twin.parts import Parts
from mlxdoctor.twin.readings import Reading, reading
from mlxdoctor.twin.settings import Settings

_FIX = "Name the base model that the run was trained on with --base."
#: Weights that share a scale: as mlx-lm has it, and where that does not divide a matrix.
_GROUPS = (64, 32)


def with_base(parts: Parts, change: Callable[[Any], None]) -> Parts:
    """Parts whose base model is changed once it is loaded."""

    def load(settings: Settings) -> tuple[Any, Any]:
        model, tokenizer = parts.load(settings)
        change(model)
        return model, tokenizer

    return replace(parts, load=load)


def _quantised(bits: int) -> Reading:
    def apply(settings: Settings, parts: Parts) -> tuple[Settings, Parts] | None:
        from mlx import nn

        # Whole weights that are resumed from do not fit.
        if settings.resume_adapter_file is not None and settings.fine_tune_type == "full":
            return None

        def of_layer(_: str, module: Any) -> bool | dict[str, int]:
            if not hasattr(module, "to_quantized"):
                return False
            width = module.weight.shape[-1]
            group = next((each for each in _GROUPS if width % each == 0), None)
            return group is not None and {"group_size": group, "bits": bits}

        def change(model: Any) -> None:
            nn.quantize(model, bits=bits, class_predicate=of_layer)

        return settings, with_base(parts, change)

    return Reading("base-quantised", f"of the base quantised to {bits} bits", apply, _FIX)


def _rope(factor: float) -> Reading:
    def apply(settings: Settings, parts: Parts) -> tuple[Settings, Parts]:
        def change(model: Any) -> None:
            for layer in model.layers:
                rope: Any = getattr(getattr(layer, "self_attn", None), "rope", None)
                if hasattr(rope, "base"):
                    rope.base = rope.base * factor

        return settings, with_base(parts, change)

    clause = f"of a base whose rope base is {factor:g} times as large"
    return Reading("other-rope-base", clause, apply, _FIX)


#: 8 bits change a loss by less than half precision does.
QUANTISED = tuple(_quantised(bits) for bits in (4, 3, 2))
#: 10,000, 500,000 and 1,000,000 are usual: these are their quotients.
ROPE = tuple(_rope(factor) for factor in (0.01, 0.02, 50.0, 100.0))


@reading(sound=True, in_training=True)
def modules_of_the_file(settings: Settings, parts: Parts) -> tuple[Settings, Parts] | None:
    """Of a run that trains only the modules in the adapter file, as mlx-lm did before 0.28.2."""
    lora, saved = settings.lora_parameters, Path(settings.adapter_path)
    if lora is None or lora.get("keys") or settings.fine_tune_type == "full":
        return None
    try:
        modules = Adapter.read(adapter_file(saved)).modules
    except InputError:
        return None
    keys = sorted({module.projection for module in modules})
    return replace(settings, lora_parameters={**lora, "keys": keys}), parts


@reading(
    in_training=True,
    fix="Call model.freeze() before converting layers: what is trained besides is not saved.",
)
def base_trained_along(settings: Settings, parts: Parts) -> tuple[Settings, Parts] | None:
    """Of a run that trains the base model along with the adapter."""
    if settings.fine_tune_type == "full":
        return None
    from mlxdoctor.twin.attach import trained_besides

    return settings, trained_besides(parts, "everything", attached=True)


@reading(
    fix="Use the fused model without the adapter, or train on a base that nothing was fused into."
)
def adapter_in_the_base(settings: Settings, parts: Parts) -> tuple[Settings, Parts] | None:
    """Of a base that holds this adapter already."""
    saved = Path(settings.adapter_path) / ADAPTER_FILE
    if not saved.is_file():
        return None

    def prepare(model: Any, settings: Settings) -> None:
        from mlxdoctor.twin.attach import load_adapter

        parts.prepare(model, settings)
        load_adapter(model, saved, strict=True)

    return settings, replace(parts, prepare=prepare)
