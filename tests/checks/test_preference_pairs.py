"""Margins and accuracies of pairs in logs: what the loss asks for, and what was learned."""

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

pairs = check_called("preference-pairs")
EQUAL = {"exactly-equal": "error"}
RISING = [0.1 * i for i in range(20)]
FALLING = [-0.1 * i for i in range(20)]
#: Losses that ask for such margins.
ASKING = [math.log1p(math.exp(margin)) for margin in FALLING]
GAINED = (0.0, 0.5, 1.0, 1.4)
#: Rewards of chosen answers, as mlx-lm-lora 5.10.2 printed them of a model of 135 million
#: parameters: DPO at fifty times a sound rate, and two sound runs, the second with a beta of 0.3.
TOO_FAST = [-11.157, -28.489, -47.279, -61.141, -80.947, -86.056, -83.37, -90.92, -93.157]
SHORT = [-0.068, -0.67, -1.201, -1.852, -2.799, -2.82, -2.943, -3.479, -3.342]
FACTS = [-0.205, -0.265, -1.507, -2.78, -2.022, -12.039, -13.306, -16.89, -15.304]


def pair_log(
    logs: LogWriter,
    margins: Sequence[float],
    *,
    losses: Sequence[float] | None = None,
    chosen: Sequence[float] | None = None,
    held_out: Sequence[tuple[float, float]] = (),
    mode: str = "DPO",
    every: int = 1,
) -> TrainingLog:
    """As mlx-lm-lora 5 prints it; the loss is DPO's unless it is given.

    Args:
        logs: writes it.
        margins: of the reports.
        losses: of the reports.
        chosen: rewards of the chosen answers.
        held_out: chosen reward and margin of each validation.
        mode: of the training.
        every: so many iterations there is a report.
    """
    lines = [f"[INFO] Training mode: {mode}"]
    apart = max(1, len(margins) // max(len(held_out), 1))
    validated = {i * apart: each for i, each in enumerate(held_out)}
    for i, margin in enumerate(margins):
        loss = losses[i] if losses is not None else math.log1p(math.exp(-margin))
        up = chosen[i] if chosen is not None else margin / 4
        if i in validated:
            value, gap = validated[i]
            lines.append(
                f"Iter {every * i + 1}: Val loss 0.500, Val chosen reward {value:.3f}, Val "
                f"rejected reward {value - gap:.3f}, Val accuracy {float(gap > 0):.3f}, Val margin "
                f"{gap:.3f}, Val took 1.0s"
            )
        lines.append(
            f"Iter {every * (i + 1)}: loss {loss:.3f}, chosen_r {up:.3f}, rejected_r "
            f"{up - margin:.3f}, acc {float(margin > 0):.3f}, margin {margin:.3f}, it/s 1.0"
        )
    return logs.text(*lines)


def of_chosen(
    logs: LogWriter, rewards: Sequence[float], before: float = 0.0, mode: str = "DPO"
) -> TrainingLog:
    """A run in which pairs are told apart, with these rewards of the chosen answers."""
    margins = [1 + 2 * abs(reward) for reward in rewards]
    losses = [0.1] * len(rewards)
    held_out = [(before, 0.0)]
    return pair_log(
        logs, margins, losses=losses, chosen=rewards, held_out=held_out, mode=mode, every=5
    )


@pytest.mark.parametrize(
    ("margins", "more", "symptoms"),
    [
        ([0.0] * 10, {}, EQUAL),
        ([0.0] * 9, {}, {}),
        ([0.0, 0.009, -0.009, *[0.0] * 7], {}, {"not-told-apart": "warning"}),
        ([0.0] * 9 + [0.02], {}, {}),
        # The loss falls with the margin: this is what it asks for.
        (FALLING, {"losses": ASKING}, {"rejected-wins": "error"}),
        (FALLING, {"chosen": [x / 10 for x in FALLING]}, {"margin-lost": "error"}),
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
    assert severities(judge(pairs, pair_log(logs, margins, **more))) == symptoms


def test_what_was_learned(logs: LogWriter) -> None:
    outcome = judge(pairs, pair_log(logs, RISING, held_out=[(x, x) for x in GAINED]))
    assert severities(outcome) == {}
    assert [seen.learned for seen in outcome.seen] == [True]
    assert "from 0.000 to 1.400 on validation rows" in outcome.seen[0].message
    # Without validation the rows trained on show it.
    outcome = judge(pairs, pair_log(logs, RISING))
    assert outcome.seen[0].learned
    assert "preference-pairs.held-out-reversed" in outcome.unsought
    # ORPO teaches the chosen answers too.
    chosen = [-0.5 + i / 40 for i in range(1, 14)]
    margins = [*[0.01] * 12, 0.02]
    (seen,) = judge(pairs, pair_log(logs, margins, chosen=chosen, mode="ORPO")).seen
    assert seen.learned
    assert "log-likelihood" in seen.message


@pytest.mark.parametrize(("beta", "hit"), [(None, True), (0.1, True), (0.01, False)])
def test_pairs_are_told_apart_in_nats(
    logs: LogWriter, tmp_path: Path, beta: float | None, hit: bool
) -> None:
    """With a beta of 0.01 it is 0.4 nats."""
    config = [] if beta is None else [config_of(tmp_path, beta=beta)]
    outcome = judge(pairs, pair_log(logs, [0.0, *[0.004] * 12]), *config)
    assert severities(outcome) == ({"not-told-apart": "warning"} if hit else {})


@pytest.mark.parametrize(
    ("rewards", "severity"),
    [
        (TOO_FAST, "error"),
        (SHORT, None),
        ([round(reward / 3, 3) for reward in FACTS], None),
        ([-reward for reward in TOO_FAST], None),
        (TOO_FAST[:3], None),
        # It comes back; and one batch among others.
        ([*TOO_FAST, -5.0, -1.0, 0.1, 0.1], "warning"),
        ([-0.1, -0.2, -90.0, *[-0.3] * 6], None),
        ([-29.9] * 9, None),
        ([-30.1] * 9, "error"),
    ],
)
def test_chosen_answers_that_become_unlikely(
    logs: LogWriter, tmp_path: Path, rewards: list[float], severity: str | None
) -> None:
    config = config_of(tmp_path, train_mode="dpo", beta=0.1)
    outcome = judge(pairs, of_chosen(logs, rewards), config)
    assert severities(outcome) == ({} if severity is None else {"both-unlikely": severity})
    if rewards is TOO_FAST:
        # The last three of -86, -83, -91, -93.
        sign = finding(outcome, "both-unlikely")
        assert sign.measured["most_lost"] == pytest.approx(909.2)
        assert "lost up to 909 nats of log-likelihood" in sign.message


#: ORPO at fifty times a sound rate, and sound.
ORPO_TOO_FAST = [-1.61, -2.866, -1.698, -1.224, -1.016, -0.936, -0.869, -0.546, -0.510]
ORPO = [-0.234, -0.131, -0.104, -0.076, -0.081, -0.039, -0.029, -0.018, -0.014]


@pytest.mark.parametrize(
    ("rewards", "before", "severity"),
    [
        (ORPO_TOO_FAST, -0.328, "warning"),
        (ORPO, -0.328, None),
        # A base that can't read the text was at chance before.
        ([-1.3] * 9, -1.28, None),
        ([*ORPO[:3], *[-1.7] * 6], -0.328, "error"),
    ],
)
def test_the_rewards_of_orpo_are_of_one_token(
    logs: LogWriter, tmp_path: Path, rewards: list[float], before: float, severity: str | None
) -> None:
    config = config_of(tmp_path, train_mode="orpo", beta=0.1)
    outcome = judge(pairs, of_chosen(logs, rewards, before, "ORPO"), config)
    assert severities(outcome).get("both-unlikely") == severity


def test_without_beta_no_likelihood_is_known(logs: LogWriter) -> None:
    outcome = judge(pairs, of_chosen(logs, TOO_FAST))
    assert "preference-pairs.both-unlikely" in outcome.unsought


def test_missing_evidence(logs: LogWriter, tmp_path: Path) -> None:
    assert not judge(pairs, logs.losses([2.0, 1.0])).arises
    header = logs.text("Training mode: ORPO", "Iter 1: Train loss 2.0, Learning rate 1e-5")
    assert judge(pairs, header).status.value == "inconclusive"
    assert judge(pairs, pair_log(logs, [0.0, 0.1])).status.value == "inconclusive"
    assert not judge(pairs, config_of(tmp_path, train_mode="grpo", beta=0.0)).arises
    assert not judge(pairs, config_of(tmp_path, beta=0.0)).arises
    assert judge(pairs, config_of(tmp_path, train_mode="dpo")).status.value == "inconclusive"


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
    assert severities(judge(pairs, config)).get("beta-unusable") == severity
