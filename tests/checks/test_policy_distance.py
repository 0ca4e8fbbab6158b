"""Divergence, entropy and length of answers in logs of reward training."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from mlxdoctor.evidence.training_log import TrainingLog
from tests.checks.data_evidence import config_of
from tests.checks.log_evidence import LogWriter, finding, found, judge
from tests.conftest import check_called

distance = check_called("policy-distance")
length = check_called("completion-length")


@pytest.fixture
def logs(tmp_path: Path) -> LogWriter:
    return LogWriter(tmp_path)


def records(logs: LogWriter, **series: Sequence[float]) -> TrainingLog:
    """As TRL prints them."""
    count = len(next(iter(series.values())))
    every = {"loss": [0.0] * count, "reward": [0.1 * i for i in range(count)], **series}
    return logs.text(
        *(
            "{"
            + ", ".join(f"'{name.replace('__', '/')}': {one[i]}" for name, one in every.items())
            + f", 'epoch': {i / 10}}}"
            for i in range(count)
        )
    )


@pytest.mark.parametrize(
    ("last", "symptoms"),
    [
        (0.5, {}),
        (2.9, {}),
        (3.1, {"kl-runaway": "warning"}),
        (10.1, {"kl-runaway": "error"}),
    ],
)
def test_a_divergence_a_token(logs: LogWriter, last: float, symptoms: dict[str, str]) -> None:
    outcome = judge(distance, records(logs, kl=[last * i / 9 for i in range(7)] + [last] * 3))
    assert found(outcome) == symptoms


def test_a_divergence_an_answer_is_a_sum(logs: LogWriter) -> None:
    def log(last: float) -> TrainingLog:
        return records(logs, objective__kl=[last * i / 9 for i in range(7)] + [last] * 3)

    assert found(judge(distance, log(30.0))) == {}
    assert "nats an answer." in finding(judge(distance, log(150.0)), "kl-runaway").message


def test_a_divergence_of_long_answers(logs: LogWriter, tmp_path: Path) -> None:
    """A nat a token is a hundred of a hundred tokens, and no more of five hundred."""

    def log(last: float) -> TrainingLog:
        return records(logs, objective__kl=[last * i / 9 for i in range(7)] + [last] * 3)

    long = config_of(tmp_path, response_length=512)
    assert found(judge(distance, log(150.0))) == {"kl-runaway": "warning"}
    assert found(judge(distance, log(150.0), long)) == {}
    assert found(judge(distance, log(600.0))) == {"kl-runaway": "error"}
    assert found(judge(distance, log(600.0), long)) == {"kl-runaway": "warning"}


def test_a_divergence_at_its_bound(logs: LogWriter) -> None:
    outcome = judge(distance, records(logs, kl=[1.0] * 8, kl_clip_ratio=[0.0] * 5 + [0.05] * 3))
    assert found(outcome) == {"kl-runaway": "error"}


def test_without_a_penalty_the_divergence_is_not_measured(logs: LogWriter) -> None:
    outcome = judge(distance, records(logs, kl=[0.0] * 8))
    assert found(outcome) == {}
    assert "policy-distance.kl-runaway" in outcome.unsought


@pytest.mark.parametrize(
    ("last", "rewards", "symptoms"),
    [
        (0.2, [0.5] * 10, {}),
        (0.04, [0.5] * 10, {"entropy-collapsed": "warning"}),
        (0.04, [0.1 * i for i in range(10)], {"entropy-collapsed": "info"}),
    ],
)
def test_entropy(
    logs: LogWriter, last: float, rewards: list[float], symptoms: dict[str, str]
) -> None:
    log = records(logs, entropy=[1.0] * 5 + [last] * 5, reward=rewards)
    assert found(judge(distance, log)) == symptoms


@pytest.mark.parametrize(
    ("shares", "symptoms"),
    [
        ([0.7] * 10, {}),
        ([0.9] * 10, {"cut-off": "warning"}),
        ([0.98] * 10, {"cut-off": "error"}),
        # A model that learns to end, and one that learns not to.
        ([0.98] * 5 + [0.3] * 5, {}),
        ([0.1] * 5 + [0.98] * 5, {}),
    ],
)
def test_answers_that_are_cut_off(
    logs: LogWriter, shares: list[float], symptoms: dict[str, str]
) -> None:
    assert found(judge(length, records(logs, completions__clipped_ratio=shares))) == symptoms


def test_missing_evidence(logs: LogWriter) -> None:
    pairs = logs.text("Iter 1: Train loss 0.69, Chosen reward 0.1, Rejected reward 0.0")
    for check in (distance, length):
        assert not judge(check, logs.losses([2.0, 1.0])).arises
        assert not judge(check, pairs).arises
        assert judge(check, records(logs, other=[1.0] * 8)).status.value == "inconclusive"
    few = records(logs, completions__clipped_ratio=[1.0] * 3)
    assert judge(length, few).status.value == "inconclusive"
