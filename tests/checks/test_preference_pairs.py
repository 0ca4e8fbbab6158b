"""Margins and accuracies of pairs in logs: what the loss asks for, and what was learned."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import pytest

from mlxdoctor.evidence.tokenizer import Tokenizer
from mlxdoctor.evidence.training_log import TrainingLog
from tests.checks.data_evidence import BASE, config_of, write_data
from tests.checks.log_evidence import LogWriter, finding, found, judge
from tests.conftest import check_called

pairs = check_called("preference-pairs")
progress = check_called("policy-progress")


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
    assert found(judge(pairs, log)) == found(judge(progress, log)) == {}
    (seen,) = judge(progress, log).seen
    assert seen.learned
    assert "from 0.000 to 1.400 on validation rows" in seen.message


def test_without_validation_the_rows_trained_on_show_it(logs: LogWriter) -> None:
    log = pair_log(logs, RISING)
    assert judge(progress, log).seen[0].learned
    assert "preference-pairs.held-out-reversed" in judge(pairs, log).unsought


@pytest.mark.parametrize(
    ("margins", "of_pairs", "of_progress"),
    [
        ([0.0] * 10, {"exactly-equal": "error"}, {"not-told-apart": "warning"}),
        ([0.0] * 9, {}, {}),
        ([0.0, 0.009, -0.009, *[0.0] * 7], {}, {"not-told-apart": "warning"}),
        ([0.0] * 9 + [0.02], {}, {}),
    ],
)
def test_pairs_that_stay_equal(
    logs: LogWriter,
    margins: list[float],
    of_pairs: dict[str, str],
    of_progress: dict[str, str],
) -> None:
    log = pair_log(logs, margins)
    assert found(judge(pairs, log)) == of_pairs
    assert found(judge(progress, log)) == of_progress


def test_the_loss_that_stays_at_ln_2_is_said(logs: LogWriter) -> None:
    message = finding(judge(pairs, pair_log(logs, [0.0] * 12)), "exactly-equal").message
    assert "stays between 0.693 and 0.693" in message


def test_a_lost_minus_sign_and_a_damaged_model(logs: LogWriter) -> None:
    falling = [-one for one in RISING]
    # The loss falls with the margin: this is what it asks for.
    wanted = pair_log(logs, falling, losses=[math.log1p(math.exp(one)) for one in falling])
    assert found(judge(pairs, wanted)) == {"rejected-wins": "error"}
    assert found(judge(progress, wanted)) == {}
    damaged = pair_log(logs, falling, chosen=[-one / 10 for one in RISING])
    assert found(judge(pairs, damaged)) == {}
    assert found(judge(progress, damaged)) == {"margin-lost": "error"}


def test_files_that_disagree(logs: LogWriter) -> None:
    swapped = pair_log(logs, RISING, held_out=[0.0, -0.5, -1.0, -1.4])
    assert found(judge(pairs, swapped)) == {"held-out-reversed": "error"}
    # An overfitted run gives back what it gained.
    overfitted = pair_log(logs, RISING, held_out=[0.0, 0.8, 0.4, 0.1])
    assert found(judge(pairs, overfitted)) == {}
    assert found(judge(progress, overfitted)) == {"held-out-fell": "info"}
    assert finding(judge(progress, overfitted), "held-out-fell").onset == 6


@pytest.mark.parametrize(
    ("times", "gains", "severities"),
    [
        # The margin gains 1.75, a reward is ten nats, and the short answer has four tokens:
        # with rows, and without.
        (0.9, 1.0, (None, None)),
        (1.1, 1.0, ("error", None)),
        (4.9, 1.0, ("error", None)),
        (5.1, 1.0, ("error", "error")),
        (0.2, 0.1, (None, None)),
        (0.3, 0.1, ("warning", None)),
        (0.5, 0.05, ("error", None)),
        (0.7, 0.05, ("error", "warning")),
    ],
)
def test_both_answers_become_unlikely(
    logs: LogWriter,
    tmp_path: Path,
    times: float,
    gains: float,
    severities: tuple[str | None, str | None],
) -> None:
    """As many nats are much of a short answer, and next to nothing of a long one."""
    of_short, of_any = severities
    margins = [gains * one for one in RISING]
    log = pair_log(logs, margins, chosen=[-times * one for one in RISING])
    unmeasured = {"both-unlikely": of_any} if of_any else {}
    assert found(judge(progress, log)) == unmeasured
    config, tokenizer = config_of(tmp_path, beta=0.1), Tokenizer.read(BASE)
    for words, severity in ((3, of_short), (150, None)):
        row = {"prompt": "Which one?", "chosen": " ".join(["lake"] * words), "rejected": "no"}
        data = write_data(tmp_path, train=[row] * 30)
        outcome = judge(progress, log, config, data, tokenizer)
        assert found(outcome) == ({"both-unlikely": severity} if severity else {})
        if severity:
            (sign,) = outcome.findings
            assert f"({sign.measured['lost_a_token']:.2f} nats for each" in sign.message
    # The rows say nothing without beta.
    assert found(judge(progress, log, data, tokenizer)) == unmeasured


def test_pairs_are_told_apart_in_nats(logs: LogWriter, tmp_path: Path) -> None:
    log = pair_log(logs, [0.0, *[0.004] * 12])
    assert found(judge(progress, log)) == {"not-told-apart": "warning"}
    assert found(judge(progress, log, config_of(tmp_path, beta=0.1))) == {
        "not-told-apart": "warning"
    }
    # With a beta of 0.01 it is 0.4 nats.
    assert found(judge(progress, log, config_of(tmp_path, beta=0.01))) == {}


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
    (seen,) = judge(progress, log).seen
    assert seen.learned
    assert "log-likelihood" in seen.message


def test_a_policy_that_stays_where_it_was(logs: LogWriter) -> None:
    def log(kl: float, last: int = 60) -> TrainingLog:
        return logs.text(
            *(
                f"Iter {i}: Train loss 0.000, Total rewards mean 0.3, Total rewards std 0.2, KL "
                f"{kl:.7f}"
                for i in range(last - 11, last + 1)
            )
        )

    assert found(judge(progress, log(0.00002, last=49))) == {}
    assert found(judge(progress, log(0.00002))) == {"unmoved": "warning"}
    assert found(judge(progress, log(0.0002))) == {}
    # A divergence of 0 throughout was not measured.
    assert "policy-progress.unmoved" in judge(progress, log(0.0)).unsought


def test_missing_evidence(logs: LogWriter) -> None:
    ordinary = logs.losses([2.0, 1.0])
    assert not judge(pairs, ordinary).arises
    # What it looks for is a rate's fault too, which other checks look for in such a run.
    assert judge(progress, ordinary).arises
    assert judge(progress, ordinary).status.value == "skipped"
    header = logs.text("Training mode: ORPO", "Iter 1: Train loss 2.0, Learning rate 1e-5")
    assert judge(pairs, header).status.value == "inconclusive"
    assert judge(progress, header).status.value == "inconclusive"
    assert judge(pairs, pair_log(logs, [0.0, 0.1])).status.value == "inconclusive"
