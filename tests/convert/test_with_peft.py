"""PEFT's own loader and its logits, on the base model in torch. Skipped without PEFT.

To run it: `pip install torch transformers peft`.
"""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from mlxdoctor.convert.conversion import convert
from tests.conftest import RUNS
from tests.convert.given import BASE, KINDS, TOKENS, logits, saved_by_mlx, write_files

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

#: How far two libraries' float32 logits may lie apart; their base models do by 7e-6.
NEAR = 1e-4


def library(name: str) -> Any:
    """A library that the project does not depend on; the test is skipped without it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip(name)


def torch_base() -> Any:
    torch = library("torch")
    return library("transformers").AutoModelForCausalLM.from_pretrained(BASE, dtype=torch.float32)


def torch_logits(model: Any) -> NDArray[np.float32]:
    torch = library("torch")
    with torch.no_grad():
        found: NDArray[np.float32] = model.eval()(torch.tensor(TOKENS)[None]).logits[0].numpy()
    return found


def loaded_by_peft(folder: Path) -> NDArray[np.float32]:
    """The logits with an adapter that PEFT loads without a word on missing tensors."""
    model = torch_base()
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


@pytest.mark.parametrize("name", ["healthy-ordinary", "overfitting", "scale-too-large", *KINDS])
def test_an_adapter_of_mlx_gives_the_same_logits_in_peft(name: str, tmp_path: Path) -> None:
    source = saved_by_mlx(tmp_path / "a", *KINDS[name]) if name in KINDS else RUNS / name
    peft = write_files(tmp_path / "peft", convert(source).files)
    ours = logits(source)
    assert difference(loaded_by_peft(peft), ours) < NEAR
    assert difference(logits(None), ours) > 0.1


def saved_by_peft(folder: Path, **settings: Any) -> NDArray[np.float32]:
    """Save an adapter with random factors; returns the logits that PEFT computes with it."""
    torch, peft = library("torch"), library("peft")
    torch.manual_seed(0)
    config = peft.LoraConfig(task_type="CAUSAL_LM", **{"r": 6, "lora_alpha": 12, **settings})
    model = peft.get_peft_model(torch_base(), config)
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
