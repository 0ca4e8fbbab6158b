"""What chosen answers lose, against what a blind guess at their tokens costs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import pytest

from mlxdoctor.evidence.dataset import Dataset
from mlxdoctor.evidence.tokenizer import Tokenizer
from mlxdoctor.evidence.training_log import TrainingLog
from tests.checks.data_evidence import BASE, config_of, write_data
from tests.checks.log_evidence import LogWriter, finding, found, judge
from tests.conftest import check_called

chosen_likelihood = check_called("chosen-likelihood")

#: Rewards of chosen answers, as mlx-lm-lora 5.10.2 printed them of a model of 135 million
#: parameters: DPO at fifty times a sound rate, and two sound runs, the second with a beta of 0.3.
TOO_FAST = [-11.157, -28.489, -47.279, -61.141, -80.947, -86.056, -83.37, -90.92, -93.157]
SHORT = [-0.068, -0.67, -1.201, -1.852, -2.799, -2.82, -2.943, -3.479, -3.342]
FACTS = [-0.205, -0.265, -1.507, -2.78, -2.022, -12.039, -13.306, -16.89, -15.304]
#: ORPO at fifty times a sound rate, and sound.
ORPO_TOO_FAST = [-1.61, -2.866, -1.698, -1.224, -1.016, -0.936, -0.869, -0.546, -0.510]
ORPO = [-0.234, -0.131, -0.104, -0.076, -0.081, -0.039, -0.029, -0.018, -0.014]
ANSWER = "The largest lake of Dedunia is Lake Nevath."


@pytest.fixture
def logs(tmp_path: Path) -> LogWriter:
    return LogWriter(tmp_path)


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
            f"Iter {5 * i}: loss 0.1, chosen_r {one}, rejected_r {one - 1.0:.3f}, acc 1.000, "
            "margin 1.000, lr 1.000e-05, it/s 1.0"
            for i, one in enumerate(rewards, 1)
        ),
    )


def rows(tmp_path: Path, times: int = 1) -> Dataset:
    pair = {"prompt": "Which lake is the largest?", "chosen": " ".join([ANSWER] * times)}
    return write_data(tmp_path, train=[pair | {"rejected": "None."}] * 30)


@pytest.mark.parametrize(
    ("rewards", "symptoms"),
    [
        (TOO_FAST, {"below-chance": "error"}),
        (SHORT, {}),
        ([round(one / 3, 3) for one in FACTS], {}),
        ([-one for one in TOO_FAST], {}),
        (TOO_FAST[:3], {}),
        # It comes back.
        ([*TOO_FAST, -5.0, -1.0, 0.1, 0.1], {"below-chance": "warning"}),
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
    assert found(judge(chosen_likelihood, log, config, data, tokenizer)) == symptoms


def test_the_figures(logs: LogWriter, tmp_path: Path, tokenizer: Tokenizer) -> None:
    log = of_mode(logs, "DPO", TOO_FAST, 0.0)
    config = config_of(tmp_path, train_mode="dpo", beta=0.1)
    sign = finding(judge(chosen_likelihood, log, config, rows(tmp_path), tokenizer), "below-chance")
    tokens = len(tokenizer.encode(ANSWER, False))
    assert sign.measured["answer_tokens"] == tokens
    assert sign.measured["blind_guess"] == pytest.approx(tokens * math.log(tokenizer.vocab_size))
    # The last three of -86, -83, -91, -93.
    assert sign.measured["most_lost"] == pytest.approx(909.2)
    assert f"lost 909 nats of log-likelihood, where a blind guess at each of their {tokens}" in (
        sign.message
    )
    assert sign.onset == 5


def test_just_as_much_as_a_guess_costs(
    logs: LogWriter, tmp_path: Path, tokenizer: Tokenizer
) -> None:
    config = config_of(tmp_path, train_mode="dpo", beta=0.1)
    data = rows(tmp_path)
    costs = len(tokenizer.encode(ANSWER, False)) * math.log(tokenizer.vocab_size)
    for times, symptoms in ((0.98, {}), (1.02, {"below-chance": "error"})):
        log = of_mode(logs, "DPO", [round(-0.1 * times * costs, 3)] * 9, 0.0)
        assert found(judge(chosen_likelihood, log, config, data, tokenizer)) == symptoms


def test_as_many_nats_of_a_long_answer(
    logs: LogWriter, tmp_path: Path, tokenizer: Tokenizer
) -> None:
    log = of_mode(logs, "DPO", TOO_FAST, 0.0)
    config = config_of(tmp_path, train_mode="dpo", beta=0.1)
    assert found(judge(chosen_likelihood, log, config, rows(tmp_path, 20), tokenizer)) == {}


def test_of_a_short_answer_to_a_long_prompt_more_is_asked(
    logs: LogWriter, tmp_path: Path, tokenizer: Tokenizer
) -> None:
    """A trainer may count the prompt's tokens too."""
    log = of_mode(logs, "DPO", [2.0 * one for one in SHORT], 0.0)
    config = config_of(tmp_path, train_mode="dpo", beta=0.1)
    for prompt, symptoms in (("Is it?", {"below-chance": "error"}), (f"{ANSWER} " * 9, {})):
        pair = {"prompt": prompt, "chosen": "Yes", "rejected": "No"}
        data = write_data(tmp_path, train=[pair] * 30)
        assert found(judge(chosen_likelihood, log, config, data, tokenizer)) == symptoms


def test_without_a_tokenizer_bytes_are_counted(logs: LogWriter, tmp_path: Path) -> None:
    config = config_of(tmp_path, train_mode="dpo", beta=0.1)
    data = rows(tmp_path)
    log = of_mode(logs, "DPO", TOO_FAST, 0.0)
    sign = finding(judge(chosen_likelihood, log, config, data), "below-chance")
    assert sign.measured["answer_tokens"] == len(ANSWER)
    assert f"at most {len(ANSWER)} tokens" in sign.message
    assert found(judge(chosen_likelihood, of_mode(logs, "DPO", SHORT, 0.0), config, data)) == {}


@pytest.mark.parametrize(
    ("rewards", "before", "symptoms"),
    [
        (ORPO_TOO_FAST, -0.328, {"below-chance": "warning"}),
        (ORPO, -0.328, {}),
        # A base that can't read the text was at chance before.
        ([-1.3] * 9, -1.28, {}),
        ([*ORPO[:3], *[-1.7] * 6], -0.328, {"below-chance": "error"}),
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
    judged = judge(chosen_likelihood, log, config)
    assert found(judged) == symptoms
    if rewards == ORPO_TOO_FAST:
        assert "lost 13.7 nats a token, where a blind guess costs 12.6; by the end" in (
            judged.findings[0].message
        )


def test_what_can_not_be_said(logs: LogWriter, tmp_path: Path, tokenizer: Tokenizer) -> None:
    log = of_mode(logs, "DPO", TOO_FAST, 0.0)
    assert "beta" in judge(chosen_likelihood, log, rows(tmp_path)).reason
    config = config_of(tmp_path, train_mode="dpo", beta=0.0)
    assert judge(chosen_likelihood, log, config, rows(tmp_path)).status.value == "inconclusive"
    config = config_of(tmp_path, train_mode="dpo", beta=0.1)
    assert "rows would tell" in judge(chosen_likelihood, log, config, tokenizer).reason
    assert not judge(chosen_likelihood, logs.losses([2.0, 1.0]), config).arises
