"""Peak memory from shapes: what grows with what, and the parts add up."""

from dataclasses import replace
from pathlib import Path

import pytest

from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.preflight.memory import (
    MeasuredStep,
    corrected,
    optimizer_bytes,
    predict_memory,
    trained_bytes,
)
from mlxdoctor.preflight.model_shape import Matrix, ModelShape, shape_of, shape_of_name
from mlxdoctor.preflight.planned_step import PlannedStep, batches, longest_batch, width

BASE = Path(__file__).resolve().parents[2] / "fixtures" / "base"


@pytest.fixture(scope="module")
def tiny() -> ModelShape:
    shape = shape_of(BaseModel.read(BASE))
    assert shape is not None
    return shape


STEP = PlannedStep(batch_size=4, tokens=128, num_layers=-1)


def test_the_shape_of_a_model_at_hand(tiny: ModelShape) -> None:
    assert (tiny.hidden, tiny.heads, tiny.kv_heads, tiny.head) == (96, 4, 2, 24)
    assert (tiny.vocabulary, tiny.number, len(tiny.layers)) == (768, 4, 4)
    names = {one.name: (one.inputs, one.outputs) for one in tiny.layers[0].matrices}
    assert names["self_attn.k_proj"] == (96, 48)
    assert names["mlp.down_proj"] == (256, 96)
    assert not tiny.is_rough
    weights = (BASE / "model.safetensors").stat().st_size
    assert tiny.stored == pytest.approx(weights, rel=0.02)


def test_a_shape_from_a_name_is_rough_and_about_as_large() -> None:
    shape = shape_of_name("mlx-community/Llama-3.1-8B-Instruct-4bit")
    assert shape is not None
    assert shape.is_rough
    assert shape.is_quantised
    # Llama 3.1 8B: width 4096, 32 layers, 4.5 GB at 4 bits.
    assert shape.hidden == pytest.approx(4096, rel=0.15)
    assert len(shape.layers) == pytest.approx(32, rel=0.15)
    assert shape.stored == pytest.approx(4.5e9, rel=0.1)
    assert shape_of_name("my-model") is None


@pytest.mark.parametrize(
    ("longest", "limit", "inputs"),
    [(1, 2048, 32), (32, 2048, 32), (33, 2048, 64), (500, 200, 199), (64, 65, 64)],
)
def test_rows_are_padded_to_multiples_of_32_plus_one_and_cut(
    longest: int, limit: int, inputs: int
) -> None:
    assert width(longest, limit) == inputs


def test_batches_keep_the_order_of_the_file_where_rows_have_as_many_keys() -> None:
    assert batches([1, 1, 1, 1, 1], 2) == [[0, 1], [2, 3]]
    assert batches([2, 1, 2, 1], 2) == [[1, 3], [0, 2]]
    # The longest row stands last, and is left over.
    assert longest_batch([10, 20, 900], 2, 2048) == 32
    assert longest_batch([10], 2, 2048) == 0


def test_the_parts_add_up_and_each_has_a_sentence(tiny: ModelShape) -> None:
    found = predict_memory(tiny, STEP)
    assert sum(one.bytes for one in found.parts) == found.training
    assert found.peak == found.training
    assert all(one.sentence.endswith(".") and one.bytes >= 0 for one in found.parts)
    assert not found.is_rough
    assert not found.is_measured


def test_what_is_trained_is_counted_as_mlx_lm_counts_it(tiny: ModelShape) -> None:
    # q 96+96, k and v 96+48, o 96+96, gate and up 96+256, down 256+96: times rank 8, 4 layers.
    numbers = 4 * 8 * (192 + 144 + 144 + 192 + 352 + 352 + 352)
    assert trained_bytes(tiny, STEP) == 4 * numbers
    two = replace(STEP, num_layers=2)
    assert trained_bytes(tiny, two) == 2 * numbers
    only = replace(STEP, keys=("self_attn.q_proj",))
    assert trained_bytes(tiny, only) == 4 * 4 * 8 * 192
    outputs = 96 + 48 + 48 + 96 + 256 + 256 + 96
    assert trained_bytes(tiny, replace(STEP, fine_tune_type="dora")) == 4 * (numbers + 4 * outputs)
    full = replace(STEP, fine_tune_type="full")
    assert trained_bytes(tiny, full) == sum(layer.stored for layer in tiny.layers)


@pytest.mark.parametrize(
    ("optimizer", "states"), [("adam", 2), ("adamw", 2), ("sgd", 1), ("muon", 1)]
)
def test_the_optimisers_state(tiny: ModelShape, optimizer: str, states: int) -> None:
    step = replace(STEP, optimizer=optimizer)
    assert optimizer_bytes(tiny, step) == states * trained_bytes(tiny, step)


def test_adafactor_keeps_less_than_adam(tiny: ModelShape) -> None:
    full = replace(STEP, fine_tune_type="full")
    factored = optimizer_bytes(tiny, replace(full, optimizer="adafactor"))
    assert factored < 0.05 * optimizer_bytes(tiny, full)


@pytest.mark.parametrize(
    ("less", "more"),
    [
        ({"num_layers": 2}, {}),
        ({"grad_checkpoint": True}, {}),
        ({"batch_size": 2}, {}),
        ({"tokens": 64}, {}),
        ({"keys": ("self_attn.q_proj", "self_attn.v_proj")}, {}),
        ({}, {"fine_tune_type": "dora"}),
        ({}, {"grad_accumulation_steps": 2}),
        ({}, {"rank": 64}),
        ({"device": "cuda"}, {}),
    ],
)
def test_what_takes_less(tiny: ModelShape, less: dict, more: dict) -> None:
    assert (
        predict_memory(tiny, replace(STEP, **less)).peak
        < predict_memory(tiny, replace(STEP, **more)).peak
    )


def test_a_packed_model_keeps_its_unpacked_weights_only_for_dora(tiny: ModelShape) -> None:
    layer = tiny.layers[0]
    packed = replace(layer, matrices=tuple(replace(one, quantised=True) for one in layer.matrices))
    model = replace(tiny, layers=(packed,) * 4)
    lora, dora = (
        predict_memory(model, STEP),
        predict_memory(model, replace(STEP, fine_tune_type="dora")),
    )
    more = dora.training - lora.training
    assert more > sum(4 * 4 * one.size for one in layer.matrices)


def test_stacked_experts_count_as_often_as_a_token_passes_them(tiny: ModelShape) -> None:
    experts = tuple(
        Matrix(f"mlp.switch_mlp.{one.name.rsplit('.')[-1]}", one.inputs, one.outputs, 8)
        if one.name.startswith("mlp")
        else one
        for one in tiny.layers[0].matrices
    )
    layers = (replace(tiny.layers[0], matrices=experts),) * 4
    one, two = (replace(tiny, layers=layers, experts_a_token=count) for count in (1, 2))
    assert predict_memory(two, STEP).peak > 1.2 * predict_memory(one, STEP).peak
    assert trained_bytes(two, STEP) > 4 * trained_bytes(tiny, STEP)


def test_one_real_step_corrects_the_activations(tiny: ModelShape) -> None:
    estimate = predict_memory(tiny, STEP)
    found = corrected(estimate, lambda: MeasuredStep(2 * estimate.training, 1.0))
    assert found.peak == 2 * estimate.training
    assert found.is_measured
    assert sum(one.bytes for one in found.parts) == pytest.approx(found.peak, abs=10)
    assert found.parts[0] == estimate.parts[0]
    # The first step of all has no state of the optimiser beside it.
    state = optimizer_bytes(tiny, STEP)
    first = corrected(estimate, lambda: MeasuredStep(2 * estimate.training, 1.0, is_first=True))
    assert first.peak == 2 * estimate.training + state
    assert corrected(estimate, lambda: None) is estimate


def test_layers_of_another_kind_are_marked_as_rough() -> None:
    base = BaseModel.read(BASE)
    recurrent = replace(
        base,
        tensors={name.replace("self_attn", "mixer"): one for name, one in base.tensors.items()},
    )
    shape = shape_of(recurrent)
    assert shape is not None
    assert shape.is_rough
    latent = shape_of(replace(base, config={**base.config, "kv_lora_rank": 64}))
    assert latent is not None
    assert latent.is_rough
    assert shape_of(replace(base, config={"model_type": "llama"})) is None
