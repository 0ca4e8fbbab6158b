"""Whether a model's configuration and its tensors agree that it is quantised.

What it finds. A base model or a fused model whose `config.json` says that it is quantised
while its tensors are plain, or whose tensors are quantised while `config.json` says nothing
that MLX can read.

Why it matters. mlx-lm decides by `config.json` which layers it builds, and then the tensors must
fit them. It stops with `KeyError: 'quant_method'`, with "Missing parameters" or with "Received
parameters not in model", before any token is read. Tools that fuse and dequantise have left the
old table behind.

How it is measured. From the names and types of the tensors alone: a matrix that MLX quantised has
`weight` of 32-bit words and `scales` beside it. `quantization` is MLX's own table;
`quantization_config` is read where that one is lacking, and then must name a `quant_method`. Each
combination was loaded with mlx-lm 0.32.2. A table `quantization` without entries for single layers
over plain tensors is a warning only, as mlx-lm then builds plain layers and loads the model.

When it is wrong. Weights quantised by other libraries, which name their `quant_method`, have
other tensors and are not judged. If mlx-lm renames the tensors of a model while it loads them, an
entry for a single layer may have the new name.

What to do. Remove `quantization` and `quantization_config` from the `config.json` of a model that
was dequantised; copy them from the base model to one whose tensors are quantised.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mlxdoctor.check import NotApplicable, check
from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.source import read_json_object
from mlxdoctor.evidence.tensor import TensorRef
from mlxdoctor.evidence.tuned_model import TunedModel
from mlxdoctor.finding import Measurement, Severity, Sign, Symptom

_OWN, _FOREIGN = "quantization", "quantization_config"
_AGREED = "config.json says quantised where the tensors are, and nowhere else"
_KEY_ERROR = "mlx-lm can't load it (KeyError: 'quant_method')"


@check(
    codes={
        "config-without-scales": Symptom.error(
            "config.json says quantised, and the tensors are not",
            says="The config.json of the {model} has {table!r}"
            "[ with settings for {layers} layers whose tensors are plain, {example} for one: "
            "mlx-lm stops over missing scales| with {bits} bits, and none of its {tensors} tensors "
            "is quantised: mlx-lm loads it as a plain model|, and none of its {tensors} tensors is "
            f"quantised: {_KEY_ERROR}].",
            expected=_AGREED,
            fix="[remove those entries: {layers} in {table!r}|remove {table!r}]",
        ),
        "scales-without-config": Symptom.error(
            "the tensors are quantised, and config.json does not say so",
            says="{quantised} matrices of the {model} are quantised ({example} for one), and its "
            f"config.json has no {_OWN!r}: [{{problem}}|mlx-lm refuses their scales as unknown "
            "parameters].",
            expected=_AGREED,
            fix=f"copy {_OWN!r} from the config.json of the model that was quantised",
        ),
    },
)
def quantization_consistency(base: BaseModel | None, tuned: TunedModel | None) -> Iterator[Sign]:
    fused = tuned if tuned is not None and not tuned.from_adapter else None
    if base is None and fused is None:
        raise NotApplicable("there is no model folder to look at")
    if base is not None:
        yield from _compared("base model", base.path, base.config, base.tensors)
    if fused is not None and (base is None or fused.path != base.path):
        config, _ = read_json_object(fused.path / "config.json")
        yield from _compared("fused model", fused.path, config, fused.tensors)


def _compared(
    model: str, path: Path, config: Mapping[str, Any], tensors: Mapping[str, TensorRef]
) -> Iterator[Sign]:
    own, foreign = config.get(_OWN), config.get(_FOREIGN)
    if foreign is None and isinstance(text := config.get("text_config"), dict):
        foreign = text.get(_FOREIGN)
    # mlx-lm reads the second table only if the first is missing, and ignores an empty one.
    in_use = foreign if own is None and isinstance(foreign, dict) else {}
    if "quant_method" in in_use:
        return
    table = own if isinstance(own, dict) else {}
    quantised = sorted(
        module
        for name in tensors
        if (module := name.removesuffix(".scales")) != name
        and (weight := tensors.get(f"{module}.weight")) is not None
        and weight.dtype == "U32"
    )
    plain = tensors.keys() - {f"{module}.weight" for module in quantised}
    contradicted = sorted(
        module
        for module, settings in table.items()
        if isinstance(settings, dict) and f"{module}.weight" in plain
    )
    code, severity = "config-without-scales", None
    figures: dict[str, Measurement] = {"model": model, "tensors": len(tensors)}
    if quantised and not isinstance(own, dict):
        code = "scales-without-config"
        figures |= {"quantised": len(quantised), "example": quantised[0]}
        figures["problem"] = _KEY_ERROR if in_use else None
    elif contradicted:
        figures |= {"table": _OWN, "layers": len(contradicted), "example": contradicted[0]}
    elif not quantised and in_use:
        figures["table"] = _FOREIGN
    elif not quantised and "bits" in table:
        figures |= {"table": _OWN, "bits": str(table["bits"])}
        severity = Severity.WARNING
    else:
        return
    yield Sign(code, figures, where=str(path / "config.json"), severity=severity)
