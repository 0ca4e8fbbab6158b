"""Rewards of answers in logs."""

from collections.abc import Sequence

import pytest

from mlxdoctor.evidence.training_log import TrainingLog
from tests.checks.log_evidence import LogWriter, finding
from tests.conftest import check_called
from tests.given import outcome as judge
from tests.given import severities

rewards = check_called("rewards")
EARNED = [0.5 + 0.05 * i for i in range(20)]
SPREAD = {"reward_std": [0.3] * 10 + [0.0] * 20}
LONGER = [60.0 + 10 * i for i in range(20)]
CUT = [0.02] * 5 + [0.06 * i for i in range(15)]
LENGTH, CUT_OFF = "completions/mean_length", "completions/clipped_ratio"


def records(
    logs: LogWriter, earned: Sequence[float], **series: float | Sequence[float]
) -> TrainingLog:
    """As TRL prints them."""
    columns = {"loss": 0.0, "reward": earned, **series}
    rows = [{"epoch": i / 10} for i in range(len(earned))]
    for name, values in columns.items():
        for i, row in enumerate(rows):
            row[name] = values if isinstance(values, float) else values[i]
    return logs.text(*map(repr, rows))


@pytest.mark.parametrize(
    ("earned", "series", "symptoms"),
    [
        # All answers have the same reward.
        ([0.0] * 10, {"reward_std": 0.0}, {"no-signal": "error"}),
        ([0.0] * 9, {"reward_std": 0.0}, {"no-signal": "warning"}),
        ([0.0] * 2, {"reward_std": 0.0}, {}),
        ([0.0] * 9 + [0.1], {"reward_std": 0.1}, {}),
        ([1.0] * 10, {"reward_std": 0.0}, {"no-signal": "error"}),
        ([1.0] * 9, {"reward_std": 0.0}, {"no-signal": "warning"}),
        ([1.0] * 9 + [0.9], {"reward_std": [0.0] * 9 + [0.2]}, {}),
        ([0.25] * 11, {"reward_std": 0.4, "frac_reward_zero_std": 1.0}, {"no-signal": "error"}),
        ([0.25] * 11, {"reward_std": 0.4, "frac_reward_zero_std": 0.9}, {}),
        # A task that was learned has no spread left.
        ([0.3 + i / 14 for i in range(10)] + [1.0] * 20, SPREAD, {}),
        # They fall.
        ([0.60 - 0.02 * i for i in range(20)], {}, {"fell": "error"}),
        ([0.60 - 0.002 * i for i in range(20)], {}, {}),
        ([0.60 + (0.2 if i % 2 else -0.2) - 0.005 * i for i in range(20)], {}, {}),
        # Around zero they fall by what they lie apart: a reward model's mean says nothing.
        ([0.05 - 0.005 * i for i in range(20)], {"reward_std": 1.0}, {}),
        ([0.05 - 0.005 * i for i in range(20)], {"reward_std": 0.05}, {"fell": "error"}),
        # They follow the length.
        (EARNED, {LENGTH: LONGER, CUT_OFF: CUT}, {"follows-length": "error"}),
        # Longer answers that still end may well be better ones.
        (EARNED, {LENGTH: LONGER, CUT_OFF: 0.02}, {}),
        # Cut off from the first report on: length has nothing to do with it.
        (EARNED, {LENGTH: 256.0, CUT_OFF: 1.0}, {"cut-off": "error"}),
        (EARNED, {CUT_OFF: 0.7}, {}),
        (EARNED, {CUT_OFF: 0.9}, {"cut-off": "warning"}),
        (EARNED, {CUT_OFF: 0.98}, {"cut-off": "error"}),
        # A model that learns to end, and one that learns not to.
        (EARNED, {CUT_OFF: [0.98] * 10 + [0.3] * 10}, {}),
        (EARNED, {CUT_OFF: [0.1] * 10 + [0.98] * 10}, {}),
    ],
)
def test_rewards(
    logs: LogWriter,
    earned: list[float],
    series: dict[str, float | list[float]],
    symptoms: dict[str, str],
) -> None:
    assert severities(judge(rewards, records(logs, earned, **series))) == symptoms


def test_what_was_learned_and_since_when_nothing_is(logs: LogWriter) -> None:
    risen = records(logs, [0.3 + i / 14 for i in range(10)] + [1.0] * 20, **SPREAD)
    assert [seen.learned for seen in judge(rewards, risen).seen] == [True]
    lost = finding(judge(rewards, records(logs, [0.5] * 30, **SPREAD)), "no-signal")
    assert (lost.severity, lost.onset) == ("warning", 11)
    assert "from report 11 on" in lost.message


@pytest.mark.parametrize(
    ("last", "series", "severity"),
    [
        (0.5, {}, None),
        (2.9, {}, None),
        (3.1, {}, "warning"),
        (10.1, {}, "error"),
        # That of an answer is a sum over its tokens.
        (145.0, {LENGTH: 50.0}, None),
        (155.0, {LENGTH: 50.0}, "warning"),
    ],
)
def test_a_divergence_a_token(
    logs: LogWriter, last: float, series: dict[str, float], severity: str | None
) -> None:
    name = "objective/kl" if series else "kl"
    series = series | {name: [last * i / 9 for i in range(7)] + [last] * 3}
    outcome = judge(rewards, records(logs, EARNED[:10], **series))
    assert severities(outcome) == ({} if severity is None else {"left-reference": severity})


@pytest.mark.parametrize("series", [{"objective/kl": 600.0}, {"kl": 0.0}])
def test_a_divergence_that_is_not_known(logs: LogWriter, series: dict[str, float]) -> None:
    """How many tokens an answer has is not known; without a penalty it is not measured."""
    outcome = judge(rewards, records(logs, EARNED[:10], **series))
    assert severities(outcome) == {}
    assert "rewards.left-reference" in outcome.unsought


def test_missing_evidence(logs: LogWriter) -> None:
    ordinary = judge(rewards, logs.losses([2.0, 1.0]))
    assert (ordinary.status.value, ordinary.arises) == ("skipped", False)
    header = logs.text("Training mode: GRPO", "Iter 1: Train loss 2.0, KL 0.1")
    assert judge(rewards, header).status.value == "inconclusive"
    pairs = logs.text("Iter 1: Train loss 0.69, Chosen reward 0.1, Rejected reward 0.0")
    assert not judge(rewards, pairs).arises
