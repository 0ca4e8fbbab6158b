"""The model: frozen, converted, verified; whatever else would be trained is an error."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx import nn
from mlx.utils import tree_flatten

from mlxdoctor.safety.errors import InputError
from mlxdoctor.twin.attach import prepare, recompute_activations
from mlxdoctor.twin.masked_loss import exact_loss
from mlxdoctor.twin.prepared import parts_of
from mlxdoctor.twin.settings import Settings
from mlxdoctor.twin.token_rows import encode
from tests.conftest import FIXTURES
from tests.twin.small import small_model, small_moe, small_settings

pytestmark = pytest.mark.slow

LORA = {"rank": 2, "scale": 4.0, "dropout": 0.0}
Q = {**LORA, "keys": ["self_attn.q_proj"]}
QK = {**LORA, "keys": ["self_attn.q_proj", "self_attn.kproj"]}
PARITY = {"mode": "parity"}


def quantized(bits: int) -> Any:
    model = small_model(hidden_size=64, intermediate_size=64)
    nn.quantize(model, group_size=32, bits=bits)
    return model


def load_base(settings: Settings) -> tuple[Any, Any]:
    return parts_of(settings).load(settings)


def trainable(model: Any) -> set[str]:
    return {name for name, _ in tree_flatten(model.trainable_parameters())}


@pytest.mark.parametrize(
    ("model", "values", "expected"),
    [
        (small_model, {"num_layers": 1, "lora_parameters": Q}, {"lora_a", "lora_b"}),
        (small_model, {"fine_tune_type": "dora"}, {"lora_a", "lora_b", "m"}),
        (small_model, {"fine_tune_type": "full", "num_layers": 1}, {"weight"}),
        (small_moe, {}, {"lora_a", "lora_b"}),
        # mlx-lm passes over a key that names nothing, and so does parity.
        (small_model, {"lora_parameters": QK, "mlxdoctor": PARITY}, {"lora_a", "lora_b"}),
        (
            lambda: quantized(4),
            {"fine_tune_type": "dora", "lora_parameters": Q},
            {"lora_a", "lora_b", "m"},
        ),
    ],
    ids=["one layer", "dora", "full", "experts", "parity", "4 bits"],
)
def test_exactly_what_is_asked_for_is_trainable(
    tmp_path: Path, model: Callable[[], Any], values: dict[str, Any], expected: set[str]
) -> None:
    made = model()
    prepare(made, small_settings(tmp_path, **values))
    names = trainable(made)
    assert {name.rpartition(".")[2] for name in names} == expected
    layers = {"0", "1"} if values.get("num_layers") != 1 else {"1"}
    assert {name.split(".")[2] for name in names} == layers
    keys = values.get("lora_parameters", {}).get("keys")
    assert not keys or {name.rpartition(".")[0].split(".", 3)[3] for name in names} == {keys[0]}
    assert model is not small_moe or any("switch_mlp" in name for name in names)


@pytest.mark.parametrize(
    ("model", "values", "problem"),
    [
        (small_model, {"lora_parameters": QK}, "'self_attn.kproj', which names no module"),
        (small_model, {"lora_parameters": QK}, "did you mean 'self_attn.k_proj'?"),
        (small_model, {"num_layers": 3}, "num_layers is 3, but the model has 2 layers"),
        (
            lambda: quantized(3),
            {"fine_tune_type": "dora", "lora_parameters": Q},
            "3 bits a weight",
        ),
        (small_model, {"resume_adapter_file": "no-such-file"}, "cannot be loaded"),
        (
            small_model,
            {"mlxdoctor": PARITY, "lora_parameters": {**LORA, "keys": ["none"]}},
            "no parameter would be trained",
        ),
    ],
)
def test_what_does_not_fit_the_model_is_refused(
    tmp_path: Path, model: Callable[[], Any], values: dict[str, Any], problem: str
) -> None:
    with pytest.raises(InputError) as caught:
        prepare(model(), small_settings(tmp_path, **values))
    assert problem in str(caught.value)


def test_an_adapter_to_start_from_must_fit(tmp_path: Path) -> None:
    first, again = small_model(), small_model()
    prepare(first, small_settings(tmp_path))
    weights = {name: array + 1 for name, array in tree_flatten(first.trainable_parameters())}
    path = tmp_path / "start.safetensors"

    def resumed(stored: dict[str, Any], model: Any, **values: Any) -> None:
        mx.save_safetensors(str(path), stored)
        prepare(model, small_settings(tmp_path, resume_adapter_file=str(path), **values))

    resumed(weights, again)
    loaded = dict(tree_flatten(again.trainable_parameters()))
    assert all((loaded[name] == array).all().item() for name, array in weights.items())
    lost, *others = sorted(weights)
    foreign = {**{name: weights[name] for name in others}, "x": mx.zeros(2)}
    said = f"1 tensors are missing, such as {lost}; 1 do not belong to this run, such as x"
    with pytest.raises(InputError, match=said):
        resumed(foreign, small_model())
    with pytest.raises(InputError, match="28 have another shape"):
        resumed(weights, small_model(), lora_parameters={**LORA, "rank": 3})


def test_recomputed_activations_give_the_same_gradient_and_change_this_model_only(
    tmp_path: Path,
) -> None:
    model, other = small_model(), small_model()
    prepare(model, small_settings(tmp_path))
    tokens, spans = mx.array([[5, 6, 7, 8, 9]]), mx.array([[1, 5]])
    kind, call = type(other.layers[0]), type(other.layers[0]).__call__

    def gradient() -> dict[str, Any]:
        _, tree = nn.value_and_grad(model, exact_loss)(model, tokens, spans)
        return dict(tree_flatten(tree))

    plain = gradient()
    list(map(recompute_activations, model.layers))
    assert all(type(layer) is not kind for layer in model.layers)
    assert all(type(layer) is kind for layer in other.layers)
    recomputed = gradient()
    assert kind.__call__ is call
    assert plain.keys() == recomputed.keys()
    assert all(mx.allclose(plain[name], recomputed[name], atol=1e-6).item() for name in plain)
    assert any(mx.abs(array).max().item() > 1e-4 for array in plain.values())


def test_what_is_not_here_is_not_fetched(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nothing is downloaded"):
        load_base(small_settings(tmp_path, model="someone/some-model"))
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(InputError, match=r"holds no \.safetensors weights"):
        load_base(small_settings(tmp_path, model=str(tmp_path)))
    _, tokenizer = load_base(small_settings(tmp_path, model=str(FIXTURES / "base")))
    for data, rows, problem in (
        ("someone/some-data", None, "there is no such data folder"),
        (str(tmp_path), None, "has no train.jsonl"),
        (str(tmp_path), '{"messages": [}\n', "not JSON"),
        (str(tmp_path), '{"question": "a"}\n', "cannot be read by mlx-lm"),
    ):
        if rows is not None:
            (tmp_path / "train.jsonl").write_text(rows)
        with pytest.raises(InputError, match=problem):
            encode(small_settings(tmp_path, data=data), tokenizer)


def test_rows_without_a_validation_set_print_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    rows = (FIXTURES / "data" / "geography" / "train.jsonl").read_text()
    (tmp_path / "train.jsonl").write_text(rows)
    _, tokenizer = load_base(small_settings(tmp_path, model=str(FIXTURES / "base")))
    capfd.readouterr()
    assert not encode(small_settings(tmp_path, data=str(tmp_path)), tokenizer).valid
    assert not capfd.readouterr().out
