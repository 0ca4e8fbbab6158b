"""Configurations that keep their keys in sections."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mlxdoctor.api import diagnose
from mlxdoctor.causes import Change
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.formats import summary, terminal
from mlxdoctor.judge.remedy import fix_for
from mlxdoctor.safety.errors import InputError

SECTIONS = """# of a home-made trainer
model:
  name: mlx-community/Llama-3.2-3B-Instruct
training:
  epochs: 3

  learning_rate: 2e-3
  gradient_accumulation_steps: 4
  lora: {rank: 8, alpha: 160}
"""


@pytest.fixture
def sections(tmp_path: Path) -> Path:
    path = tmp_path / "settings.yaml"
    path.write_text(SECTIONS)
    return path


def test_the_keys_are_read_under_mlx_lms_names(sections: Path) -> None:
    config = TrainingConfig.read(sections)
    assert (config.learning_rate, config.rank, config.scale) == (2e-3, 8, 20.0)
    assert config.grad_accumulation_steps == 4
    assert config.model == "mlx-community/Llama-3.2-3B-Instruct"
    assert config.places["learning_rate"] == "training.learning_rate"
    # mlx-lm's defaults are not this trainer's.
    assert config.iters is None
    assert not config.describes_training


def test_the_fix_names_the_key_where_it_stands(sections: Path) -> None:
    fix = fix_for(Change("learning_rate", "divide", 10), TrainingConfig.read(sections))
    assert fix is not None
    assert fix.after == {"training.learning_rate": 2e-4}
    assert '"learning_rate": 0.0002' in fix.diff
    assert '"epochs"' in fix.diff
    # What the trainer does not know is not proposed.
    change = Change("mask_prompt", "set", True)
    assert fix_for(change, TrainingConfig.read(sections)) is None


def test_it_is_found_and_its_rate_judged(sections: Path) -> None:
    report = diagnose([sections.parent])
    assert report.suspected is not None
    assert report.suspected.cause.id == "learning-rate-too-high"
    assert "training.learning_rate: 0.002 -> " in terminal.render(report)
    assert summary.confirm_commands(report) == []


def test_json_is_read_too(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"optim": {"lr": 1e-4}, "lora": {"r": 4, "scale": 2.0}}))
    config = TrainingConfig.read(path)
    assert (config.learning_rate, config.rank, config.scale) == (1e-4, 4, 2.0)


@pytest.mark.parametrize(
    "text",
    [
        "services:\n  web:\n    image: x\n",
        "parameters:\n  learning_rate:\n    values: [1e-4, 1e-5]\n",
        "jobs:\n  test:\n    steps:\n      - run: train --lr 3\n",
    ],
)
def test_other_yaml_files_are_no_configurations(tmp_path: Path, text: str) -> None:
    (tmp_path / "other.yaml").write_text(text)
    with pytest.raises(InputError):
        TrainingConfig.read(tmp_path / "other.yaml")
    with pytest.raises(InputError, match="holds nothing"):
        diagnose([tmp_path])
