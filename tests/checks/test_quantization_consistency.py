import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from mlxdoctor.evidence.adapter import Adapter
from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.tuned_model import TunedModel
from tests.conftest import BASE, check_called
from tests.given import outcome, severities
from tests.weight_files import lora, save

quantization_consistency = check_called("quantization-consistency")

TABLE = {"group_size": 32, "bits": 4}
LAYER = "model.layers.0.self_attn.q_proj"


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The base model as `mlx_lm.convert -q` writes it."""
    from mlx_lm import convert

    folder = tmp_path_factory.mktemp("packed") / "model"
    convert(str(BASE), str(folder), quantize=True, q_bits=4, q_group_size=32)
    return folder


def changed(model: Path, folder: Path, **keys: Any) -> Path:
    """A copy of a model with another config.json: None takes a key away."""
    shutil.copytree(model, folder)
    path = folder / "config.json"
    config = {**json.loads(path.read_text()), **keys}
    path.write_text(json.dumps({k: v for k, v in config.items() if v is not None}))
    return folder


def both(folder: Path) -> dict[str, str]:
    """What is said of a folder as base model, which must be what is said of it as a fused one."""
    of_base = severities(outcome(quantization_consistency, BaseModel.read(folder)))
    assert of_base == severities(outcome(quantization_consistency, TunedModel.read(folder)))
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
    assert both(BASE) == both(packed) == {}
    judged = outcome(quantization_consistency, BaseModel.read(packed), TunedModel.read(BASE))
    assert judged.status == "passed"


UNSTATED = {"quantization": None, "quantization_config": None}
LAYERS = {LAYER: TABLE, "model.layers.9.self_attn.q_proj": TABLE}
PLAIN_CASES: list[tuple[dict[str, Any], str, str]] = [
    ({"quantization_config": TABLE}, "error", "KeyError: 'quant_method'"),
    ({"quantization": {**TABLE, LAYER: TABLE}}, "error", "Missing 2 parameters"),
    ({"quantization": TABLE}, "warning", ""),
    ({"quantization": TABLE, "quantization_config": TABLE}, "warning", ""),
    ({"quantization_config": {}}, "", ""),
    ({"quantization": {**TABLE, LAYER: False}}, "warning", ""),
    ({"quantization_config": {**TABLE, "quant_method": "mxfp4"}}, "", ""),
]


@pytest.mark.slow
@pytest.mark.parametrize(("tables", "severity", "refused"), PLAIN_CASES)
def test_a_plain_model_called_quantised(
    tmp_path: Path, tables: dict[str, Any], severity: str, refused: str
) -> None:
    folder = changed(BASE, tmp_path / "model", **tables)
    assert both(folder) == ({"config-without-scales": severity} if severity else {})
    told = refusal(folder) or ""
    assert refused in told
    assert bool(refused) is bool(told)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tables", "expected", "refused"),
    [
        (UNSTATED, "scales-without-config", "parameters not in model"),
        ({"quantization": None}, "scales-without-config", "KeyError: 'quant_method'"),
        ({"quantization": {**TABLE, **LAYERS}}, "", ""),
        # An entry for one plain layer.
        ({"quantization": {**TABLE, "model.norm": TABLE}}, "config-without-scales", ""),
    ],
)
def test_a_quantised_model(
    tmp_path: Path, packed: Path, tables: dict[str, Any], expected: str, refused: str
) -> None:
    folder = changed(packed, tmp_path / "model", **tables)
    assert both(folder) == ({expected: "error"} if expected else {})
    assert not refused or refused in (refusal(folder) or "")


def test_which_of_two_folders_is_told(tmp_path: Path) -> None:
    fused = TunedModel.read(folder := changed(BASE, tmp_path / "model", quantization_config=TABLE))
    (finding,) = outcome(quantization_consistency, BaseModel.read(BASE), fused).findings
    assert "fused model" in finding.message
    assert finding.where == str(folder / "config.json")
    # The same folder is told once.
    judged = outcome(quantization_consistency, BaseModel.read(folder), fused)
    assert len(judged.findings) == 1


def test_without_a_model_folder_it_is_skipped(tmp_path: Path) -> None:
    weights = {**lora({LAYER: (96, 96)}), f"{LAYER}.weight": lora({"x": (96, 96)})["x.lora_a"]}
    tuned = TunedModel.of(Adapter.read(save(tmp_path / "adapters.safetensors", weights)))
    assert tuned.from_adapter
    assert outcome(quantization_consistency, tuned).status == "skipped"
