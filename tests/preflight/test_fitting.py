"""What to change so that training fits: the cheapest that suffices, and nothing where it fits."""

from dataclasses import replace

import pytest

from mlxdoctor.preflight.fitting import (
    KINDS,
    FittingLimits,
    PlannedRows,
    fits,
    quantised,
    ways_to_fit,
)
from mlxdoctor.preflight.memory import predict_memory
from mlxdoctor.preflight.model_shape import ModelShape, shape_of_name
from mlxdoctor.preflight.planned_step import PlannedStep

STEP = PlannedStep(batch_size=4, tokens=1024, num_layers=16, device="metal")
ROWS = PlannedRows(iterations=1000)
GB = 10**9


@pytest.fixture(scope="module")
def model() -> ModelShape:
    shape = shape_of_name("Llama-3.2-3B-Instruct")
    assert shape is not None
    return shape


def test_nothing_is_changed_where_it_fits(model: ModelShape) -> None:
    peak = predict_memory(model, STEP).peak
    assert fits(predict_memory(model, STEP), 2 * peak)
    assert ways_to_fit(model, STEP, 2 * peak, ROWS) == ()


def test_the_room_left_is_the_error_of_the_prediction(model: ModelShape) -> None:
    estimate = predict_memory(model, STEP)
    share = FittingLimits().share
    assert not fits(estimate, int(estimate.peak / share) - 1000)
    assert fits(estimate, int(estimate.peak / share) + 1000)


@pytest.mark.parametrize("gigabytes", [7, 8, 10, 14])
def test_every_way_fits_and_none_holds_another(model: ModelShape, gigabytes: int) -> None:
    memory = gigabytes * GB
    ways = ways_to_fit(model, STEP, memory, ROWS)
    kinds = [{one.kind for one in way.changes} for way in ways]
    for way in ways:
        assert way.estimate == predict_memory(way.model, way.step)
        assert fits(way.estimate, memory)
    for one in kinds:
        assert not any(other < one for other in kinds)
    dearest = [max(KINDS.index(kind) for kind in one) for one in kinds]
    assert dearest == sorted(dearest)


def test_checkpointing_comes_first_where_it_suffices(model: ModelShape) -> None:
    peak = predict_memory(model, replace(STEP, grad_checkpoint=True)).peak
    first = ways_to_fit(model, STEP, int(peak * 1.2), ROWS)[0]
    assert [one.kind for one in first.changes] == ["checkpointing"]
    assert first.settings == {"grad_checkpoint": True}


def test_a_smaller_batch_keeps_rows_an_update_and_their_number(model: ModelShape) -> None:
    step = replace(STEP, grad_checkpoint=True)
    peak = predict_memory(model, replace(step, batch_size=2, grad_accumulation_steps=2)).peak
    first = ways_to_fit(model, step, int(peak * 1.16), ROWS)[0]
    assert first.settings == {
        "batch_size": 2,
        "grad_accumulation_steps": 2,
        "iters": 2000,
        "steps_per_eval": 400,
        "save_every": 200,
    }
    assert first.step.batch_size * first.step.grad_accumulation_steps == 4


def test_the_length_is_lowered_only_to_where_no_answer_is_cut(model: ModelShape) -> None:
    rows = replace(ROWS, max_seq_length=1025, uncut=513)
    ways = ways_to_fit(model, STEP, 11 * GB, rows)
    lengths = [way for way in ways if any(one.kind == "length" for one in way.changes)]
    assert all(way.settings["max_seq_length"] == 513 for way in lengths)
    assert all(way.step.tokens == 512 for way in lengths)
    assert not any("max_seq_length" in way.settings for way in ways_to_fit(model, STEP, GB, ROWS))


def test_nothing_helps_where_the_weights_alone_are_too_large(model: ModelShape) -> None:
    assert ways_to_fit(model, STEP, GB, ROWS) == ()


def test_a_model_at_four_bits(model: ModelShape) -> None:
    packed = quantised(model)
    assert packed.is_quantised
    assert packed.stored < 0.5 * model.stored
    assert [one.size for one in packed.layers[0].matrices] == [
        one.size for one in model.layers[0].matrices
    ]


def test_a_measured_peak_scales_what_the_batch_takes_and_not_the_weights(model: ModelShape) -> None:
    estimate = predict_memory(model, STEP)
    ways = ways_to_fit(model, STEP, int(1.2 * estimate.peak), ROWS, factor=1.5)
    assert ways
    weights = {way.estimate.parts[0].bytes for way in ways if way.model == model}
    assert weights <= {model.stored}
    for way in ways:
        assert way.estimate.is_measured
        assert way.estimate.peak > predict_memory(way.model, way.step).peak
        assert fits(way.estimate, int(1.2 * estimate.peak))
