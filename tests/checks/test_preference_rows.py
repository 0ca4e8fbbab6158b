"""Pairs of a data set, settings of their loss, and the reference they are measured against."""

import json
from pathlib import Path

import pytest

from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.dataset import Dataset
from mlxdoctor.run import Run
from tests.checks.data_evidence import write_data
from tests.conftest import check_called
from tests.given import outcome as judge
from tests.given import severities
from tests.weight_files import lora, save

rows = check_called("preference-rows")


def pairs(count: int, *, alike: int = 0) -> list[dict[str, str]]:
    found = []
    for i in range(count):
        good, bad = f"Certainly, item {i} is here.", f"I can not say much of {i}, sorry."
        bad = good if i < alike else bad
        found.append({"prompt": f"Where is item {i}?", "chosen": good, "rejected": bad})
    return found


@pytest.mark.parametrize(
    ("alike", "symptoms"),
    [(0, {}), (1, {}), (3, {"alike": "warning"}), (60, {"alike": "error"})],
)
def test_pairs_of_one_text(tmp_path: Path, alike: int, symptoms: dict[str, str]) -> None:
    data = write_data(tmp_path, train=pairs(100, alike=alike), valid=pairs(30))
    assert severities(judge(rows, data)) == symptoms


def test_answers_as_conversations(tmp_path: Path) -> None:
    turns = [
        {"chosen": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}
        | {"rejected": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}
    ]
    assert severities(judge(rows, write_data(tmp_path, train=turns * 30))) == {"alike": "error"}


def test_rows_that_are_no_pairs(tmp_path: Path) -> None:
    assert not judge(rows, write_data(tmp_path, train=[{"text": "a"}] * 3)).arises


def test_settings_beside_an_adapters_own_file(tmp_path: Path) -> None:
    """mlx-lm-lora writes the adapter's shape beside it, and nothing of the training."""
    folder = tmp_path / "adapters"
    save(folder / "adapters.safetensors", lora({"model.layers.0.q_proj": (16, 16)}, b=0.01))
    (folder / "adapter_config.json").write_text(json.dumps({"lora_parameters": {"rank": 4}}))
    data = write_data(tmp_path, train=pairs(30), valid=pairs(30))
    (tmp_path / "config.yaml").write_text(
        "model: nowhere\ntrain_mode: dpo\ntrain_type: dora\nlearning_rate: 1e-5\nbeta: 0.2\n"
        f"data: {data.path}\nlora_parameters: {{rank: 16, scale: 20.0}}\n"
    )
    run = Run.discover([tmp_path])
    config = run.get(TrainingConfig)
    assert (config.learning_rate, config.values["beta"], config.rank) == (1e-5, 0.2, 4)
    assert (config.fine_tune_type, config.of_preferences) == ("dora", True)
    assert len(config.sources) == 2
    assert run.get(Dataset) is not None
