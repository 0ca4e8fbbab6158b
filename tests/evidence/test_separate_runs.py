"""A folder above several runs is told from the folder of one."""

from pathlib import Path

import pytest

from mlxdoctor.evidence.discovery import separate_runs

ROOT = Path("work")


def runs(saved: str = "", configs: str = "", logs: str = "") -> list[str]:
    kinds = ([ROOT / one for one in names.split()] for names in (saved, configs, logs))
    return [str(one) for one in separate_runs(ROOT, *kinds)]


def test_projects_side_by_side() -> None:
    found = runs(configs="a/config.yaml b/config.yaml", logs="a/train.log b/train.log")
    assert found == ["work/a", "work/b"]


def test_projects_further_down() -> None:
    found = runs("x/a/adapters.safetensors x/b/adapters.safetensors")
    assert found == ["work/x/a", "work/x/b"]


@pytest.mark.parametrize(
    ("saved", "configs", "logs"),
    [
        # One project, its log and configuration on top; and one that keeps each in a folder.
        ("adapters/adapter_config.json first/adapter_config.json", "config.yaml", "train.log"),
        ("adapters/adapter_config.json", "configs/lora.yaml", "logs/train.log"),
        # An adapter that was resumed from, and one log.
        ("adapters/adapter_config.json first/adapter_config.json", "", "logs/train.log"),
        # Saves of PEFT's trainer, and W&B's folder.
        (
            "checkpoint-5/adapter_config.json checkpoint-9/adapter_config.json",
            "",
            "checkpoint-5/trainer_state.json checkpoint-9/trainer_state.json",
        ),
        ("adapters/a.safetensors", "wandb/run/config.yaml", "adapters/a.log wandb/run/output.log"),
        ("", "", ""),
    ],
)
def test_one_run(saved: str, configs: str, logs: str) -> None:
    assert runs(saved, configs, logs) == []
