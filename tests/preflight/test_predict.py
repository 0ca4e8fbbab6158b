"""Peak memory from shapes, and time from timed steps."""

import json
import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from fixtures.lab.preflight.memory import Configuration, predicted
from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.preflight.configuration import planned_config
from mlxdoctor.twin.predict import Device, Memory, Timed, TimedBatch, predict_memory, predict_time
from tests.conftest import BASE, ROOT
from tests.processes import python

LORA = {"rank": 8, "scale": 20.0, "dropout": 0.0}
TINY = BaseModel.read(BASE)


def memory(
    base: BaseModel, tokens: int = 128, device: Device = "cpu", lora: Any = (), **changes: Any
) -> Memory:
    """What is predicted for a plan on all layers, but for what is named."""
    values = {"num_layers": -1, "lora_parameters": {**LORA, **dict(lora)}, **changes}
    return predict_memory(base, planned_config(None, values), tokens, device)


def test_the_parts_add_up() -> None:
    found = memory(TINY)
    assert sum(found.parts.values()) == found.peak
    assert all(size > 0 for size in found.parts.values())
    weights = (BASE / "model.safetensors").stat().st_size
    assert found.parts["weights"] == pytest.approx(weights, rel=0.02)
    assert not found.is_rough


#: q 96+96, k and v 96+48, o 96+96, gate and up 96+256, down 256+96: times rank 8, 4 layers.
NUMBERS = 4 * 8 * (192 + 144 + 144 + 192 + 352 + 352 + 352)


@pytest.mark.parametrize(
    ("changes", "lora", "numbers"),
    [
        ({}, {}, NUMBERS),
        ({"num_layers": 2}, {}, NUMBERS // 2),
        ({}, {"keys": ["self_attn.q_proj"]}, 4 * 8 * 192),
        ({}, {"rank": 16}, 2 * NUMBERS),
        ({"fine_tune_type": "dora"}, {}, NUMBERS + 4 * (96 + 48 + 48 + 96 + 256 + 256 + 96)),
    ],
)
def test_what_is_trained_is_counted_as_mlx_lm_counts_it(
    changes: dict[str, Any], lora: dict[str, Any], numbers: int
) -> None:
    assert memory(TINY, lora=lora, **changes).parts["adapters"] == 4 * numbers


@pytest.mark.parametrize(
    ("optimizer", "states"), [("adam", 2), ("adamw", 2), ("sgd", 1), ("muon", 1)]
)
def test_the_optimisers_state(optimizer: str, states: int) -> None:
    found = memory(TINY, optimizer=optimizer)
    assert found.parts["optimiser"] == states * found.parts["adapters"]
    # In full fine-tuning of all layers it keeps them for all but the embedding and the last norm.
    full = memory(TINY, optimizer=optimizer, fine_tune_type="full")
    outside = 4 * (768 * 96 + 96)
    assert full.parts["optimiser"] == states * (full.parts["weights"] - outside)


def test_adafactor_keeps_less_than_adam() -> None:
    adam = memory(TINY, fine_tune_type="full").parts["optimiser"]
    factored = memory(TINY, fine_tune_type="full", optimizer="adafactor").parts["optimiser"]
    assert factored < 0.05 * adam


@pytest.mark.parametrize(
    ("less", "more"),
    [
        ({"num_layers": 2}, {}),
        ({"grad_checkpoint": True}, {}),
        ({"batch_size": 2}, {}),
        ({"tokens": 64}, {}),
        ({"lora": {"keys": ["self_attn.q_proj", "self_attn.v_proj"]}}, {}),
        ({}, {"fine_tune_type": "dora"}),
        ({}, {"grad_accumulation_steps": 2}),
        ({}, {"lora": {"rank": 64}}),
        ({}, {"lora": {"dropout": 0.1}}),
        ({"device": "cuda"}, {}),
    ],
)
def test_what_takes_less(less: dict[str, Any], more: dict[str, Any]) -> None:
    assert memory(TINY, **less).peak < memory(TINY, **more).peak


def test_a_packed_model_keeps_its_unpacked_weights_only_for_dora() -> None:
    names = [name for name in TINY.linear_shapes if "layers" in name]
    shapes: Any = {name: SimpleNamespace(shape=TINY.shape(name)) for name in names}
    packed = replace(TINY, quantized=shapes)
    more = memory(packed, fine_tune_type="dora").peak - memory(packed).peak
    assert more > 4 * sum(math.prod(TINY.shape(name)) for name in names)


def test_stacked_experts_count_as_often_as_a_token_passes_them() -> None:
    tensors = {
        name.replace("mlp.", "mlp.switch_mlp."): replace(one, shape=(8, *one.shape))
        if ".mlp." in name
        else one
        for name, one in TINY.tensors.items()
    }
    config = {**TINY.config, "num_experts_per_tok": 1}
    one = replace(TINY, tensors=tensors, config=config)
    two = replace(one, config={**config, "num_experts_per_tok": 2})
    assert memory(two).peak > 1.2 * memory(one).peak
    assert memory(two).parts["adapters"] > 4 * memory(TINY).parts["adapters"]


def test_layers_of_another_kind_are_marked_as_rough() -> None:
    mixers = {name.replace("self_attn", "mixer"): one for name, one in TINY.tensors.items()}
    assert memory(replace(TINY, tensors=mixers)).is_rough
    assert memory(replace(TINY, config={**TINY.config, "kv_lora_rank": 64})).is_rough
    config = planned_config(None, {"num_layers": -1})
    assert predict_memory(replace(TINY, config={"model_type": "llama"}), config, 128) is None


def timed(tokens: int, rows: int = 4) -> TimedBatch:
    """A machine that takes 20 ms, 0.1 ms a token, and 1 ns a token and token before it."""
    count = rows * tokens
    return TimedBatch(rows, tokens, 0.02 + 1e-4 * count + 1e-9 * count * tokens)


def told(widths: list[int], trained: list[TimedBatch], validations: int = 0) -> list[float]:
    """Low, likeliest and high seconds of 1,000 iterations; a validation batch takes a quarter."""
    validated = [replace(batch, seconds=batch.seconds / 4) for batch in trained]
    batches = Timed(tuple(trained), tuple(validated))
    return list(predict_time(batches, 1000, 4, widths, validations))


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


# A process of its own: it forks the one that trains, and may not have computed before.
TRAIN = """
import json
from fixtures.lab.preflight.memory import Configuration, train
print("\\n" + json.dumps(train(Configuration("tiny", 3, 96, {"num_layers": 2}), (), 4)))
"""


@pytest.mark.slow
def test_the_peak_of_a_real_training() -> None:
    done = python("-c", TRAIN, cwd=ROOT, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    assert not isinstance(found, str), found
    configuration = Configuration("tiny", 3, 96, {"num_layers": 2})
    assert predicted(configuration, found["lengths"]) == pytest.approx(found["peak"], rel=0.15)
