"""Margins and accuracies of pairs in logs: what the loss asks for, and what was learned."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from mlxdoctor.evidence.adapter import Adapter
from mlxdoctor.evidence.training_log import TrainingLog
from tests.checks.data_evidence import config_of
from tests.checks.log_evidence import LogWriter, found, judge
from tests.conftest import check_called
from tests.weight_files import lora, save

pairs = check_called("preference-pairs")


@pytest.fixture
def logs(tmp_path: Path) -> LogWriter:
    return LogWriter(tmp_path)


def pair_log(
    logs: LogWriter,
    margins: Sequence[float],
    *,
    losses: Sequence[float] | None = None,
    chosen: Sequence[float] | None = None,
    held_out: Sequence[float] = (),
) -> TrainingLog:
    """As mlx-lm-lora 5 prints it; the loss is DPO's unless it is given."""
    lines = ["[INFO] Training mode: DPO"]
    every = max(1, len(margins) // max(len(held_out), 1))
    for i, margin in enumerate(margins):
        loss = losses[i] if losses is not None else math.log1p(math.exp(-margin))
        up = chosen[i] if chosen is not None else margin / 4
        if i % every == 0 and i // every < len(held_out):
            value = held_out[i // every]
            lines.append(
                f"Iter {i + 1}: Val loss 0.500, Val chosen reward {value:.3f}, Val rejected reward "
                f"0.000, Val accuracy {float(value > 0):.3f}, Val margin {value:.3f}, Val took 1.0s"
            )
        lines.append(
            f"Iter {i + 1}: loss {loss:.3f}, chosen_r {up:.3f}, rejected_r {up - margin:.3f}, "
            f"acc {float(margin > 0):.3f}, margin {margin:.3f}, lr 1.000e-05, it/s 1.0"
        )
    return logs.text(*lines)


RISING = [0.1 * i for i in range(20)]


def test_a_sound_run(logs: LogWriter) -> None:
    log = pair_log(logs, RISING, held_out=[0.0, 0.5, 1.0, 1.4])
    assert found(judge(pairs, log)) == {}
    (seen,) = judge(pairs, log).seen
    assert seen.learned
    assert "from 0.000 to 1.400 on validation rows" in seen.message


def test_without_validation_the_rows_trained_on_show_it(logs: LogWriter) -> None:
    log = pair_log(logs, RISING)
    assert judge(pairs, log).seen[0].learned
    assert "preference-pairs.held-out-reversed" in judge(pairs, log).unsought


@pytest.mark.parametrize(
    ("margins", "symptoms"),
    [
        ([0.0] * 10, {"exactly-equal": "error"}),
        ([0.0] * 9, {}),
        ([0.0, 0.009, -0.009, *[0.0] * 7], {"not-told-apart": "warning"}),
        ([0.0] * 9 + [0.02], {}),
    ],
)
def test_pairs_that_stay_equal(
    logs: LogWriter, margins: list[float], symptoms: dict[str, str]
) -> None:
    assert found(judge(pairs, pair_log(logs, margins))) == symptoms


def test_a_lost_minus_sign_and_a_damaged_model(logs: LogWriter) -> None:
    falling = [-one for one in RISING]
    # The loss falls with the margin: this is what it asks for.
    wanted = pair_log(logs, falling, losses=[math.log1p(math.exp(one)) for one in falling])
    assert found(judge(pairs, wanted)) == {"rejected-wins": "error"}
    damaged = pair_log(logs, falling, chosen=[-one / 10 for one in RISING])
    assert found(judge(pairs, damaged)) == {}


def test_files_that_disagree(logs: LogWriter) -> None:
    swapped = pair_log(logs, RISING, held_out=[0.0, -0.5, -1.0, -1.4])
    assert found(judge(pairs, swapped)) == {"held-out-reversed": "error"}
    # An overfitted run gives back what it gained.
    overfitted = pair_log(logs, RISING, held_out=[0.0, 0.8, 0.4, 0.1])
    assert found(judge(pairs, overfitted)) == {}


def test_pairs_are_told_apart_in_nats(logs: LogWriter, tmp_path: Path) -> None:
    log = pair_log(logs, [0.0, *[0.004] * 12])
    assert found(judge(pairs, log)) == {"not-told-apart": "warning"}
    assert found(judge(pairs, log, config_of(tmp_path, beta=0.1))) == {"not-told-apart": "warning"}
    # With a beta of 0.01 it is 0.4 nats.
    assert found(judge(pairs, log, config_of(tmp_path, beta=0.01))) == {}


def test_chosen_answers_of_orpo(logs: LogWriter) -> None:
    log = logs.text(
        "[INFO] Training mode: ORPO",
        *(
            f"Iter {i}: loss {5 - i / 4:.3f}, chosen_r {-0.5 + i / 40:.3f}, rejected_r "
            f"{-0.51 + i / 40:.3f}, acc 0.600, margin 0.010, it/s 1.0"
            for i in range(1, 13)
        ),
        "Iter 13: loss 1.9, chosen_r -0.180, rejected_r -0.200, acc 0.600, margin 0.020, it/s 1.0",
    )
    (seen,) = judge(pairs, log).seen
    assert seen.learned
    assert "log-likelihood" in seen.message


def test_missing_evidence(logs: LogWriter) -> None:
    ordinary = logs.losses([2.0, 1.0])
    assert not judge(pairs, ordinary).arises
    header = logs.text("Training mode: ORPO", "Iter 1: Train loss 2.0, Learning rate 1e-5")
    assert judge(pairs, header).status.value == "inconclusive"
    assert judge(pairs, pair_log(logs, [0.0, 0.1])).status.value == "inconclusive"


@pytest.mark.parametrize(
    ("mode", "beta", "symptoms"),
    [
        ("dpo", 0.1, {}),
        ("dpo", 0.0, {"beta-unusable": "error"}),
        ("cpo", -0.1, {"beta-unusable": "error"}),
        ("dpo", 10.0, {}),
        ("dpo", 50.0, {"beta-unusable": "warning"}),
        ("orpo", 500.0, {"beta-unusable": "error"}),
    ],
)
def test_beta(tmp_path: Path, mode: str, beta: float, symptoms: dict[str, str]) -> None:
    config = config_of(tmp_path, train_mode=mode, beta=beta)
    assert found(judge(pairs, config)) == symptoms


def test_beta_of_other_methods(tmp_path: Path) -> None:
    assert not judge(pairs, config_of(tmp_path, train_mode="grpo", beta=0.0)).arises
    assert not judge(pairs, config_of(tmp_path, beta=0.0)).arises
    outcome = judge(pairs, config_of(tmp_path, train_mode="dpo"))
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
    wanted = {"exactly-equal": "error", "reference-moves": "error"}
    assert found(judge(pairs, still_log(logs), moved)) == wanted
    # With a beta of 0, or pairs of one text, nothing is trained.
    equal = {"exactly-equal": "error"}
    assert found(judge(pairs, still_log(logs), still)) == equal
    assert found(judge(pairs, still_log(logs, 0.1), moved)) == equal
    assert found(judge(pairs, still_log(logs))) == equal
    assert found(judge(pairs, still_log(logs, head="Training mode: ORPO"), moved)) == equal


def test_log_likelihoods_that_moved(tmp_path: Path) -> None:
    log = LogWriter(tmp_path).text(
        *(
            f"{{'loss': 0.693, 'rewards/chosen': 0.0, 'rewards/rejected': 0.0, 'rewards/margins': "
            f"0.0, 'logps/chosen': {-80 - i}, 'logps/rejected': {-90 - i}, 'epoch': {i / 10}}}"
            for i in range(12)
        )
    )
    assert found(judge(pairs, log)) == {"exactly-equal": "error", "reference-moves": "error"}


def test_log_likelihoods_of_other_answers(tmp_path: Path) -> None:
    """Those of a model that stands still differ from batch to batch."""
    for seed in range(5):
        logps = np.random.default_rng(seed).normal(-80.0, 10.0, 24)
        log = LogWriter(tmp_path).text(
            *(
                f"{{'loss': 0.693, 'rewards/chosen': 0.0, 'rewards/rejected': 0.0, "
                f"'rewards/margins': 0.0, 'logps/chosen': {one:.2f}, 'logps/rejected': -90, "
                f"'epoch': {i / 10}}}"
                for i, one in enumerate(logps)
            )
        )
        assert found(judge(pairs, log)) == {"exactly-equal": "error"}, seed
