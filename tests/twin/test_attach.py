"""The model: frozen, converted, verified; whatever else would be trained is an error."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mlxdoctor.safety.errors import InputError
from tests.conftest import FIXTURES
from tests.twin.small import small_model, small_moe, small_settings

pytestmark = pytest.mark.slow

LORA = {"rank": 2, "scale": 4.0, "dropout": 0.0}


def trainable(model: Any) -> set[str]:
    from mlx.utils import tree_flatten

    return {name for name, _ in tree_flatten(model.trainable_parameters())}


def test_only_the_adapter_is_trainable(tmp_path: Path) -> None:
    from mlxdoctor.twin.attach import prepare

    model = small_model()
    keys = ["self_attn.q_proj", "mlp.down_proj"]
    prepare(model, small_settings(tmp_path, num_layers=1, lora_parameters={**LORA, "keys": keys}))
    names = {f"model.layers.1.{key}.{leaf}" for key in keys for leaf in ("lora_a", "lora_b")}
    assert trainable(model) == names


def test_dora_trains_magnitudes_too(tmp_path: Path) -> None:
    from mlxdoctor.twin.attach import prepare

    model = small_model()
    prepare(model, small_settings(tmp_path, fine_tune_type="dora"))
    assert {name.rpartition(".")[2] for name in trainable(model)} == {"lora_a", "lora_b", "m"}


def test_full_trains_the_last_layers_and_nothing_else(tmp_path: Path) -> None:
    from mlxdoctor.twin.attach import prepare

    model = small_model()
    prepare(model, small_settings(tmp_path, fine_tune_type="full", num_layers=1))
    assert trainable(model)
    assert all(name.startswith("model.layers.1.") for name in trainable(model))


def test_expert_layers_are_converted(tmp_path: Path) -> None:
    from mlxdoctor.twin.attach import prepare

    model = small_moe()
    prepare(model, small_settings(tmp_path))
    assert any("switch_mlp" in name for name in trainable(model))


def refusal(model: Any, **values: Any) -> str:
    from mlxdoctor.twin.attach import prepare

    with pytest.raises(InputError) as caught:
        prepare(model, small_settings(Path("unused"), **values))
    return str(caught.value)


def test_a_base_that_is_not_frozen_is_refused(tmp_path: Path) -> None:
    from mlxdoctor.twin.attach import convert, verify

    model, settings = small_model(), small_settings(tmp_path)
    convert(model, settings)
    with pytest.raises(InputError, match=r"parameters outside the adapter .*embed_tokens"):
        verify(model, settings)


def test_an_adapter_frozen_with_the_rest_is_refused(tmp_path: Path) -> None:
    from mlxdoctor.twin.attach import convert, verify

    model, settings = small_model(), small_settings(tmp_path)
    convert(model, settings)
    model.freeze()
    with pytest.raises(InputError, match="no parameter would be trained"):
        verify(model, settings)
    model.layers[0].self_attn.q_proj.unfreeze(keys=["lora_a", "lora_b"], recurse=False)
    with pytest.raises(InputError, match=r"the adapter on .* is frozen"):
        verify(model, settings)


def test_an_adapter_that_was_never_attached_is_refused(tmp_path: Path) -> None:
    from mlxdoctor.twin.attach import verify

    model = small_model()
    model.freeze()
    with pytest.raises(InputError, match="no parameter would be trained"):
        verify(model, small_settings(tmp_path))


def test_keys_that_name_nothing_are_refused_with_a_hint() -> None:
    keys = ["self_attn.q_proj", "self_attn.kproj"]
    said = refusal(small_model(), lora_parameters={**LORA, "keys": keys})
    assert "'self_attn.kproj', which names no module" in said
    assert "did you mean 'self_attn.k_proj'?" in said


def test_in_parity_a_key_that_names_nothing_is_passed_over_as_in_mlx_lm(tmp_path: Path) -> None:
    from mlxdoctor.twin.attach import prepare

    model = small_model()
    keys = ["self_attn.q_proj", "self_attn.kproj"]
    parity = {"mode": "parity"}
    lora = {**LORA, "keys": keys}
    prepare(model, small_settings(tmp_path, lora_parameters=lora, mlxdoctor=parity))
    assert len(trainable(model)) == 4


def test_more_layers_than_there_are_are_refused() -> None:
    assert "num_layers is 3, but the model has 2 layers" in refusal(small_model(), num_layers=3)


def test_dora_on_a_base_of_odd_bits_is_refused(tmp_path: Path) -> None:
    from mlx import nn

    from mlxdoctor.twin.attach import prepare

    for bits in (3, 4):
        model = small_model(hidden_size=64, intermediate_size=64)
        nn.quantize(model, group_size=32, bits=bits)
        lora = {**LORA, "keys": ["self_attn.q_proj"]}
        settings = small_settings(tmp_path, fine_tune_type="dora", lora_parameters=lora)
        if bits == 4:
            prepare(model, settings)
            continue
        with pytest.raises(InputError, match="3 bits a weight"):
            prepare(model, settings)


def test_an_adapter_to_start_from_must_fit(tmp_path: Path) -> None:
    import mlx.core as mx
    from mlx.utils import tree_flatten

    from mlxdoctor.twin.attach import prepare

    first = small_model()
    prepare(first, small_settings(tmp_path))
    weights = {name: one + 1 for name, one in tree_flatten(first.trainable_parameters())}
    path = tmp_path / "start.safetensors"
    mx.save_safetensors(str(path), weights)
    again = small_model()
    prepare(again, small_settings(tmp_path, resume_adapter_file=str(path)))
    loaded = dict(tree_flatten(again.trainable_parameters()))
    assert all((loaded[name] == one).all().item() for name, one in weights.items())

    one, *others = sorted(weights)
    mx.save_safetensors(str(path), {**{name: weights[name] for name in others}, "x": mx.zeros(2)})
    said = refusal(small_model(), resume_adapter_file=str(path))
    assert f"1 tensors are missing, such as {one}; 1 do not belong to this run, such as x" in said
    rank = {**LORA, "rank": 3}
    mx.save_safetensors(str(path), weights)
    said = refusal(small_model(), resume_adapter_file=str(path), lora_parameters=rank)
    assert "28 have another shape" in said
    assert "cannot be loaded" in refusal(small_model(), resume_adapter_file="no-such-file")


def test_recomputed_activations_give_the_same_gradient_and_change_this_model_only(
    tmp_path: Path,
) -> None:
    import mlx.core as mx
    from mlx import nn
    from mlx.utils import tree_flatten

    from mlxdoctor.twin.attach import prepare, recomputed_activations
    from mlxdoctor.twin.masked_loss import exact_loss

    model, other = small_model(), small_model()
    prepare(model, small_settings(tmp_path))
    tokens, spans = mx.array([[5, 6, 7, 8, 9]]), mx.array([[1, 5]])
    kind, call = type(other.layers[0]), type(other.layers[0]).__call__

    def gradient() -> dict[str, Any]:
        _, found = nn.value_and_grad(model, exact_loss)(model, tokens, spans)
        return dict(tree_flatten(found))

    plain = gradient()
    with recomputed_activations(model.layers):
        assert all(type(layer) is not kind for layer in model.layers)
        assert all(type(layer) is kind for layer in other.layers)
        recomputed = gradient()
    assert kind.__call__ is call
    assert all(type(layer) is kind for layer in model.layers)
    assert plain.keys() == recomputed.keys()
    assert all(mx.allclose(plain[name], recomputed[name], atol=1e-6).item() for name in plain)
    assert any(mx.abs(one).max().item() > 1e-4 for one in plain.values())


def test_a_model_that_is_not_here_is_not_fetched(tmp_path: Path) -> None:
    from mlxdoctor.twin.attach import load_base

    with pytest.raises(InputError, match="nothing is downloaded"):
        load_base(small_settings(tmp_path, model="someone/some-model"))
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(InputError, match=r"holds no \.safetensors weights"):
        load_base(small_settings(tmp_path, model=str(tmp_path)))


def test_data_that_are_not_here_are_not_fetched(tmp_path: Path) -> None:
    from mlxdoctor.twin.attach import load_base
    from mlxdoctor.twin.token_rows import encode

    base = str(FIXTURES / "base")
    _, tokenizer = load_base(small_settings(tmp_path, model=base))
    for data, problem in (
        ("someone/some-data", "there is no such data folder"),
        (str(tmp_path), "has no train.jsonl"),
    ):
        with pytest.raises(InputError, match=problem):
            encode(small_settings(tmp_path, data=data), tokenizer)
    (tmp_path / "train.jsonl").write_text('{"messages": [}\n')
    with pytest.raises(InputError, match="not JSON"):
        encode(small_settings(tmp_path, data=str(tmp_path)), tokenizer)
    (tmp_path / "train.jsonl").write_text('{"question": "a"}\n')
    with pytest.raises(InputError, match="cannot be read by mlx-lm"):
        encode(small_settings(tmp_path, data=str(tmp_path)), tokenizer)


def test_rows_are_encoded_as_mlx_lm_encodes_them(tmp_path: Path) -> None:
    from mlx_lm.tuner.datasets import load_local_dataset

    from mlxdoctor.twin.attach import load_base
    from mlxdoctor.twin.token_rows import encode

    data = FIXTURES / "data" / "geography"
    settings = small_settings(
        tmp_path, model=str(FIXTURES / "base"), data=str(data), mask_prompt=True
    )
    _, tokenizer = load_base(settings)
    rows = encode(settings, tokenizer)
    assert (len(rows.train), len(rows.valid), len(rows.test)) == (200, 40, 40)
    theirs = load_local_dataset(data, tokenizer, SimpleNamespace(mask_prompt=True))[0]
    for index in (0, 7, 199):
        tokens, offset = theirs.process(theirs[index])
        assert rows.train[index].tokens.tolist() == tokens
        assert rows.train[index].offset == offset > 1
        assert rows.train[index].keys == 1
