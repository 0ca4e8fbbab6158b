"""What mlx-lm would do with an adapter, held against what it does."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlxdoctor.evidence.adapter import Adapter
from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.finding import Outcome
from tests.conftest import FIXTURES, ROOT, RUNS, check_called
from tests.given import outcome

adapter_loading = check_called("adapter-loading")
RUN = RUNS / "healthy-ordinary"
Tensors = dict[str, Any]
Edit = Callable[[Path], None]


def setting(key: str, value: object) -> Edit:
    """Another value in adapter_config.json; keys of lora_parameters by `lora.` and their name."""

    def edit(folder: Path) -> None:
        path = folder / "adapter_config.json"
        values = json.loads(path.read_text())
        place = values["lora_parameters"] if key.startswith("lora.") else values
        place[key.removeprefix("lora.")] = value
        path.write_text(json.dumps(values))

    return edit


def tensors(change: Callable[[Tensors], Tensors]) -> Edit:
    """Other tensors in the file."""

    def edit(folder: Path) -> None:
        from safetensors.numpy import load_file, save_file

        path = folder / "adapters.safetensors"
        changed = change(load_file(path))
        save_file({name: np.ascontiguousarray(one) for name, one in changed.items()}, path)

    return edit


def renamed(before: str, after: str) -> Edit:
    return tensors(lambda found: {name.replace(before, after): x for name, x in found.items()})


def magnitudes(found: Tensors) -> Tensors:
    """One for every output."""
    return {
        name.replace("lora_b", "m"): np.ones(one.shape[1], np.float32)
        for name, one in found.items()
        if name.endswith("lora_b")
    }


#: name -> an edit, and the error that is found; None where mlx-lm loads it all the same.
EDITS: dict[str, tuple[Edit, str | None]] = {
    "as it is": (lambda _: None, None),
    "scale of text": (setting("lora.scale", "20"), "setting-refused"),
    "scale of none": (setting("lora.scale", None), "setting-refused"),
    "scale in a list": (setting("lora.scale", [20.0]), "setting-refused"),
    "whole scale": (setting("lora.scale", 20), None),
    "rank of text": (setting("lora.rank", "8"), "setting-refused"),
    "broken rank": (setting("lora.rank", 8.0), "setting-refused"),
    "no rank at all": (setting("lora.rank", 0), "setting-refused"),
    "dropout of two": (setting("lora.dropout", 2.0), "setting-refused"),
    "dropout below zero": (setting("lora.dropout", -0.1), "setting-refused"),
    "a list of parameters": (setting("lora_parameters", []), "setting-refused"),
    "no parameters": (setting("lora_parameters", None), "setting-refused"),
    "layers of text": (setting("num_layers", "4"), "setting-refused"),
    "no layers": (setting("num_layers", None), "setting-refused"),
    "all layers": (setting("num_layers", -1), None),
    "zero layers": (setting("num_layers", 0), None),
    "more layers than there are": (setting("num_layers", 40), None),
    "one layer": (setting("num_layers", 1), "tensors-refused"),
    "keys of text": (setting("lora.keys", "self_attn.q_proj"), "setting-refused"),
    "no keys": (setting("lora.keys", []), "tensors-refused"),
    "one key": (setting("lora.keys", ["self_attn.q_proj"]), "tensors-refused"),
    "another kind of tuning": (setting("fine_tune_type", "lorra"), None),
    "a full fine-tune": (setting("fine_tune_type", "full"), "tensors-refused"),
    "numbers of 64 bits": (
        tensors(lambda found: {name: one.astype(np.float64) for name, one in found.items()}),
        "tensors-refused",
    ),
    "magnitudes without DoRA": (
        tensors(lambda found: {**found, **magnitudes(found)}),
        "tensors-refused",
    ),
    "the embedding without keys": (
        tensors(
            lambda found: {
                **found,
                "model.embed_tokens.lora_a": np.ones((768, 8), np.float32),
                "model.embed_tokens.lora_b": np.ones((8, 96), np.float32),
            }
        ),
        "tensors-refused",
    ),
    "a bias beside them": (
        tensors(lambda found: {**found, "lm_head.bias": np.zeros(8, np.float32)}),
        "tensors-refused",
    ),
}


def edited(folder: Path, edit: Edit) -> Path:
    folder.mkdir()
    for name in ("adapters.safetensors", "adapter_config.json"):
        shutil.copy(RUN / name, folder / name)
    edit(folder)
    return folder


def found(folder: Path, base: BaseModel | None = None) -> Outcome:
    config = TrainingConfig.beside(folder / "adapters.safetensors")
    return outcome(adapter_loading, Adapter.read(folder), config, *([base] if base else []))


def errors(judged: Outcome) -> list[str]:
    assert judged.status != "crashed", judged.reason
    prefix = "adapter-loading."
    return [one.code.removeprefix(prefix) for one in judged.findings if one.severity == "error"]


def answer(base: Path, folder: Path) -> None:
    """Load the adapter, and ask the model something."""
    import mlx.core as mx
    import mlx_lm

    model, *_ = mlx_lm.load(str(base), adapter_path=str(folder))
    model(mx.array([[1, 2, 3]]))


@pytest.mark.parametrize("name", EDITS)
def test_what_is_refused_is_told_without_the_base_model(tmp_path: Path, name: str) -> None:
    edit, expected = EDITS[name]
    folder = edited(tmp_path / "run", edit)
    assert errors(found(folder)) == ([expected] if expected else [])


@pytest.mark.slow
@pytest.mark.parametrize("name", EDITS)
def test_mlx_lm_refuses_just_these(tmp_path: Path, name: str) -> None:
    edit, expected = EDITS[name]
    folder = edited(tmp_path / "run", edit)
    base = FIXTURES / "base"
    assert errors(found(folder, BaseModel.read(base))) == ([expected] if expected else [])
    if expected is None:
        answer(base, folder)
    else:
        with pytest.raises((ValueError, TypeError, KeyError, AttributeError, RuntimeError)):
            answer(base, folder)


def test_layers_under_their_old_name(tmp_path: Path) -> None:
    """`lora_layers` was right for the mlx-lm of its time."""

    def edit(folder: Path) -> None:
        path = folder / "adapter_config.json"
        values = json.loads(path.read_text())
        values["lora_layers"] = values.pop("num_layers")
        path.write_text(json.dumps(values))

    judged = found(edited(tmp_path / "run", edit))
    assert [(one.code, one.severity) for one in judged.findings] == [
        ("adapter-loading.setting-refused", "warning")
    ]


@pytest.mark.parametrize(
    ("scale", "code"),
    [(0, "scale-zero"), (-20.0, "scale-negative"), (float("nan"), "scale-not-finite")],
)
def test_a_scale_that_undoes_the_adapter(tmp_path: Path, scale: float, code: str) -> None:
    folder = edited(tmp_path / "run", setting("lora.scale", scale))
    assert errors(found(folder)) == [code]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("model.layers", "transformer.h"),
        ("model.layers", "base_model.model.model.layers"),
        ("q_proj", "query"),
        # Each name is that of some architecture, and all of them together of none.
        ("self_attn.q_proj", "self_attn.query_key_value"),
    ],
)
def test_names_that_no_architecture_has(tmp_path: Path, before: str, after: str) -> None:
    folder = edited(tmp_path / "run", renamed(before, after))
    judged = found(folder)
    assert [one.code for one in judged.findings] == ["adapter-loading.unknown-names"]
    assert found(edited(tmp_path / "sound", lambda _: None)).findings == ()
    # The base model itself tells more.
    with_base = found(folder, BaseModel.read(FIXTURES / "base"))
    assert "unknown-names" not in {one.code.partition(".")[2] for one in with_base.findings}


@pytest.mark.slow
def test_the_known_names_are_those_of_the_mlx_lm_that_is_installed() -> None:
    import mlx_lm
    import mlx_lm.models

    from fixtures.lab.families import known

    written = json.loads((ROOT / "mlxdoctor" / "evidence" / "module_names.json").read_text())
    if written["mlx-lm"] != mlx_lm.__version__:
        pytest.skip(f"they are those of {written['mlx-lm']}: python -m fixtures.lab.families")
    names, experts = known(Path(mlx_lm.models.__path__[0]))
    assert written["names"] == names
    assert written["experts"] == experts


def test_names_of_experts_with_factors_of_one_matrix(tmp_path: Path) -> None:
    folder = edited(tmp_path / "run", renamed("mlp.", "mlp.switch_mlp."))
    judged = found(folder)
    assert [one.code for one in judged.findings] == ["adapter-loading.unknown-names"]
    assert "stacked experts" in judged.findings[0].message


def test_another_file_name_and_another_format(tmp_path: Path) -> None:
    folder = edited(tmp_path / "run", lambda _: None)
    (folder / "adapters.safetensors").rename(folder / "mine.safetensors")
    config = TrainingConfig.beside(folder / "mine.safetensors")
    adapter = Adapter.read(folder / "mine.safetensors")
    judged = outcome(adapter_loading, adapter, config)
    assert [one.code for one in judged.findings] == ["adapter-loading.another-file-name"]
    # A file that was named by itself may go where it is called right.
    loose = Adapter.read(folder / "mine.safetensors", is_loose=True)
    assert outcome(adapter_loading, loose, config).findings == ()
    (folder / "mine.safetensors").rename(folder / "0000300_adapters.safetensors")
    saved = Adapter.read(folder / "0000300_adapters.safetensors")
    assert outcome(adapter_loading, saved, config).findings == ()
