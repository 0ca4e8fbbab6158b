"""Pairs of a data set, settings of their loss, and the reference they are measured against."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from mlxdoctor.evidence.adapter import Adapter
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.dataset import Dataset
from mlxdoctor.evidence.training_log import TrainingLog
from mlxdoctor.run import Run
from tests.checks.data_evidence import config_of, write_data
from tests.checks.log_evidence import LogWriter, found, judge
from tests.conftest import check_called
from tests.weight_files import lora, save

rows = check_called("preference-rows")
settings = check_called("preference-settings")
reference = check_called("reference-model")


def pairs(count: int, *, swapped: bool = False, alike: int = 0) -> list[dict[str, str]]:
    found = []
    for i in range(count):
        good, bad = f"Certainly, item {i} is here.", f"I can not say much of {i}, sorry."
        if swapped:
            good, bad = bad, good
        bad = good if i < alike else bad
        found.append({"prompt": f"Where is item {i}?", "chosen": good, "rejected": bad})
    return found


@pytest.mark.parametrize(
    ("alike", "symptoms"),
    [(0, {}), (1, {}), (3, {"alike": "warning"}), (60, {"alike": "error"})],
)
def test_pairs_of_one_text(tmp_path: Path, alike: int, symptoms: dict[str, str]) -> None:
    data = write_data(tmp_path, train=pairs(100, alike=alike), valid=pairs(30))
    assert found(judge(rows, data)) == symptoms


def test_files_the_other_way_round(tmp_path: Path) -> None:
    swapped = write_data(tmp_path, train=pairs(100, swapped=True), valid=pairs(30))
    assert found(judge(rows, swapped)) == {"split-reversed": "error"}
    few = judge(rows, write_data(tmp_path, train=pairs(100, swapped=True), valid=pairs(10)))
    assert found(few) == {}
    assert "preference-rows.split-reversed" in few.unsought


def test_pairs_that_no_word_tells_apart(tmp_path: Path) -> None:
    random = np.random.default_rng(0)

    def some(count: int) -> list[dict[str, str]]:
        one = random.integers(0, 40, count)
        other = (one + random.integers(1, 40, count)) % 40
        return [
            {"prompt": "?", "chosen": f"It is w{a}.", "rejected": f"It is w{b}."}
            for a, b in zip(one, other, strict=True)
        ]

    assert found(judge(rows, write_data(tmp_path, train=some(200), valid=some(60)))) == {}


def test_answers_as_conversations(tmp_path: Path) -> None:
    turns = [
        {"chosen": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}
        | {"rejected": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}
    ]
    assert found(judge(rows, write_data(tmp_path, train=turns * 30))) == {"alike": "error"}


def test_rows_that_are_no_pairs(tmp_path: Path) -> None:
    assert not judge(rows, write_data(tmp_path, train=[{"text": "a"}] * 3)).arises


@pytest.mark.parametrize(
    ("mode", "beta", "symptoms"),
    [
        ("dpo", 0.1, {}),
        ("dpo", 0.0, {"beta-zero": "error"}),
        ("cpo", -0.1, {"beta-negative": "error"}),
        ("dpo", 10.0, {}),
        ("dpo", 50.0, {"beta-large": "warning"}),
        ("orpo", 500.0, {"beta-large": "error"}),
        ("dpo", 1e-6, {"beta-small": "info"}),
    ],
)
def test_beta(tmp_path: Path, mode: str, beta: float, symptoms: dict[str, str]) -> None:
    config = config_of(tmp_path, train_mode=mode, beta=beta)
    assert found(judge(settings, config)) == symptoms


def test_beta_of_other_methods(tmp_path: Path) -> None:
    assert not judge(settings, config_of(tmp_path, train_mode="grpo", beta=0.0)).arises
    assert not judge(settings, config_of(tmp_path, beta=0.0)).arises
    outcome = judge(settings, config_of(tmp_path, train_mode="dpo"))
    assert outcome.status.value == "inconclusive"


def still_log(
    logs: LogWriter, reward: float = 0.0, head: str = "Training mode: DPO"
) -> TrainingLog:
    return logs.text(
        head,
        *(
            f"Iter {i}: loss 0.693, chosen_r {reward:.3f}, rejected_r {reward:.3f}, acc 0.000, "
            "margin 0.000, it/s 1.0"
            for i in range(1, 12)
        ),
    )


def adapter(folder: Path, b: float) -> Adapter:
    save(folder / "adapters.safetensors", lora({"model.layers.0.q_proj": (16, 16)}, b=b))
    (folder / "adapter_config.json").write_text(json.dumps({"lora_parameters": {"rank": 4}}))
    return Adapter.read(folder / "adapters.safetensors")


def test_a_reference_that_is_the_model(tmp_path: Path) -> None:
    logs = LogWriter(tmp_path)
    moved, still = adapter(tmp_path / "a", 0.01), adapter(tmp_path / "b", 0.0)
    wanted = {"moves-with-policy": "error"}
    assert found(judge(reference, still_log(logs), moved)) == wanted
    # With a beta of 0, or pairs of one text, nothing is trained.
    assert found(judge(reference, still_log(logs), still)) == {}
    assert found(judge(reference, still_log(logs, 0.1), moved)) == {}
    assert judge(reference, still_log(logs)).status.value == "inconclusive"
    assert not judge(reference, still_log(logs, head="Training mode: ORPO"), moved).arises


def test_log_likelihoods_that_moved(tmp_path: Path) -> None:
    log = LogWriter(tmp_path).text(
        *(
            f"{{'loss': 0.693, 'rewards/chosen': 0.0, 'rewards/rejected': 0.0, 'rewards/margins': "
            f"0.0, 'logps/chosen': {-80 - i}, 'logps/rejected': {-90 - i}, 'epoch': {i / 10}}}"
            for i in range(12)
        )
    )
    assert found(judge(reference, log)) == {"moves-with-policy": "error"}


def test_log_likelihoods_of_other_answers(tmp_path: Path) -> None:
    """Those of a model that stands still differ from batch to batch."""
    for seed in range(20):
        logps = np.random.default_rng(seed).normal(-80.0, 10.0, 24)
        log = LogWriter(tmp_path).text(
            *(
                f"{{'loss': 0.693, 'rewards/chosen': 0.0, 'rewards/rejected': 0.0, "
                f"'rewards/margins': 0.0, 'logps/chosen': {one:.2f}, 'logps/rejected': -90, "
                f"'epoch': {i / 10}}}"
                for i, one in enumerate(logps)
            )
        )
        assert found(judge(reference, log)) == {}, seed


def test_settings_beside_an_adapters_own_file(tmp_path: Path) -> None:
    """mlx-lm-lora writes the adapter's shape beside it, and nothing of the training."""
    adapter(tmp_path / "adapters", 0.01)
    data = write_data(tmp_path, train=pairs(30), valid=pairs(30))
    (tmp_path / "config.yaml").write_text(
        "model: nowhere\ntrain_mode: dpo\ntrain_type: dora\nlearning_rate: 1e-5\nbeta: 0.2\n"
        f"data: {data.path}\nlora_parameters: {{rank: 16, scale: 20.0}}\n"
    )
    run = Run.discover([tmp_path])
    config = run.get(TrainingConfig)
    assert config is not None
    assert (config.learning_rate, config.values["beta"], config.rank) == (1e-5, 0.2, 4)
    assert (config.fine_tune_type, config.of_preferences) == ("dora", True)
    assert len(config.sources) == 2
    assert run.get(Dataset) is not None
