"""PEFT's own loader and its logits, on the base model in torch. Skipped without PEFT.

To run it: `pip install torch transformers peft`.
"""

from __future__ import annotations

import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from mlxdoctor.convert.conversion import convert
from mlxdoctor.evidence.safetensors_file import read_safetensors
from mlxdoctor.safety.errors import InputError
from tests.conftest import RUNS
from tests.convert.given import (
    BASE,
    KINDS,
    TOKENS,
    WRITTEN,
    logits,
    saved_by_mlx,
    stated,
    write_files,
)
from tests.weight_files import save

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

#: How far two libraries' float32 logits may lie apart; their base models do by 7e-6.
NEAR = 1e-4


def library(name: str) -> Any:
    """A library that the project does not depend on; the test is skipped without it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip(name)


def torch_base(folder: Path = BASE) -> Any:
    torch = library("torch")
    return library("transformers").AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def torch_logits(model: Any) -> NDArray[np.float32]:
    torch = library("torch")
    with torch.no_grad():
        found: NDArray[np.float32] = model.eval()(torch.tensor(TOKENS)[None]).logits[0].numpy()
    return found


def loaded_by_peft(folder: Path, base: Path = BASE) -> NDArray[np.float32]:
    """The logits with an adapter that PEFT loads without a word on missing tensors."""
    model = torch_base(base)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = library("peft").PeftModel.from_pretrained(model, folder)
    said = [str(one.message) for one in caught]
    assert not [text for text in said if "missing" in text or "unexpected" in text]
    return torch_logits(model)


def difference(one: NDArray[Any], other: NDArray[Any]) -> float:
    return float(np.abs(one - other).max())


def test_the_base_models_agree() -> None:
    assert difference(torch_logits(torch_base()), logits(None)) < NEAR


@pytest.mark.parametrize("name", ["healthy-ordinary", "overfitting", "scale-too-large"])
def test_a_run_gives_the_same_logits_in_peft(name: str, tmp_path: Path) -> None:
    peft = write_files(tmp_path / "peft", convert(RUNS / name).files)
    ours = logits(RUNS / name)
    assert difference(loaded_by_peft(peft), ours) < NEAR
    assert difference(logits(None), ours) > 0.1


@pytest.mark.parametrize("kind", KINDS)
def test_an_adapter_of_mlx_gives_the_same_logits_in_peft(kind: str, tmp_path: Path) -> None:
    source = saved_by_mlx(tmp_path / "a", *KINDS[kind])
    peft = write_files(tmp_path / "peft", convert(source).files)
    ours = logits(source)
    assert difference(loaded_by_peft(peft), ours) < NEAR
    assert difference(logits(None), ours) > 0.1


def saved_by_peft(folder: Path, base: Path = BASE, **settings: Any) -> NDArray[np.float32]:
    """Save an adapter with random factors; returns the logits that PEFT computes with it."""
    torch, peft = library("torch"), library("peft")
    torch.manual_seed(0)
    config = peft.LoraConfig(task_type="CAUSAL_LM", **{"r": 6, "lora_alpha": 12, **settings})
    model = peft.get_peft_model(torch_base(base), config)
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            parameter.data += 0.05 * torch.randn_like(parameter)
    model.save_pretrained(folder)
    return torch_logits(model)


LINEAR = ["q_proj", "v_proj", "up_proj", "down_proj"]


@pytest.mark.parametrize(
    "settings",
    [
        {"target_modules": LINEAR},
        {"target_modules": LINEAR, "use_rslora": True},
        {"target_modules": LINEAR, "use_dora": True},
        {"target_modules": LINEAR, "layers_to_transform": [0, 2]},
        {"target_modules": LINEAR, "alpha_pattern": {"layers.2.mlp.up_proj": 48, "up_proj": 24}},
        {"target_modules": LINEAR, "rank_pattern": {"q_proj": 3}, "alpha_pattern": {"v_proj": 3}},
        {"target_modules": r".*\.[13]\.(self_attn|mlp)\.(q|down)_proj"},
        {"target_modules": "all-linear", "exclude_modules": ["o_proj"]},
        {"target_modules": LINEAR, "init_lora_weights": "gaussian", "lora_alpha": 7},
    ],
    ids=lambda settings: "-".join(sorted(settings)),
)
def test_an_adapter_of_peft_gives_the_same_logits_in_mlx(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    theirs = saved_by_peft(tmp_path / "peft", **settings)
    mlx = write_files(tmp_path / "mlx", convert(tmp_path / "peft", model=str(BASE)).files)
    assert difference(logits(mlx), theirs) < NEAR
    assert difference(logits(None), theirs) > 0.1


@pytest.fixture
def untied(tmp_path: Path) -> Path:
    """The base model with an output head of its own, the embedding upside down."""
    folder = tmp_path / "untied"
    shutil.copytree(BASE, folder)
    tensors = {
        name: one.load()
        for name, one in read_safetensors(BASE / "model.safetensors").tensors.items()
    }
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"][::-1].copy()
    save(folder / "model.safetensors", tensors, metadata={"format": "mlx"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": False}))
    return folder


def test_embedding_and_output_head_of_their_own(untied: Path, tmp_path: Path) -> None:
    targets = ["embed_tokens", "lm_head", "q_proj"]
    theirs = saved_by_peft(tmp_path / "peft", untied, target_modules=targets)
    converted = convert(tmp_path / "peft", model=str(untied))
    # PEFT saves the weights of both beside the factors.
    assert sum("is left out" in note for note in converted.notes) == 2
    mlx = write_files(tmp_path / "mlx", converted.files)
    assert stated(converted.files)["lora_parameters"]["keys"] == [
        "self_attn.q_proj",
        "lm_head",
        "model.embed_tokens",
    ]
    assert difference(logits(mlx, base=untied), theirs) < NEAR
    back = write_files(tmp_path / "back", convert(mlx).files)
    assert difference(loaded_by_peft(back, untied), theirs) < NEAR


def test_an_embedding_that_is_also_the_head_differs_and_is_refused(tmp_path: Path) -> None:
    saved_by_peft(tmp_path / "peft", target_modules=["embed_tokens", "q_proj"])
    with pytest.raises(InputError, match="output head too"):
        convert(tmp_path / "peft", model=str(BASE))


def test_an_embedding_and_head_with_the_same_factors(tmp_path: Path) -> None:
    theirs = saved_by_peft(
        tmp_path / "peft", target_modules=["embed_tokens", "q_proj"], ensure_weight_tying=True
    )
    mlx = write_files(tmp_path / "mlx", convert(tmp_path / "peft", model=str(BASE)).files)
    assert difference(logits(mlx), theirs) < NEAR


def test_a_start_that_changes_the_base_is_refused(tmp_path: Path) -> None:
    saved_by_peft(tmp_path / "peft", target_modules=LINEAR, init_lora_weights="pissa")
    with pytest.raises(InputError, match="may change the base model's weights"):
        convert(tmp_path / "peft", model=str(BASE))


def test_the_fixture_is_what_peft_computes(tmp_path: Path) -> None:
    mlx = write_files(tmp_path / "mlx", convert(WRITTEN).files)
    assert difference(loaded_by_peft(WRITTEN), logits(mlx)) < NEAR
