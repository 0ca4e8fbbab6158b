"""Peak memory from shapes, and time from timed steps."""

from dataclasses import replace
from pathlib import Path

import pytest

from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.preflight.model_shape import Matrix, ModelShape, shape_of
from mlxdoctor.preflight.predict import (
    PlannedStep,
    TimedBatch,
    optimizer_bytes,
    predict_memory,
    predict_time,
    trained_bytes,
    width,
)

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


@pytest.mark.parametrize(
    ("longest", "limit", "inputs"),
    [(1, 2048, 32), (32, 2048, 32), (33, 2048, 64), (500, 200, 199), (64, 65, 64)],
)
def test_rows_are_padded_to_multiples_of_32_plus_one_and_cut(
    longest: int, limit: int, inputs: int
) -> None:
    assert width(longest, limit) == inputs


def peak(model: ModelShape, step: PlannedStep) -> int:
    return sum(predict_memory(model, step).values())


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
    whole = [layer.other + sum(one.stored for one in layer.matrices) for layer in tiny.layers]
    assert trained_bytes(tiny, full) == sum(whole)


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
    assert peak(tiny, replace(STEP, **less)) < peak(tiny, replace(STEP, **more))


def test_a_packed_model_keeps_its_unpacked_weights_only_for_dora(tiny: ModelShape) -> None:
    layer = tiny.layers[0]
    packed = replace(layer, matrices=tuple(replace(one, quantised=True) for one in layer.matrices))
    model = replace(tiny, layers=(packed,) * 4)
    more = peak(model, replace(STEP, fine_tune_type="dora")) - peak(model, STEP)
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
    assert peak(two, STEP) > 1.2 * peak(one, STEP)
    assert trained_bytes(two, STEP) > 4 * trained_bytes(tiny, STEP)


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


def timed(tokens: int, rows: int = 4) -> TimedBatch:
    """A machine that takes 20 ms, 0.1 ms a token, and 1 ns a token and token before it."""
    count = rows * tokens
    return TimedBatch(rows, tokens, 0.02 + 1e-4 * count + 1e-9 * count * tokens)


def told(widths: list[int], trained: list[TimedBatch], validations: int = 0) -> list[float]:
    """Low, likeliest and high seconds of 1,000 iterations; a validation batch takes a quarter."""
    validated = [replace(batch, seconds=batch.seconds / 4) for batch in trained]
    return list(
        predict_time(
            1000, 4, widths, validation_batches=validations, trained=trained, validated=validated
        )
    )


@pytest.mark.parametrize("lengths", [[128], [64, 256], [64, 128, 512], [32, 64, 128, 256, 512]])
def test_steps_of_several_lengths_give_the_time_of_another(lengths: list[int]) -> None:
    low, likely, high = told([128], [timed(one) for one in lengths])
    assert likely == pytest.approx(1000 * timed(128).seconds, rel=0.02)
    assert low < likely < high


def test_rows_of_mixed_length_count_as_they_come() -> None:
    likely = told([32, 32, 32, 480], [timed(32), timed(96), timed(480)])[1]
    assert likely == pytest.approx(250 * (3 * timed(32).seconds + timed(480).seconds), rel=0.02)


def test_validations_cost_what_they_took() -> None:
    likely = told([128], [timed(128)], validations=400)[1]
    assert likely == pytest.approx(1100 * timed(128).seconds)


def test_the_range_widens_beyond_what_was_timed_and_where_steps_disagree() -> None:
    near, far = told([128], [timed(128)]), told([1024], [timed(128)])
    assert far[2] / far[1] > near[2] / near[1]
    noisy = [replace(timed(128), seconds=timed(128).seconds * factor) for factor in (0.6, 1.4)]
    assert told([128], noisy)[2] > 2 * told([128], noisy)[0]
