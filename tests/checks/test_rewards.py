"""Rewards of answers in logs."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from mlxdoctor.evidence.training_log import TrainingLog
from tests.checks.log_evidence import LogWriter, finding, found, judge
from tests.conftest import check_called

rewards = check_called("rewards")


def group_log(
    logs: LogWriter, earned: Sequence[float], spread: Sequence[float] | float = 0.1
) -> TrainingLog:
    spreads = spread if isinstance(spread, Sequence) else [spread] * len(earned)
    return logs.text(
        *(
            f"Iter {i}: Train loss 0.000, Total rewards mean {one:.3f}, Grouped rewards std "
            f"{wide:.3f}, KL 0.010"
            for i, (one, wide) in enumerate(zip(earned, spreads, strict=True), 1)
        )
    )


def length_log(
    logs: LogWriter, earned: Sequence[float], length: Sequence[float], cut: Sequence[float]
) -> TrainingLog:
    """As TRL prints it."""
    return logs.text(
        *(
            f"{{'loss': 0.0, 'reward': {one}, 'reward_std': 0.2, 'completions/mean_length': {long},"
            f" 'completions/clipped_ratio': {share}, 'kl': 0.01, 'epoch': {i / 10}}}"
            for i, (one, long, share) in enumerate(zip(earned, length, cut, strict=True), 1)
        )
    )


@pytest.mark.parametrize(
    ("earned", "spread", "symptoms"),
    [
        ([0.0] * 10, 0.0, {"no-signal": "error"}),
        ([0.0] * 9, 0.0, {"no-signal": "warning"}),
        ([0.0] * 2, 0.0, {}),
        ([0.0] * 9 + [0.1], 0.1, {}),
        ([1.0] * 10, 0.0, {"no-signal": "error"}),
        ([1.0] * 9, 0.0, {"no-signal": "warning"}),
        ([1.0] * 9 + [0.9], [0.0] * 9 + [0.2], {}),
    ],
)
def test_rewards_that_are_alike(
    logs: LogWriter, earned: list[float], spread: float, symptoms: dict[str, str]
) -> None:
    assert found(judge(rewards, group_log(logs, earned, spread))) == symptoms


def test_a_task_that_was_learned_has_no_spread_left(logs: LogWriter) -> None:
    spread = [0.3] * 10 + [0.0] * 20
    risen = judge(rewards, group_log(logs, [0.3 + i / 14 for i in range(10)] + [1.0] * 20, spread))
    assert found(risen) == {}
    assert [one.learned for one in risen.seen] == [True]
    stuck = judge(rewards, group_log(logs, [0.5] * 30, spread))
    assert found(stuck) == {"no-signal": "warning"}
    lost = finding(stuck, "no-signal")
    assert lost.onset == 11
    assert "from iteration 11 on" in lost.message


@pytest.mark.parametrize(
    ("earned", "symptoms"),
    [
        ([0.60 - 0.02 * i for i in range(20)], {"fell": "error"}),
        ([0.60 - 0.002 * i for i in range(20)], {}),
        ([0.60 + (0.2 if i % 2 else -0.2) - 0.005 * i for i in range(20)], {}),
        ([0.30 + 0.02 * i for i in range(20)], {}),
    ],
)
def test_rewards_that_fall(logs: LogWriter, earned: list[float], symptoms: dict[str, str]) -> None:
    assert found(judge(rewards, group_log(logs, earned))) == symptoms


def test_rewards_around_zero_fall_by_what_they_lie_apart(logs: LogWriter) -> None:
    """A reward model's mean says nothing of their size."""
    falling = [0.05 - 0.005 * i for i in range(20)]
    assert found(judge(rewards, group_log(logs, falling, 1.0))) == {}
    assert found(judge(rewards, group_log(logs, falling, 0.05))) == {"fell": "error"}


def test_rewards_that_follow_the_length(logs: LogWriter) -> None:
    earned = [0.5 + 0.05 * i for i in range(20)]
    length = [60.0 + 10 * i for i in range(20)]
    cut = [0.02] * 5 + [0.06 * i for i in range(15)]
    outcome = judge(rewards, length_log(logs, earned, length, cut))
    assert found(outcome) == {"follows-length": "error"}
    # Longer answers that still end may well be better ones.
    ended = judge(rewards, length_log(logs, earned, length, [0.02] * 20))
    assert found(ended) == {}
    assert ended.seen[0].learned
    # Cut off from the first report on: length has nothing to do with it.
    cut_off = judge(rewards, length_log(logs, earned, [256.0] * 20, [1.0] * 20))
    assert found(cut_off) == {"cut-off": "error"}


def test_groups_without_spread_as_trl_counts_them(logs: LogWriter) -> None:
    def log(share: float) -> TrainingLog:
        return logs.text(
            *(
                f"{{'loss': 0.0, 'reward': 0.25, 'reward_std': 0.4, 'frac_reward_zero_std': {share}"
                f", 'epoch': {i / 10}}}"
                for i in range(1, 12)
            )
        )

    assert found(judge(rewards, log(1.0))) == {"no-signal": "error"}
    assert found(judge(rewards, log(0.9))) == {}


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
        (3.1, {"left-reference": "warning"}),
        (10.1, {"left-reference": "error"}),
    ],
)
def test_a_divergence_a_token(logs: LogWriter, last: float, symptoms: dict[str, str]) -> None:
    outcome = judge(rewards, records(logs, kl=[last * i / 9 for i in range(7)] + [last] * 3))
    assert found(outcome) == symptoms


def test_a_divergence_an_answer_is_a_sum(logs: LogWriter) -> None:
    def log(last: float, **more: list[float]) -> TrainingLog:
        return records(logs, objective__kl=[last * i / 9 for i in range(7)] + [last] * 3, **more)

    length = {"completions__mean_length": [50.0] * 10}
    assert found(judge(rewards, log(145.0, **length))) == {}
    assert found(judge(rewards, log(155.0, **length))) == {"left-reference": "warning"}
    # How many tokens an answer has is not known.
    assert "rewards.left-reference" in judge(rewards, log(600.0)).unsought


def test_without_a_penalty_the_divergence_is_not_measured(logs: LogWriter) -> None:
    outcome = judge(rewards, records(logs, kl=[0.0] * 8))
    assert found(outcome) == {}
    assert "rewards.left-reference" in outcome.unsought


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
    assert found(judge(rewards, records(logs, completions__clipped_ratio=shares))) == symptoms


def test_missing_evidence(logs: LogWriter) -> None:
    ordinary = judge(rewards, logs.losses([2.0, 1.0]))
    assert (ordinary.status.value, ordinary.arises) == ("skipped", False)
    assert judge(rewards).status.value == "skipped"
    header = logs.text("Training mode: GRPO", "Iter 1: Train loss 2.0, KL 0.1")
    assert judge(rewards, header).status.value == "inconclusive"
    pairs = logs.text("Iter 1: Train loss 0.69, Chosen reward 0.1, Rejected reward 0.0")
    assert not judge(rewards, pairs).arises
