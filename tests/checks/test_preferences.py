"""Margins of pairs and rewards of answers in logs: what the loss asks for, and what was learned."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from mlxdoctor.evidence.training_log import TrainingLog
from tests.checks.data_evidence import config_of
from tests.checks.log_evidence import LogWriter, finding
from tests.conftest import check_called
from tests.given import outcome as judge
from tests.given import severities

preferences = check_called("preferences")
EQUAL = {"not-told-apart": "error"}
RISING = [0.1 * i for i in range(20)]
FALLING = [-0.1 * i for i in range(20)]
#: Losses that ask for such margins.
ASKING = [math.log1p(math.exp(margin)) for margin in FALLING]
GAINED = (0.0, 0.5, 1.0, 1.4)
EARNED = [0.5 + 0.05 * i for i in range(20)]
SPREAD = {"reward_std": [0.3] * 10 + [0.0] * 20}
LONGER = [60.0 + 10 * i for i in range(20)]
CUT = [0.02] * 5 + [0.06 * i for i in range(15)]
LENGTH, CUT_OFF = "completions/mean_length", "completions/clipped_ratio"


def pair_log(
    logs: LogWriter,
    margins: Sequence[float],
    *,
    losses: Sequence[float] | None = None,
    held_out: Sequence[tuple[float, float]] = (),
) -> TrainingLog:
    """As mlx-lm-lora 5 prints it; each validation has its chosen reward and margin."""
    lines = ["[INFO] Training mode: DPO"]
    apart = max(1, len(margins) // max(len(held_out), 1))
    validated = {i * apart: each for i, each in enumerate(held_out)}
    for i, margin in enumerate(margins):
        loss = losses[i] if losses is not None else math.log1p(math.exp(-margin))
        if i in validated:
            value, gap = validated[i]
            lines.append(
                f"Iter {i + 1}: Val loss 0.500, Val chosen reward {value:.3f}, Val "
                f"rejected reward {value - gap:.3f}, Val accuracy {float(gap > 0):.3f}, Val margin "
                f"{gap:.3f}, Val took 1.0s"
            )
        lines.append(
            f"Iter {i + 1}: loss {loss:.3f}, chosen_r {margin / 4:.3f}, rejected_r "
            f"{-0.75 * margin:.3f}, acc {float(margin > 0):.3f}, margin {margin:.3f}, it/s 1.0"
        )
    return logs.text(*lines)


@pytest.mark.parametrize(
    ("margins", "more", "symptoms"),
    [
        ([0.0] * 10, {}, EQUAL),
        # Told apart before anything was learned, and after it.
        ([8.7, 12.0, 14.0, 15.0], {}, {"told-apart-at-once": "info"}),
        ([0.5, 12.0, 14.0, 15.0], {}, {}),
        ([0.0] * 7, {}, {}),
        ([0.0, 0.009, -0.009, *[0.0] * 7], {}, {"not-told-apart": "warning"}),
        ([0.0] * 9 + [0.02], {}, {}),
        # The loss falls with the margin: this is what it asks for.
        (FALLING, {"losses": ASKING}, {"reversed": "error"}),
        (FALLING, {}, {}),
        # Files that disagree; and an overfitted run, which gives back what it gained.
        (
            RISING,
            {"held_out": [(x, x) for x in (0, -0.5, -1, -1.4)]},
            {"held-out-reversed": "error"},
        ),
        (RISING, {"held_out": [(x, x) for x in (0, 0.8, 0.4, 0.1)]}, {}),
    ],
)
def test_margins(
    logs: LogWriter, margins: list[float], more: dict[str, Any], symptoms: dict[str, str]
) -> None:
    assert severities(judge(preferences, pair_log(logs, margins, **more))) == symptoms


def test_what_was_learned(logs: LogWriter) -> None:
    outcome = judge(preferences, pair_log(logs, RISING, held_out=[(x, x) for x in GAINED]))
    assert severities(outcome) == {}
    assert [seen.learned for seen in outcome.seen] == [True]
    assert "margin on held-out rows went from 0.000 to 1.400" in outcome.seen[0].message
    # Without validation the rows trained on show it.
    outcome = judge(preferences, pair_log(logs, RISING))
    assert outcome.seen[0].learned
    assert "preferences.held-out-reversed" in outcome.unsought


@pytest.mark.parametrize(("beta", "hit"), [(None, True), (0.1, True), (0.01, False)])
def test_pairs_are_told_apart_in_nats(
    logs: LogWriter, tmp_path: Path, beta: float | None, hit: bool
) -> None:
    """With a beta of 0.01 it is 0.4 nats."""
    config = [] if beta is None else [config_of(tmp_path, beta=beta)]
    outcome = judge(preferences, pair_log(logs, [0.0, *[0.004] * 12]), *config)
    assert severities(outcome) == ({"not-told-apart": "warning"} if hit else {})


def test_missing_evidence(logs: LogWriter, tmp_path: Path) -> None:
    assert not judge(preferences, logs.losses([2.0, 1.0])).arises
    for mode, column in (("ORPO", "Learning rate 1e-5"), ("GRPO", "KL 0.1")):
        header = logs.text(f"Training mode: {mode}", f"Iter 1: Train loss 2.0, {column}")
        assert judge(preferences, header).status.value == "inconclusive"
    assert judge(preferences, pair_log(logs, [0.0, 0.1])).status.value == "inconclusive"
    of_rewards = judge(preferences, config_of(tmp_path, train_mode="grpo", beta=0.0))
    assert of_rewards.status.value == "inconclusive"
    assert not judge(preferences, config_of(tmp_path, beta=0.0)).arises
    assert judge(preferences, config_of(tmp_path, train_mode="dpo")).status.value == "inconclusive"


@pytest.mark.parametrize(
    ("mode", "beta", "severity"),
    [
        ("dpo", 0.1, None),
        ("dpo", 0.0, "error"),
        ("cpo", -0.1, "error"),
        ("dpo", 10.0, None),
        ("dpo", 50.0, "warning"),
        ("orpo", 500.0, "error"),
    ],
)
def test_beta(tmp_path: Path, mode: str, beta: float, severity: str | None) -> None:
    config = config_of(tmp_path, train_mode=mode, beta=beta)
    assert severities(judge(preferences, config)).get("beta-unusable") == severity


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
        ([0.3 + i / 14 for i in range(10)] + [1.0] * 20, SPREAD, {"spread-fades": "info"}),
        # They fall.
        ([0.60 - 0.02 * i for i in range(20)], {}, {"reversed": "error"}),
        ([0.60 - 0.002 * i for i in range(20)], {}, {}),
        ([0.60 + (0.2 if i % 2 else -0.2) - 0.005 * i for i in range(20)], {}, {}),
        # Around zero they fall by what they lie apart: a reward model's mean says nothing.
        ([0.05 - 0.005 * i for i in range(20)], {"reward_std": 1.0}, {}),
        ([0.05 - 0.005 * i for i in range(20)], {"reward_std": 0.05}, {"reversed": "error"}),
        # Ended at once, and far from where they began.
        ([0.0] * 2, {"reward_std": 0.0, LENGTH: 1.0}, {"ends-at-once": "warning"}),
        ([0.5] * 20, {"kl": [0.1 * i for i in range(20)]}, {"left-reference": "warning"}),
        # At once, by thousands.
        (
            [0.0] * 3,
            {"kl": [10833.0, 1678.4, 65.0]},
            {"left-reference": "error", "no-signal": "warning"},
        ),
        ([0.5] * 20, {"kl": [0.01 * i for i in range(20)]}, {}),
        # Below zero, where an estimate may lie by a little.
        ([0.5] * 20, {"kl": [-0.02 * i for i in range(20)]}, {"below-zero": "info"}),
        ([0.5] * 20, {"kl": [-0.002 * i for i in range(20)]}, {}),
        ([0.5] * 20, {"kl_penalty": [-0.02 * i for i in range(20)]}, {}),
        # They follow the length.
        (EARNED, {LENGTH: LONGER, CUT_OFF: CUT}, {"follows-length": "error"}),
        # Longer answers that still end may well be better ones.
        (EARNED, {LENGTH: LONGER, CUT_OFF: 0.02}, {}),
        # Cut off from the first report on: length has nothing to do with it.
        (EARNED, {LENGTH: 256.0, CUT_OFF: 1.0}, {"cut-off": "error"}),
        (EARNED, {LENGTH: 256.0}, {"at-one-length": "warning"}),
        (EARNED, {CUT_OFF: 0.7}, {}),
        (EARNED, {CUT_OFF: 0.9}, {"cut-off": "warning"}),
        (EARNED, {CUT_OFF: 0.98}, {"cut-off": "error"}),
        # Answers of a few tokens at last, and of some length.
        (EARNED, {LENGTH: [500.0] * 10 + [9.0] * 10}, {"shrinks": "warning"}),
        (EARNED, {LENGTH: [500.0] * 10 + [49.0] * 10}, {}),
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
    assert severities(judge(preferences, records(logs, earned, **series))) == symptoms


def test_what_was_learned_and_since_when_nothing_is(logs: LogWriter) -> None:
    risen = records(logs, [0.3 + i / 14 for i in range(10)] + [1.0] * 20, **SPREAD)
    assert [seen.learned for seen in judge(preferences, risen).seen] == [True]
    lost = finding(judge(preferences, records(logs, [0.5] * 30, **SPREAD)), "no-signal")
    assert (lost.severity, lost.onset) == ("warning", 11)
    assert "first at report 11" in lost.message


@pytest.mark.parametrize(
    ("reports", "step", "is_said"), [(8, 0.0, True), (7, 0.0, False), (50, 0.02, False)]
)
def test_a_reward_that_stays_where_it_was(
    logs: LogWriter, reports: int, step: float, is_said: bool
) -> None:
    rows = [
        f"Iter {i}: Train loss 0.001, Total rewards mean {0.4 + (i % 3) / 10 + step * i:.3f}"
        for i in range(1, reports + 1)
    ]
    said = [seen.message for seen in judge(preferences, logs.text(*rows)).seen]
    assert any("does not rise" in one for one in said) is is_said


@pytest.mark.parametrize(
    ("chosen", "rejected", "codes"),
    [
        (15.8, 15.6, {"starts-apart": "info"}),
        (0.3, 0.1, {}),
        # Of a loss without a reference they are log-likelihoods.
        (-15.8, -15.6, {}),
    ],
)
def test_where_rewards_begin(
    logs: LogWriter, chosen: float, rejected: float, codes: dict[str, str]
) -> None:
    form = "{{'loss': 0.6, 'rewards/chosen': {}, 'rewards/rejected': {}, 'epoch': 0.{}}}"
    lines = (form.format(chosen + i / 10, rejected, i) for i in range(5))
    assert severities(judge(preferences, logs.text(*lines))) == codes
