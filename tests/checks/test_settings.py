"""What mlx-lm would do with a configuration, and the files that it names."""

from pathlib import Path
from typing import Any

import pytest

from fixtures.lab.cases.workshop import copied_run
from mlxdoctor.finding import Finding, Outcome
from mlxdoctor.preflight.configuration import planned_config
from mlxdoctor.run import Run
from tests.conftest import FIXTURES, check_called
from tests.edits import change_tensors
from tests.given import WRITTEN
from tests.preflight.small_run import SOUND

settings = check_called("settings")
resume = check_called("resume")
LORA = {"rank": 8, "scale": 20.0, "dropout": 0.0}


def outcome(check: Any = settings, **changes: Any) -> Outcome:
    config = planned_config(None, {**SOUND, **changes})
    run = Run.planned(config)
    found: Outcome = check.run(run)
    assert found.status != "crashed", found.reason
    return found


def only(check: Any = settings, **changes: Any) -> Finding:
    (found,) = outcome(check, **changes).findings
    return found


def code(finding: Finding) -> str:
    return finding.code.partition(".")[2]


def test_a_sound_configuration_has_nothing() -> None:
    for check in (settings, resume):
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
    stated = {meant: None} if meant in SOUND else {}
    finding = only(**{"learning_rate": None, **stated, key: 3})
    assert (code(finding), finding.measured["meant"]) == ("ignored", meant)
    assert meant in finding.fix


def test_a_key_beside_the_right_one_and_one_of_nobody() -> None:
    assert code(only(lr=1e-4)) == "unknown"
    assert code(only(my_notes="x")) == "unknown"
    assert code(only(lora_parameters={**LORA, "alpha": 16})) == "unknown"
    # A key of the configuration itself, unless it says what is used anyway.
    assert code(only(lora_parameters={**LORA, "learning_rate": 1e-3})) == "misplaced"
    assert code(only(lora_parameters={**LORA, "batch_size": 4})) == "unknown"


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


OF_ADAM = "optimizer_config.adam."


@pytest.mark.parametrize(
    ("key", "inside", "outside"),
    [
        ("weight_decay", 1.0, 1.1),
        ("weight_decay", 0.0, -0.1),
        ("eps", 1e-3, 2e-3),
        ("eps", 1e-12, 1e-13),
        ("betas", [0.0, 0.5], [0.9, 0.4]),
        ("betas", [0.9, 0.99999], [0.9, 1.0]),
        ("betas", [0.99999, 0.9], [1.0, 0.9]),
        ("momentum", 0.999, 1.0),
        # Adafactor has two.
        ("eps", [1e-30, 1e-3], 1e8),
        ("weight_decay", True, 100),
    ],
)
def test_numbers_that_no_trainer_uses(key: str, inside: Any, outside: Any) -> None:
    assert outcome(optimizer_config={"adam": {key: inside}}).findings == ()
    found = only(optimizer_config={"adam": {key: outside}})
    assert (code(found), found.severity) == ("out-of-range", "error")
    assert found.where.startswith(OF_ADAM + key)
    measured = found.measured
    assert f"is {measured['value']:.4g}, where trainers use" in found.message
    # Nobody uses the other optimizers' settings.
    assert outcome(optimizer_config={"sgd": {key: outside}}).findings == ()


def test_a_dropout_that_no_trainer_uses(tmp_path: Path) -> None:
    assert outcome(lora_parameters={**LORA, "dropout": 0.7}).findings == ()
    assert code(only(lora_parameters={**LORA, "dropout": 0.75})) == "out-of-range"
    assert trained(tmp_path, lora_parameters={**LORA, "dropout": 0.95}) == ["out-of-range warning"]


def test_keys_that_name_no_module() -> None:
    lost = only(lora_parameters={**LORA, "keys": ["q_proj", "v_proj"]})
    assert (code(lost), lost.severity) == ("no-target", "error")
    assert "self_attn.q_proj" in lost.fix
    some = only(lora_parameters={**LORA, "keys": ["self_attn.q_proj", "v_proj"]})
    assert (code(some), some.severity) == ("no-target", "warning")
    assert "passes over 1 of 2 keys" in some.message


def test_files_that_are_there_and_files_that_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = FIXTURES / "runs" / "healthy-ordinary"
    adapter = str(run / "adapters.safetensors")
    assert outcome(resume_adapter_file=adapter).findings == ()
    assert code(only(resume, resume_adapter_file="nowhere.safetensors")) == "no-file"
    older = only(adapter_path=str(run))
    assert (code(older), older.severity) == ("older-adapter", "warning")
    monkeypatch.chdir(tmp_path)
    data = tmp_path / "data"
    data.mkdir()
    (data / "train.jsonl").write_text('{"text": "a"}\n' * 8)
    assert code(only(data=str(data), test=True)) == "refused"


@pytest.mark.parametrize(
    ("renamed", "changes", "expected"),
    [
        ("", {}, []),
        ("transformer.h", {}, ["not-loaded"]),
        ("", {"num_layers": 2}, ["not-loaded"]),
        ("", {"lora_parameters": {**LORA, "keys": ["mlp.up_proj"]}}, ["not-loaded"]),
        ("", {"lora_parameters": {**LORA, "rank": 4}}, ["rank-differs"]),
    ],
)
def test_what_a_planned_run_takes_up_of_the_file_it_resumes_from(
    tmp_path: Path, renamed: str, changes: dict[str, Any], expected: list[str]
) -> None:
    path = copied_run(tmp_path) / "adapters.safetensors"
    if renamed:
        change_tensors(
            path, lambda found: {n.replace("model.layers", renamed): x for n, x in found.items()}
        )
    found = outcome(resume, resume_adapter_file=str(path), **changes).findings
    assert [code(one) for one in found] == expected


def trained(tmp_path: Path, **changes: Any) -> list[str]:
    """The codes of a run that was made, with some of its settings changed."""
    folder = copied_run(tmp_path, **WRITTEN, **changes)
    found = settings.run(Run.discover([folder], allow_model=False)).findings
    return [f"{code(one)} {one.severity}" for one in found if one.severity != "info"]


def test_of_a_run_that_trained_the_keys_are_asked_and_nothing_that_mlx_lm_took(
    tmp_path: Path,
) -> None:
    assert trained(tmp_path / "a", optimizer="lion", resume_adapter_file="gone") == []
    # mlx-lm writes its default beside the key that it passed over.
    ignored = trained(tmp_path / "b", lr=3e-4, learning_rate=1e-5)
    assert ignored == ["ignored warning"]
    assert trained(tmp_path / "c", lr=3e-4, learning_rate=3e-4) == []
    keys = ["self_attn.q_proj", "self_attn.qkv_proj"]
    assert trained(tmp_path / "d", lora_parameters={**LORA, "keys": keys}) == ["no-target warning"]
