"""What is told of a configuration before anything is trained with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.finding import Finding, Outcome
from mlxdoctor.preflight.configuration import planned_config
from mlxdoctor.run import Run
from tests.conftest import FIXTURES, check_called

planned_settings = check_called("planned-settings")
planned_schedule = check_called("planned-schedule")
planned_targets = check_called("planned-targets")
planned_files = check_called("planned-files")
resume = check_called("resume")
SOUND: dict[str, Any] = {
    "model": str(FIXTURES / "base"),
    "data": str(FIXTURES / "data" / "geography"),
    "num_layers": 4,
    "iters": 400,
    "learning_rate": 3e-4,
}
LORA = {"rank": 8, "scale": 20.0, "dropout": 0.0}


def outcome(check: Any = planned_settings, **changes: Any) -> Outcome:
    run = Run.planned(planned_config(None, {**SOUND, **changes}))
    found: Outcome = check.run(run)
    assert found.status != "crashed", found.reason
    return found


def only(check: Any = planned_settings, **changes: Any) -> Finding:
    (found,) = outcome(check, **changes).findings
    return found


def code(finding: Finding) -> str:
    return finding.code.partition(".")[2]


def test_a_sound_configuration_has_nothing() -> None:
    for check in (planned_settings, planned_schedule, planned_targets, planned_files):
        assert outcome(check).findings == ()


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("learning-rate", "learning_rate"),
        ("lr", "learning_rate"),
        ("epochs", "iters"),
        ("lora_rank", "lora_parameters.rank"),
        ("gradient_accumulation_steps", "grad_accumulation_steps"),
        ("max_seq_lenght", "max_seq_length"),
    ],
)
def test_a_key_that_mlx_lm_passes_over(key: str, meant: str) -> None:
    stated = {"iters": None} if meant == "iters" else {}
    finding = only(**{"learning_rate": None, **stated, key: 3})
    assert (code(finding), finding.measured["meant"]) == ("ignored", meant)
    assert meant in finding.fix


def test_a_key_beside_the_right_one_and_one_of_nobody() -> None:
    assert code(only(lr=1e-4)) == "unknown"
    assert code(only(my_notes="x")) == "unknown"
    assert code(only(lora_parameters={**LORA, "alpha": 16})) == "unknown"


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"batch_size": "4"}, "batch_size"),
        ({"iters": 0}, "iters"),
        ({"learning_rate": "fast"}, "learning_rate"),
        ({"optimizer": "lion"}, "optimizer"),
        ({"fine_tune_type": "qlora"}, "fine_tune_type"),
        ({"num_layers": 16}, "num_layers"),
        ({"num_layers": None}, "num_layers"),
        ({"lora_parameters": {"rank": 8, "alpha": 16, "dropout": 0}}, "lora_parameters.scale"),
        ({"lora_parameters": {**LORA, "rank": 0}}, "lora_parameters.rank"),
        ({"lora_parameters": {**LORA, "dropout": 1.0}}, "lora_parameters.dropout"),
        ({"lora_parameters": {**LORA, "keys": "q_proj"}}, "lora_parameters.keys"),
        ({"lr_schedule": {"name": "cosine", "arguments": [1e-4, 100]}}, "lr_schedule.name"),
        ({"lr_schedule": {"name": "cosine_decay"}}, "lr_schedule.arguments"),
        (
            {"lr_schedule": {"name": "linear_schedule", "arguments": [1, 2]}},
            "lr_schedule.arguments",
        ),
    ],
)
def test_a_setting_that_mlx_lm_stops_at(changes: dict[str, Any], where: str) -> None:
    places = {one.where for one in outcome(**changes).findings if code(one) == "refused"}
    assert where in places


def test_no_update_is_ever_made() -> None:
    finding = only(planned_schedule, iters=8, grad_accumulation_steps=16)
    assert code(finding) == "no-update"
    assert outcome(planned_schedule, iters=16, grad_accumulation_steps=16).findings == ()


def test_a_warm_up_that_is_longer_than_the_run() -> None:
    schedule = {"name": "cosine_decay", "arguments": [3e-4, 400], "warmup": 100}
    assert outcome(planned_schedule, lr_schedule=schedule).findings == ()
    finding = only(planned_schedule, lr_schedule=schedule, grad_accumulation_steps=8)
    assert (code(finding), finding.measured["updates"]) == ("rate-not-reached", 50)


def test_a_schedule_that_ends_before_the_run() -> None:
    ended = {"name": "cosine_decay", "arguments": [3e-4, 100]}
    finding = only(planned_schedule, lr_schedule=ended)
    assert (code(finding), finding.severity) == ("rate-ends-early", "warning")
    kept = {"name": "cosine_decay", "arguments": [3e-4, 100, 1e-5]}
    assert outcome(planned_schedule, lr_schedule=kept).findings == ()


def test_keys_that_name_no_module() -> None:
    lost = only(planned_targets, lora_parameters={**LORA, "keys": ["q_proj", "v_proj"]})
    assert code(lost) == "no-target"
    assert "self_attn.q_proj" in lost.fix
    some = only(planned_targets, lora_parameters={**LORA, "keys": ["self_attn.q_proj", "v_proj"]})
    assert code(some) == "some-no-target"


def test_half_precision_where_there_is_no_graphics_card(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import numpy as np
    from safetensors.numpy import load_file, save_file

    base = tmp_path / "base"
    base.mkdir()
    for one in (FIXTURES / "base").iterdir():
        if one.suffix != ".safetensors":
            (base / one.name).write_bytes(one.read_bytes())
    weights = load_file(FIXTURES / "base" / "model.safetensors")
    save_file(
        {name: one.astype(np.float16) for name, one in weights.items()}, base / "model.safetensors"
    )
    assert BaseModel.read(base).num_layers == 4
    for gpu, expected in ((False, ["half-precision-on-cpu"]), (True, [])):
        monkeypatch.setattr("mlxdoctor.evidence.planned_run.has_gpu", lambda gpu=gpu: gpu)
        assert [code(one) for one in outcome(planned_targets, model=str(base)).findings] == expected


def test_files_that_are_there_and_files_that_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = FIXTURES / "runs" / "healthy-ordinary"
    adapter = str(run / "adapters.safetensors")
    for check in (planned_files, resume):
        assert outcome(check, resume_adapter_file=adapter).findings == ()
    (lost,) = outcome(resume, resume_adapter_file="nowhere.safetensors").findings
    assert code(lost) == "no-file"
    (older,) = outcome(planned_files, adapter_path=str(run)).findings
    assert (code(older), older.severity) == ("older-adapter", "warning")
    monkeypatch.chdir(tmp_path)
    data = tmp_path / "data"
    data.mkdir()
    (data / "train.jsonl").write_text('{"text": "a"}\n' * 8)
    (test,) = outcome(planned_files, data=str(data), test=True).findings
    assert code(test) == "no-test-split"


def test_an_adapter_of_another_model_is_not_resumed_from(tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    weights = load_file(FIXTURES / "runs" / "healthy-ordinary" / "adapters.safetensors")
    renamed = {name.replace("model.layers", "transformer.h"): x for name, x in weights.items()}
    save_file(renamed, tmp_path / "adapters.safetensors")
    named = str(tmp_path / "adapters.safetensors")
    (lost,) = outcome(resume, resume_adapter_file=named).findings
    assert code(lost) == "nothing-loaded"
    assert "transformer.h.0" in lost.message


def test_of_a_run_that_was_made_nothing_is_planned() -> None:
    run = Run.discover([FIXTURES / "runs" / "healthy-ordinary"], allow_model=False)
    for check in (planned_settings, planned_schedule, planned_targets, planned_files):
        found = check.run(run)
        assert (found.status, found.arises) == ("skipped", False)
