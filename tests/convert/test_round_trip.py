"""There and back: every bit of the fixture runs, and what the configurations say."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlxdoctor.convert.conversion import convert
from mlxdoctor.evidence.adapter import Adapter
from mlxdoctor.safety.errors import InputError
from tests.conftest import RUNS, run_names
from tests.convert import given
from tests.edits import Tensors
from tests.weight_files import lora, save, to_bfloat16, write_config

#: Runs whose adapters no loader could use, and why they are refused.
UNUSABLE = {
    "adapter-never-attached": "holds no pair of LoRA factors",
    "adapter-not-loaded": "is not in the base model",
    "wrong-base-model": "the adapter belongs to another model",
}


def there_and_back(source: Path, tmp_path: Path, model: str | None = None) -> dict[str, Any]:
    """The configurations of PEFT and of mlx-lm again; every bit of the tensors comes back."""
    there = convert(source)
    peft = given.write_files(tmp_path / "peft", there.files)
    back = given.write_files(tmp_path / "mlx", (again := convert(peft, model=model)).files)
    assert (there.target, again.target) == ("peft", "mlx")
    assert given.bits(back / "adapters.safetensors") == given.bits(source / "adapters.safetensors")
    return {
        "there": there,
        "peft": given.stated(there.files),
        "mlx": given.stated(again.files),
        "folder": peft,
    }


@pytest.mark.parametrize("name", sorted(set(run_names()) - set(UNUSABLE)))
def test_a_run_comes_back_bit_for_bit(name: str, tmp_path: Path) -> None:
    both = there_and_back(RUNS / name, tmp_path, str(given.BASE))
    assert both["there"].base == given.BASE
    adapter = Adapter.read(RUNS / name)
    assert both["mlx"]["lora_parameters"]["rank"] == adapter.modules[0].rank == 8
    assert f"scale {both['mlx']['lora_parameters']['scale']:g}," in both["there"].summary
    assert both["mlx"]["num_layers"] == len({one.layer for one in adapter.modules})


@pytest.mark.parametrize(("name", "why"), UNUSABLE.items())
def test_an_adapter_that_no_loader_could_use_is_refused(name: str, why: str) -> None:
    with pytest.raises(InputError, match=why):
        convert(RUNS / name)


def test_the_adapter_is_turned_and_named_as_peft_does(tmp_path: Path) -> None:
    both = there_and_back(RUNS / "healthy-ordinary", tmp_path)
    ours, theirs = Adapter.read(both["folder"]), Adapter.read(given.WRITTEN)
    assert ours.naming == "peft"
    assert set(ours.tensors) == set(theirs.tensors)
    assert {n: t.shape for n, t in ours.tensors.items()} == {
        n: t.shape for n, t in theirs.tensors.items()
    }
    config = both["peft"]
    assert (config["r"], config["lora_alpha"]) == (8, 160)
    assert config["base_model_name_or_path"] == "base"


def test_modules_are_named_in_full(tmp_path: Path) -> None:
    names = [given.Q, "model.layers.2.self_attn.q_proj"]
    save(tmp_path / "a" / "adapters.safetensors", lora(dict.fromkeys(names, (96, 96))))
    parameters = {"rank": 4, "scale": 1.0, "keys": ["self_attn.q_proj"]}
    write_config(tmp_path / "a", num_layers=3, model=str(given.BASE), lora_parameters=parameters)
    both = there_and_back(tmp_path / "a", tmp_path, str(given.BASE))
    assert (both["peft"]["target_modules"], both["peft"].get("layers_to_transform")) == (
        names,
        None,
    )
    assert (both["mlx"]["lora_parameters"]["keys"], both["mlx"]["num_layers"]) == (names, 2)


def test_without_the_base_it_is_said(tmp_path: Path) -> None:
    folder = given.peft_adapter(tmp_path / "a")
    for model in (None, "someone/no-such-model-here"):
        converted = convert(folder, model=model)
        assert converted.base is None
        assert given.stated(converted.files)["lora_parameters"]["keys"] == [given.Q, given.V]
        # A hub name is not looked for online.
        assert given.stated(converted.files)["model"] == model
        assert any("no base model was found" in note for note in converted.notes)


@pytest.mark.parametrize("dtype", ["F16", "BF16"])
def test_half_precision_keeps_its_bits(dtype: str, tmp_path: Path) -> None:
    turn: Callable[[Any], Any] = to_bfloat16 if dtype == "BF16" else lambda v: v.astype("f2")
    tensors = {name: turn(values) for name, values in lora(given.SHAPES, b=0.3).items()}
    save(tmp_path / "a" / "adapters.safetensors", tensors, dict.fromkeys(tensors, dtype))
    write_config(tmp_path / "a")
    there_and_back(tmp_path / "a", tmp_path)


def test_a_checkpoint_is_read(tmp_path: Path) -> None:
    folder = given.mlx_adapter(tmp_path / "a")
    expected = convert(folder).files
    (folder / "adapters.safetensors").rename(folder / "0000100_adapters.safetensors")
    assert convert(folder / "0000100_adapters.safetensors").files == expected


def test_values_that_are_not_finite_are_carried_over_and_said() -> None:
    converted = convert(RUNS / "rate-far-too-high-nan")
    assert any("values are NaN or infinite" in note for note in converted.notes)


def with_magnitudes(tensors: Tensors) -> Tensors:
    sizes = {name: outputs for name, (_, outputs) in given.SHAPES.items()}
    return tensors | {f"{n}.m": np.linspace(0.5, 2, size, dtype="f4") for n, size in sizes.items()}


def test_dora_comes_back_bit_for_bit(tmp_path: Path) -> None:
    folder = given.mlx_adapter(tmp_path / "a", with_magnitudes, fine_tune_type="dora")
    both = there_and_back(folder, tmp_path)
    assert (both["peft"]["use_dora"], both["mlx"]["fine_tune_type"]) == (True, "dora")
    name = f"base_model.model.{given.Q}.lora_magnitude_vector"
    assert given.bits(both["folder"] / "adapter_model.safetensors")[name][1] == (96,)


@pytest.mark.parametrize("scale", [20.0, 0.1, 1 / 3, 2.0**0.5, -1.5, 1e-3, 7.7])
@pytest.mark.parametrize("rank", [1, 3, 4, 5, 6, 7, 12])
def test_the_scale_is_the_same_in_single_precision(scale: float, rank: int, tmp_path: Path) -> None:
    save(tmp_path / "a" / "adapters.safetensors", lora(given.SHAPES, rank=rank))
    write_config(tmp_path / "a", lora_parameters={"rank": rank, "scale": scale, "dropout": 0.25})
    config = given.stated(convert(tmp_path / "a").files)
    assert np.float32(config["lora_alpha"] / config["r"]) == np.float32(scale)
    assert config["lora_dropout"] == 0.25


def test_rslora_divides_by_the_root_of_the_rank(tmp_path: Path) -> None:
    converted = convert(given.peft_adapter(tmp_path / "a", use_rslora=True))
    assert given.stated(converted.files)["lora_parameters"]["scale"] == 4.0


@pytest.mark.slow
@pytest.mark.parametrize("kind", given.KINDS)
def test_what_mlx_lm_saved_comes_back_bit_for_bit(kind: str, tmp_path: Path) -> None:
    source = given.saved_by_mlx(tmp_path / "a", *given.KINDS[kind])
    there_and_back(source, tmp_path)
    # Other keys and layers in the configuration than before, and the same answers.
    assert np.array_equal(given.logits(tmp_path / "mlx"), before := given.logits(source))
    assert np.abs(before - given.logits(None)).max() > 0.1


@pytest.mark.slow
def test_what_peft_wrote_gives_the_logits_that_peft_computed(tmp_path: Path) -> None:
    files = convert(given.WRITTEN).files
    assert given.stated(files)["num_layers"] == 4
    recorded = np.load(given.WRITTEN / "logits.npz")
    ours = given.logits(given.write_files(tmp_path / "mlx", files), recorded["tokens"])
    assert np.abs(ours - recorded["logits"]).max() < 1e-4
    assert np.abs(given.logits(None, recorded["tokens"]) - recorded["logits"]).max() > 1
