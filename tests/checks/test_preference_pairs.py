"""Margins and accuracies of pairs in logs: what the loss asks for, and what was learned."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from mlxdoctor.evidence.adapter import Adapter
from mlxdoctor.evidence.dataset import Dataset
from mlxdoctor.evidence.tokenizer import Tokenizer
from mlxdoctor.evidence.training_log import TrainingLog
from tests.checks.data_evidence import BASE, config_of, write_data
from tests.checks.log_evidence import LogWriter, finding, found, judge
from tests.conftest import check_called
from tests.weight_files import lora, save

pairs = check_called("preference-pairs")


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
    assert found(judge(pairs, damaged)) == {"margin-lost": "error"}


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


#: Rewards of chosen answers, as mlx-lm-lora 5.10.2 printed them of a model of 135 million
#: parameters: DPO at fifty times a sound rate, and two sound runs, the second with a beta of 0.3.
TOO_FAST = [-11.157, -28.489, -47.279, -61.141, -80.947, -86.056, -83.37, -90.92, -93.157]
SHORT = [-0.068, -0.67, -1.201, -1.852, -2.799, -2.82, -2.943, -3.479, -3.342]
FACTS = [-0.205, -0.265, -1.507, -2.78, -2.022, -12.039, -13.306, -16.89, -15.304]
#: ORPO at fifty times a sound rate, and sound.
ORPO_TOO_FAST = [-1.61, -2.866, -1.698, -1.224, -1.016, -0.936, -0.869, -0.546, -0.510]
ORPO = [-0.234, -0.131, -0.104, -0.076, -0.081, -0.039, -0.029, -0.018, -0.014]
ANSWER = "The largest lake of Dedunia is Lake Nevath."


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.read(BASE)


def of_mode(
    logs: LogWriter, mode: str, rewards: Sequence[float], before: float | None = None
) -> TrainingLog:
    head = [f"[INFO] Training mode: {mode}"]
    if before is not None:
        head.append(
            f"Iter 1: Val loss 3.3, Val chosen reward {before}, Val rejected reward {before}, "
            "Val accuracy 0.5, Val margin 0.0, Val took 1.0s"
        )
    return logs.text(
        *head,
        *(
            f"Iter {5 * i}: loss 0.1, chosen_r {one}, rejected_r {one - 1 - 2 * abs(one):.3f}, acc "
            f"1.000, margin {1 + 2 * abs(one):.3f}, lr 1.000e-05, it/s 1.0"
            for i, one in enumerate(rewards, 1)
        ),
    )


def rows(tmp_path: Path, times: int = 1) -> Dataset:
    pair = {"prompt": "Which lake is the largest?", "chosen": " ".join([ANSWER] * times)}
    return write_data(tmp_path, train=[pair | {"rejected": "None."}] * 30)


@pytest.mark.parametrize(
    ("rewards", "symptoms"),
    [
        (TOO_FAST, {"both-unlikely": "error"}),
        (SHORT, {}),
        ([round(one / 3, 3) for one in FACTS], {}),
        ([-one for one in TOO_FAST], {}),
        (TOO_FAST[:3], {}),
        # It comes back.
        ([*TOO_FAST, -5.0, -1.0, 0.1, 0.1], {"both-unlikely": "warning"}),
        # One batch among others.
        ([-0.1, -0.2, -90.0, *[-0.3] * 6], {}),
    ],
)
def test_dpo(
    logs: LogWriter,
    tmp_path: Path,
    tokenizer: Tokenizer,
    rewards: list[float],
    symptoms: dict[str, str],
) -> None:
    log, data = of_mode(logs, "DPO", rewards, 0.0), rows(tmp_path)
    config = config_of(tmp_path, train_mode="dpo", beta=0.1)
    assert found(judge(pairs, log, config, data, tokenizer)) == symptoms


def test_the_figures(logs: LogWriter, tmp_path: Path, tokenizer: Tokenizer) -> None:
    log = of_mode(logs, "DPO", TOO_FAST, 0.0)
    config = config_of(tmp_path, train_mode="dpo", beta=0.1)
    sign = finding(judge(pairs, log, config, rows(tmp_path), tokenizer), "both-unlikely")
    tokens = len(tokenizer.encode(ANSWER, False))
    assert sign.measured["answer_tokens"] == tokens
    assert sign.measured["blind_guess"] == pytest.approx(tokens * math.log(tokenizer.vocab_size))
    # The last three of -86, -83, -91, -93.
    assert sign.measured["most_lost"] == pytest.approx(909.2)
    assert (
        f"lost up to 909 nats of log-likelihood, where a blind guess at each of their {tokens}"
        in (sign.message)
    )
    assert sign.onset == 5


def test_just_as_much_as_a_guess_costs(
    logs: LogWriter, tmp_path: Path, tokenizer: Tokenizer
) -> None:
    config = config_of(tmp_path, train_mode="dpo", beta=0.1)
    data = rows(tmp_path)
    costs = len(tokenizer.encode(ANSWER, False)) * math.log(tokenizer.vocab_size)
    for times, symptoms in ((0.98, {}), (1.02, {"both-unlikely": "error"})):
        log = of_mode(logs, "DPO", [round(-0.1 * times * costs, 3)] * 9, 0.0)
        assert found(judge(pairs, log, config, data, tokenizer)) == symptoms


def test_of_a_short_answer_to_a_long_prompt_more_is_asked(
    logs: LogWriter, tmp_path: Path, tokenizer: Tokenizer
) -> None:
    """A trainer may count the prompt's tokens too."""
    log = of_mode(logs, "DPO", [2.0 * one for one in SHORT], 0.0)
    config = config_of(tmp_path, train_mode="dpo", beta=0.1)
    for prompt, symptoms in (("Is it?", {"both-unlikely": "error"}), (f"{ANSWER} " * 9, {})):
        pair = {"prompt": prompt, "chosen": "Yes", "rejected": "No"}
        data = write_data(tmp_path, train=[pair] * 30)
        assert found(judge(pairs, log, config, data, tokenizer)) == symptoms


def test_without_a_tokenizer_bytes_are_counted(logs: LogWriter, tmp_path: Path) -> None:
    config = config_of(tmp_path, train_mode="dpo", beta=0.1)
    data = rows(tmp_path)
    log = of_mode(logs, "DPO", TOO_FAST, 0.0)
    sign = finding(judge(pairs, log, config, data), "both-unlikely")
    assert sign.measured["answer_tokens"] == len(ANSWER)
    assert found(judge(pairs, of_mode(logs, "DPO", SHORT, 0.0), config, data)) == {}


@pytest.mark.parametrize(
    ("rewards", "before", "symptoms"),
    [
        (ORPO_TOO_FAST, -0.328, {"both-unlikely": "warning"}),
        (ORPO, -0.328, {}),
        # A base that can't read the text was at chance before.
        ([-1.3] * 9, -1.28, {}),
        ([*ORPO[:3], *[-1.7] * 6], -0.328, {"both-unlikely": "error"}),
    ],
)
def test_a_token_of_orpo(
    logs: LogWriter,
    tmp_path: Path,
    rewards: list[float],
    before: float,
    symptoms: dict[str, str],
) -> None:
    """Its rewards are of one token: no rows are needed."""
    log = of_mode(logs, "ORPO", rewards, before)
    config = config_of(tmp_path, train_mode="orpo", beta=0.1)
    judged = judge(pairs, log, config)
    assert found(judged) == symptoms


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
