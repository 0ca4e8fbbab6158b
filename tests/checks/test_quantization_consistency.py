"""Whether config.json and tensors agree on quantisation, and what mlx-lm makes of it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.tuned_model import TunedModel
from mlxdoctor.finding import Outcome
from tests.conftest import FIXTURES, check_called
from tests.given import outcome
from tests.weight_files import lora, save

quantization_consistency = check_called("quantization-consistency")

PLAIN = FIXTURES / "base"
TABLE = {"group_size": 32, "bits": 4}
LAYER = "model.layers.0.self_attn.q_proj"


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The base model as `mlx_lm.convert -q` writes it."""
    from mlx_lm import convert

    folder = tmp_path_factory.mktemp("packed") / "model"
    convert(str(PLAIN), str(folder), quantize=True, q_bits=4, q_group_size=32)
    return folder


@pytest.fixture
def changed(tmp_path: Path) -> Callable[..., Path]:
    """Copies a model and changes its config.json: None takes a key away."""

    def change(model: Path, **keys: Any) -> Path:
        folder = tmp_path / "model"
        shutil.copytree(model, folder)
        path = folder / "config.json"
        config = {**json.loads(path.read_text()), **keys}
        path.write_text(json.dumps({k: v for k, v in config.items() if v is not None}))
        return folder

    return change


def found(said: Outcome) -> dict[str, str]:
    """Severity by symptom."""
    assert said.status != "crashed", said.reason
    return {one.code.split(".")[1]: str(one.severity) for one in said.findings}


def both(folder: Path) -> dict[str, str]:
    """What is said of a folder as base model, which must be what is said of it as a fused one."""
    of_base = found(outcome(quantization_consistency, BaseModel.read(folder)))
    assert of_base == found(outcome(quantization_consistency, TunedModel.read(folder)))
    return of_base


def refusal(folder: Path) -> str | None:
    """How mlx-lm refuses the model; None where it loads."""
    from mlx_lm import load

    try:
        load(str(folder))
    except (KeyError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return None


@pytest.mark.slow
def test_sound_models_pass(packed: Path) -> None:
    assert both(PLAIN) == {}
    assert both(packed) == {}
    said = outcome(quantization_consistency, BaseModel.read(packed), TunedModel.read(PLAIN))
    assert said.status == "passed"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tables", "severity", "refused"),
    [
        ({"quantization_config": TABLE}, "error", "KeyError: 'quant_method'"),
        ({"quantization": {**TABLE, LAYER: TABLE}}, "error", "Missing 2 parameters"),
        ({"quantization": TABLE}, "warning", None),
        ({"quantization": TABLE, "quantization_config": TABLE}, "warning", None),
        ({"quantization_config": {}}, None, None),
        ({"quantization": {**TABLE, LAYER: False}}, "warning", None),
        ({"quantization_config": {**TABLE, "quant_method": "mxfp4"}}, None, None),
    ],
)
def test_a_plain_model_called_quantised(
    changed: Callable[..., Path],
    tables: dict[str, Any],
    severity: str | None,
    refused: str | None,
) -> None:
    folder = changed(PLAIN, **tables)
    assert both(folder) == ({"config-without-scales": severity} if severity else {})
    said = refusal(folder)
    assert said is None if refused is None else refused in (said or "")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tables", "refused"),
    [
        ({"quantization": None, "quantization_config": None}, "parameters not in model"),
        ({"quantization": None}, "KeyError: 'quant_method'"),
    ],
)
def test_a_quantised_model_of_which_the_configuration_says_nothing(
    changed: Callable[..., Path], packed: Path, tables: dict[str, Any], refused: str
) -> None:
    folder = changed(packed, **tables)
    assert both(folder) == {"scales-without-config": "error"}
    assert refused in (refusal(folder) or "")


@pytest.mark.slow
def test_an_entry_for_one_plain_layer_of_a_quantised_model(
    changed: Callable[..., Path], packed: Path
) -> None:
    norm = "model.norm"
    table = {**TABLE, LAYER: TABLE, "model.layers.9.self_attn.q_proj": TABLE}
    assert both(changed(packed, quantization=table)) == {}
    folder = packed.parent / "with-an-entry"
    shutil.copytree(packed, folder)
    config = {**json.loads((packed / "config.json").read_text())}
    config["quantization"] = {**TABLE, norm: TABLE}
    (folder / "config.json").write_text(json.dumps(config))
    (finding,) = outcome(quantization_consistency, BaseModel.read(folder)).findings
    assert finding.code == "quantization-consistency.config-without-scales"
    assert (finding.severity, finding.measured["layers"]) == ("error", 1)


def test_a_fused_model_is_told_beside_a_sound_base(changed: Callable[..., Path]) -> None:
    fused = TunedModel.read(changed(PLAIN, quantization_config=TABLE))
    (finding,) = outcome(quantization_consistency, BaseModel.read(PLAIN), fused).findings
    assert "fused model" in finding.message
    assert finding.where == str(fused.path / "config.json")


def test_the_same_folder_is_told_once(changed: Callable[..., Path]) -> None:
    folder = changed(PLAIN, quantization_config=TABLE)
    said = outcome(quantization_consistency, BaseModel.read(folder), TunedModel.read(folder))
    assert len(said.findings) == 1


def test_without_a_model_folder_it_is_skipped(tmp_path: Path) -> None:
    assert outcome(quantization_consistency).status == "skipped"
    weights = {**lora({LAYER: (96, 96)}), f"{LAYER}.weight": lora({"x": (96, 96)})["x.lora_a"]}
    tuned = TunedModel.read(save(tmp_path / "adapters.safetensors", weights))
    assert tuned.from_adapter
    assert outcome(quantization_consistency, tuned).status == "skipped"
