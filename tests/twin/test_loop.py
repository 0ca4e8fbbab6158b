"""A run from settings to files: what changes, what is written, how it ends and goes on."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx import nn
from mlx.utils import tree_flatten

from mlxdoctor.evidence.adapter import Adapter
from mlxdoctor.evidence.training_log import TrainingLog
from mlxdoctor.safety.errors import InputError
from mlxdoctor.twin import Settings, StepRecord, TrainingResult, train
from mlxdoctor.twin.batches import exact_batches
from mlxdoctor.twin.masked_loss import evaluate, exact_loss
from mlxdoctor.twin.records import to_line
from tests.twin.small import row, small_model, small_moe, small_parts, small_rows, small_settings

pytestmark = pytest.mark.slow


def run(settings: Settings, **given: Any) -> TrainingResult:
    tell = given.pop("tell", None)
    return train(settings, parts=small_parts(settings, **given), tell=tell)


def arrays(model: Any) -> dict[str, list[Any]]:
    return {name: one.tolist() for name, one in tree_flatten(model.parameters())}


def saved(path: Path) -> dict[str, Any]:
    return {name: one.tolist() for name, one in mx.load(str(path)).items()}


def losses(result: TrainingResult) -> list[float]:
    return [step.train_loss for step in result.steps]


def test_only_the_adapter_changes_bit_for_bit(tmp_path: Path) -> None:
    model = small_model()
    before = arrays(model)
    result = run(small_settings(tmp_path, iters=12), model=model)
    after = arrays(model)
    base = {name.replace(".linear.", ".").replace(".embedding.", "."): name for name in after}
    for name, values in before.items():
        assert after[base[name]] == values
    adapter = [name for name in after if name.endswith(("lora_a", "lora_b"))]
    assert len(after) == len(before) + len(adapter)
    assert all(any(map(any, after[name])) for name in adapter if name.endswith("lora_b"))
    assert losses(result)[-1] < losses(result)[0]


def test_the_files_are_those_of_mlx_lm_and_a_metrics_file(tmp_path: Path) -> None:
    settings = small_settings(tmp_path, iters=5, save_every=2, steps_per_eval=2)
    result = run(settings)
    names = {"0000002_adapters.safetensors", "0000004_adapters.safetensors"}
    names |= {"adapters.safetensors", "adapter_config.json", "metrics.jsonl"}
    assert {path.name for path in tmp_path.iterdir()} == names
    assert Settings.read(tmp_path / "adapter_config.json") == replace(
        settings, config=str(tmp_path / "adapter_config.json")
    )
    assert len(Adapter.read(tmp_path).modules) == 14
    log = TrainingLog.read([tmp_path / "metrics.jsonl"]).main
    assert log.series["train_loss"].iterations.tolist() == [1, 2, 3, 4, 5]
    assert log.series["train_loss"].values.tolist() == losses(result)
    assert log.series["val_loss"].iterations.tolist() == [0, 2, 4, 5]
    for name in ("learning_rate", "grad_norm", "supervised_tokens", "peak_memory_gb"):
        assert len(log.series[name]) == 5
    line = json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[1])
    assert line["seconds"] > 0
    assert line["supervised_tokens"] == result.steps[0].supervised_tokens > 0
    assert line["learning_rate"] == pytest.approx(1e-2)


def test_the_first_validation_sees_the_base_model(tmp_path: Path) -> None:
    _, evaluation = exact_batches(small_settings(tmp_path))
    untouched = evaluate(small_model(), evaluation(small_rows().valid, -1), exact_loss)
    result = run(small_settings(tmp_path))
    assert [one.iteration for one in result.validations] == [0, 6]
    assert result.validations[0].val_loss == pytest.approx(untouched, abs=1e-6)
    assert result.validations[1].val_loss != pytest.approx(untouched, abs=1e-3)


def test_batches_left_over_are_applied(tmp_path: Path) -> None:
    def norms(folder: str, mode: str) -> list[bool]:
        settings = small_settings(
            tmp_path / folder, iters=5, grad_accumulation_steps=3, mlxdoctor={"mode": mode}
        )
        return [step.grad_norm is not None for step in run(settings).steps]

    assert norms("exact", "exact") == [False, False, True, False, True]
    assert norms("parity", "parity") == [False, False, True, False, False]
    final = saved(tmp_path / "exact" / "adapters.safetensors")
    settings = small_settings(tmp_path / "short", iters=3, grad_accumulation_steps=3)
    run(settings)
    assert final != saved(tmp_path / "short" / "adapters.safetensors")


def test_who_is_told_can_end_the_run(tmp_path: Path) -> None:
    told: list[Any] = []

    def enough(one: Any) -> str | None:
        told.append(one)
        return "enough" if getattr(one, "iteration", None) == 3 else None

    result = run(small_settings(tmp_path), tell=enough)
    assert (result.stopped, len(result.steps)) == ("enough", 3)
    assert told[1:] == [*result.validations, *result.steps]
    assert (tmp_path / "adapters.safetensors").exists()


def test_a_run_that_is_ended_before_its_first_step_writes_nothing(tmp_path: Path) -> None:
    result = run(small_settings(tmp_path / "out"), tell=lambda _: "not today")
    assert (result.stopped, result.steps) == ("not today", ())
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "sgd", "adafactor", "muon"])
def test_every_optimizer_lowers_the_loss(tmp_path: Path, optimizer: str) -> None:
    rate = {"sgd": 1.0, "muon": 5e-2}.get(optimizer, 1e-2)
    # Adafactor's own steps are relative to the weights, and B starts at zero.
    options = {"adafactor": {"relative_step": False, "scale_parameter": False}}
    settings = small_settings(tmp_path, iters=24, learning_rate=rate, optimizer=optimizer)
    found = losses(run(replace(settings, optimizer_config=options)))
    assert sum(found[-8:]) < sum(found[:8])


@pytest.mark.parametrize("kind", ["dora", "full", "quantized", "experts", "checkpointed"])
def test_every_kind_of_model_and_tuning_trains(tmp_path: Path, kind: str) -> None:
    model = small_model(hidden_size=32, intermediate_size=64)
    values: dict[str, Any] = {}
    if kind == "quantized":
        nn.quantize(model, group_size=32, bits=4)
    elif kind == "experts":
        model = small_moe()
    elif kind == "checkpointed":
        values["grad_checkpoint"] = True
    else:
        values["fine_tune_type"] = kind
    found = losses(run(small_settings(tmp_path, iters=24, **values), model=model))
    assert sum(found[-8:]) < sum(found[:8])


def test_the_test_split_is_evaluated_where_it_is_asked_for(tmp_path: Path) -> None:
    rows = replace(small_rows(), test=(row(9, 3, 50),))
    assert run(small_settings(tmp_path), rows=rows).test_loss is None
    test_loss = run(small_settings(tmp_path, test=True), rows=rows).test_loss
    assert 0 < test_loss < 20
    with pytest.raises(InputError, match="no test rows"):
        run(small_settings(tmp_path, test=True))


def test_the_plan_counts_what_will_be_trained(tmp_path: Path) -> None:
    model = small_model()
    whole = sum(one.size for _, one in tree_flatten(model.parameters()))
    rows = replace(small_rows((5, 40, 12)), left_out=2)
    settings = small_settings(tmp_path)
    plans: list[Any] = []
    run(settings, tell=lambda plan: plans.append(plan) or "seen", model=model, rows=rows)
    (lines,) = plans
    few = sum(array.size for _, array in tree_flatten(model.trainable_parameters()))
    frozen = [line.split() for line in lines if line.startswith("  frozen")]
    assert sum(int(count.replace(",", "")) for _, count, _ in frozen) == whole
    # q is 16 x 16: rank 2 on two layers has 2 x 2 x (16 + 16).
    assert f"  trained  {128:>15,}  model.layers.*.self_attn.q_proj (adapter)" in lines
    assert f"({few / 1e6:.3f}M/{(whole + few) / 1e6:.3f}M)" in lines[0]
    assert "Left out: 2 rows without a token to learn from" in lines
    assert "Cut: 1 rows are longer than the limit" in lines


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"lr_schedule": {"name": "no_such", "arguments": [1e-3]}}, "lr_schedule is not one"),
        ({"lr_schedule": {"name": "cosine_decay"}}, "lr_schedule is not one"),
        ({"lr_schedule": {"nam": "cosine_decay"}}, "unknown key 'nam'"),
        ({"optimizer_config": {"adam": {"beta": 1}}}, "optimizer_config.adam is not what"),
        ({"optimizer_config": {"adam": {"learning_rate": 1}}}, "state it at the top level"),
    ],
)
def test_an_optimizer_or_schedule_mlx_does_not_have_is_refused(
    tmp_path: Path, values: dict[str, Any], problem: str
) -> None:
    with pytest.raises(InputError, match=problem):
        run(small_settings(tmp_path, **values))


def test_lines_are_json_even_where_a_figure_is_not_finite() -> None:
    line = to_line(StepRecord(1, math.nan, 1e-4, math.inf, 10, 10, 0.1, 1.0))
    assert '"train_loss": "nan"' in line
    assert '"grad_norm": "inf"' in line
    assert "grad_norm" not in to_line(StepRecord(1, 2.0, 1e-4, None, 10, 10, 0.1, 1.0))
