"""The model: frozen, and given an adapter."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx import nn
from mlx.utils import tree_flatten
from mlx_lm.tuner.utils import linear_to_lora_layers

from mlxdoctor.models.load import said
from mlxdoctor.safety.errors import InputError
from mlxdoctor.twin.parts import Parts
from mlxdoctor.twin.settings import Settings

#: Names listed in an error.
EXAMPLES = 3

Call = Callable[..., Any]


def prepare(model: Any, settings: Settings) -> None:
    """Freeze the model, convert its layers, and load weights to start from.

    The adapter's weights are drawn from MLX's global generator, seeded here.

    Raises:
        InputError: the settings do not fit the model, or nothing would be trained.
    """
    mx.random.seed(settings.seed)
    model.freeze()
    count = len(model.layers)
    if settings.num_layers > count:
        problem = f"num_layers is {settings.num_layers}, but the model has {count} layers"
        raise InputError(None, problem, "write -1 for all of them")
    if settings.fine_tune_type == "full":
        for layer in trained_layers(model, settings):
            layer.unfreeze()
    else:
        convert(model, settings)
    if settings.resume_adapter_file is not None:
        load_adapter(model, Path(settings.resume_adapter_file), strict=settings.is_exact)
    if not tree_flatten(model.trainable_parameters()):
        remedy = "check lora_parameters.keys, or for `full` that the model is not quantized"
        raise InputError(None, "no parameter would be trained", remedy)


def unfreeze(model: nn.Module) -> None:
    """Train every parameter but quantised weights, which have no gradient."""
    model.unfreeze()
    for module in model.modules():
        if isinstance(module, nn.QuantizedLinear | nn.QuantizedEmbedding):
            module.freeze(recurse=False)


def trained_layers(model: Any, settings: Settings) -> Sequence[Any]:
    """The last layers that `num_layers` asks for; -1, and in mlx-lm 0 as well, are all."""
    layers: Sequence[Any] = model.layers[-max(settings.num_layers, 0) :]
    return layers


def trained_besides(parts: Parts, what: str, *, attached: bool) -> Parts:
    """Parts that train more than the adapter: norms, whole layers or everything.

    Args:
        attached: whether there is an adapter; else there is only the rest.
    """

    def prepare(model: Any, settings: Settings) -> None:
        if attached:
            parts.prepare(model, settings)
        else:
            mx.random.seed(settings.seed)
            model.freeze()
        if what == "everything":
            unfreeze(model)
        for layer in trained_layers(model, settings):
            if what == "layers":
                unfreeze(layer)
            for name, module in layer.named_modules():
                if what == "norms" and "norm" in name:
                    module.unfreeze()

    return replace(parts, prepare=prepare)


def convert(model: Any, settings: Settings) -> None:
    """Turn linear layers, embeddings and expert layers into LoRA or DoRA layers, as mlx-lm does.

    Raises:
        InputError: a key names no module, or a layer cannot be converted.
    """
    parameters = dict(settings.lora_parameters or {})
    if settings.is_exact:
        _check_keys(model, parameters.get("keys") or ())
    is_dora = settings.fine_tune_type == "dora"
    for name, module in model.named_modules() if is_dora else ():
        # mlx-lm's DoRALinear multiplies the packed width by 32 // bits, which is wrong here.
        if isinstance(module, nn.QuantizedLinear) and 32 % module.bits:
            problem = f"mlx-lm cannot put DoRA on {name}, which has {module.bits} bits a weight"
            raise InputError(None, problem, "use lora, or a base of 4 or 8 bits")
    try:
        linear_to_lora_layers(model, settings.num_layers, parameters, use_dora=is_dora)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        problem = f"mlx-lm cannot put an adapter on this model ({said(error)})"
        raise InputError(None, problem) from None


def load_adapter(model: Any, path: Path, *, strict: bool) -> None:
    """Start from the weights of a saved adapter.

    Args:
        strict: whether names and shapes must be the trainable parameters' own; mlx-lm
            skips what does not fit without a word.

    Raises:
        InputError: the file cannot be read, or does not fit.
    """
    weights: Any
    try:
        weights = mx.load(str(path))
    except (RuntimeError, ValueError, OSError) as error:
        raise InputError(path, f"cannot be loaded ({said(error)})") from None
    if strict:
        _require_same(path, weights, dict(tree_flatten(model.trainable_parameters())))
    model.load_weights(list(weights.items()), strict=False)


def _require_same(
    path: Path, stored: Mapping[str, mx.array], wanted: Mapping[str, mx.array]
) -> None:
    differences = {
        "tensors are missing": sorted(wanted.keys() - stored.keys()),
        "do not belong to this run": sorted(stored.keys() - wanted.keys()),
        "have another shape": [
            f"{name} {stored[name].shape} for {wanted[name].shape}"
            for name in sorted(wanted.keys() & stored.keys())
            if stored[name].shape != wanted[name].shape
        ],
    }
    parts = [
        f"{len(names)} {what}, such as {', '.join(names[:EXAMPLES])}"
        for what, names in differences.items()
        if names
    ]
    if parts:
        remedy = "resume with the model, layers, keys and rank it was saved with"
        raise InputError(path, "does not fit this run: " + "; ".join(parts), remedy)


def recompute_activations(layer: Any) -> None:
    """Checkpoint the gradients of a layer."""
    call_through(
        layer,
        lambda call, *given, **named: nn.utils.checkpoint(layer, call)(*given, **named),
    )


def call_through(module: Any, around: Call) -> None:
    """Let calls of a module go through `around`, which gets its own call before the arguments.

    It gets a class of its own, so that others of its class are not changed.
    """
    kind = type(module)

    def call(self: Any, *arguments: Any, **options: Any) -> Any:
        return around(partial(kind.__call__, self), *arguments, **options)

    module.__class__ = type(kind.__name__, (kind,), {"__call__": call})


def _check_keys(model: Any, keys: Sequence[str]) -> None:
    known = {name for owner in (model, *model.layers) for name, _ in owner.named_modules() if name}
    unknown = [str(key) for key in keys if key not in known]
    if unknown:
        close = get_close_matches(unknown[0], known, n=1)
        remedy = f"did you mean {close[0]!r}?" if close else "name them like self_attn.q_proj"
        problem = f"lora_parameters.keys has {unknown[0]!r}, which names no module of a layer"
        raise InputError(None, problem, remedy)
