"""What cannot be carried over is refused, with the reason."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlxdoctor.convert.conversion import convert
from mlxdoctor.safety.errors import InputError
from tests.convert.given import BASE, SHAPES, Change, Q, V, mlx_adapter, peft_adapter
from tests.edits import Tensors
from tests.weight_files import lora, save

PREFIX = f"base_model.model.{Q}"
EMBEDDING = "model.embed_tokens"
STACKED = "model.layers.1.mlp.switch_mlp.up_proj"
EXPERTS = {
    f"{STACKED}.lora_a": np.ones((3, 4, 96), "f4"),
    f"{STACKED}.lora_b": np.ones((3, 64, 4), "f4"),
}


def refusal(folder: Path, model: str | None = None) -> str:
    with pytest.raises(InputError) as caught:
        convert(folder, model=model)
    return str(caught.value)


def parameters(**changes: Any) -> dict[str, Any]:
    return {"lora_parameters": {"rank": 4, "scale": 2.0, "dropout": 0.0, **changes}}


def renamed(old: str, new: str) -> Change:
    return lambda tensors: {name.replace(old, new): one for name, one in tensors.items()}


def added(name: str, shape: tuple[int, ...]) -> Change:
    return lambda tensors: {**tensors, name: np.ones(shape, "f4")}


def doubled(tensors: Tensors) -> Tensors:
    return {name: values.astype("f8") for name, values in tensors.items()}


def removed(name: str) -> Change:
    return lambda tensors: {other: one for other, one in tensors.items() if other != name}


def instead(others: Tensors) -> Change:
    return lambda _: others


@pytest.mark.parametrize(
    ("change", "settings", "why"),
    [
        (dict, {"peft_type": "ADALORA"}, "says ADALORA for peft_type"),
        (dict, {"task_type": "SEQ_CLS"}, "says SEQ_CLS for task_type"),
        (dict, {"bias": "lora_only"}, "says lora_only for bias"),
        (dict, {"lora_bias": True}, "sets lora_bias; mlx-lm has no known counterpart"),
        (dict, {"init_lora_weights": "pissa"}, "may change the base model's weights"),
        (dict, {"use_novelty": {"a": 1}}, "sets use_novelty"),
        (dict, {"lora_alpha": None}, "does not state both r and lora_alpha"),
        (dict, {"lora_alpha": float("nan")}, "not a finite number"),
        (dict, {"alpha_pattern": {"v_proj": 12}}, "sets alpha_pattern; mlx-lm has no"),
        (dict, {"rank_pattern": {"v_proj": 2}}, "sets rank_pattern; mlx-lm has no"),
        (dict, {"r": 8}, "has rank 4, but adapter_config.json says 8"),
        (dict, {"use_dora": True}, "has no DoRA magnitude, but adapter_config.json says dora"),
        (dict, {"target_modules": ["v_proj"]}, "does not target it"),
        (dict, {"layers_to_transform": [0, 2]}, "does not target it"),
        (dict, {"layers_to_transform": 3}, "does not target it"),
        (removed(f"{PREFIX}.lora_B.weight"), {}, "has no partner"),
        (added(f"{PREFIX}.lora_magnitude_vector", (96,)), {}, "has a DoRA magnitude, but"),
        (added("base_model.model.lm_head.weight", (8, 8)), {}, "lm_head.weight is no LoRA factor"),
        (
            added(f"{PREFIX}.lora_A.second.weight", (4, 96)),
            {},
            "or that of a module that has another",
        ),
        (added(f"{PREFIX}.lora_B.bias", (96,)), {}, "none that it can be multiplied with"),
        (renamed("1.self_attn", "1.mlp.experts.3"), {}, "may have another name in mlx-lm"),
        (renamed("model.layers", "transformer.h"), {}, "may have another name in mlx-lm"),
        (renamed("base_model.model.model.", "base_model.model."), {}, "may have another name"),
        (
            renamed(f"{Q}.lora_", f"{EMBEDDING}.lora_embedding_"),
            {"target_modules": [EMBEDDING, V]},
            "embed_tokens is an embedding or the output head",
        ),
    ],
)
def test_what_peft_has(change: Change, settings: dict[str, Any], why: str, tmp_path: Path) -> None:
    assert why in refusal(peft_adapter(tmp_path / "a", change, **settings))


@pytest.mark.parametrize(
    ("change", "settings", "why"),
    [
        (dict, {"fine_tune_type": "full"}, "of type full, which has no LoRA factors"),
        (dict, {"lora_parameters": None}, "does not state both"),
        (dict, {"lora_parameters": {"rank": 4, "alpha": 8, "dropout": 0.0}}, "does not state both"),
        (dict, parameters(rank=8), "mlx-lm itself refuses model.layers.1.self_attn.q_proj"),
        (dict, {"fine_tune_type": "dora"}, "has no DoRA magnitude"),
        (dict, parameters(keys=["self_attn.q_proj"]), "v_proj: keys does not name them"),
        (
            dict,
            {"num_layers": 2, "model": str(BASE)},
            "num_layers is 2, and earlier layers are not converted",
        ),
        (added(f"{Q}.m", (96,)), {}, "fine_tune_type is not dora, so that nothing is scaled"),
        (added("model.norm.weight", (96,)), {}, "model.norm.weight is no LoRA factor"),
        (renamed("self_attn.q", "feed_forward.w1.q"), {}, "may have another name in PEFT"),
        (renamed("model.layers", "vision.layers"), {}, "may have another name in PEFT"),
        (removed(f"{Q}.lora_a"), {}, "has no partner"),
        (doubled, {}, "stored as 64-bit numbers"),
        (instead(EXPERTS), {}, "factors for each of 3 experts, stacked; PEFT puts LoRA"),
        (
            instead(lora({"lm_head": (96, 768)})),
            {},
            "lm_head: without keys only modules of layers are converted",
        ),
        (instead(lora(SHAPES, rank=0)), parameters(rank=0), f"{Q} has rank 0"),
        (
            instead(lora({Q: (96, 100)})),
            {"num_layers": 3, "model": str(BASE)},
            "96 inputs to 100 outputs",
        ),
        (
            instead(lora({EMBEDDING: (768, 96)})),
            parameters(keys=[EMBEDDING]),
            "embed_tokens is an embedding",
        ),
    ],
)
def test_what_mlx_has(change: Change, settings: dict[str, Any], why: str, tmp_path: Path) -> None:
    assert why in refusal(mlx_adapter(tmp_path / "a", change, **settings))


@pytest.mark.parametrize(
    ("make", "settings"),
    [
        (peft_adapter, {"init_lora_weights": "gaussian"}),
        (peft_adapter, {"layers_to_transform": [1]}),
        (peft_adapter, {"layers_to_transform": []}),
        (peft_adapter, {"target_modules": "all-linear"}),
        (peft_adapter, {"target_modules": [Q, V], "layers_to_transform": [0]}),
        (peft_adapter, {"modules_to_save": []}),
        (peft_adapter, {"use_novelty": None}),
        (peft_adapter, {"task_type": None}),
        (
            peft_adapter,
            {"merge_weights": True, "auto_mapping": {"base_model_class": "LlamaForCausalLM"}},
        ),
        (
            peft_adapter,
            {"loftq_config": {}, "megatron_core": "megatron.core", "peft_version": "0.21.2"},
        ),
        (peft_adapter, {"rank_pattern": {}, "alpha_pattern": {}}),
        (mlx_adapter, {"num_layers": 3, "model": str(BASE)}),
        (mlx_adapter, {"num_layers": -1, "model": str(BASE)}),
        (mlx_adapter, parameters(keys=[Q, "self_attn.v_proj"])),
        (mlx_adapter, {"num_layers": 1, "model": str(BASE), **parameters(keys=[Q, V])}),
    ],
)
def test_near_misses_are_converted(
    make: Callable[..., Path], settings: dict[str, Any], tmp_path: Path
) -> None:
    assert convert(make(tmp_path / "a", **settings)).summary.startswith("2 modules")


def test_a_configuration_that_is_not_there_or_another_librarys(tmp_path: Path) -> None:
    save(tmp_path / "adapters.safetensors", lora(SHAPES))
    assert "adapter_config.json: there is no such file" in refusal(tmp_path)
    (tmp_path / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    assert "has the names of mlx-lm, but adapter_config.json is of peft" in refusal(tmp_path)


def test_a_base_that_is_no_model(tmp_path: Path) -> None:
    folder = mlx_adapter(tmp_path / "a")
    for model in (str(tmp_path), "./nowhere"):
        assert "is not a model's folder" in refusal(folder, model)
