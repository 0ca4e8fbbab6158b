"""Where a loss goes: user logs, fixture runs, and curves on either side of each limit."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from mlxdoctor.evidence.training_log import TrainingLog
from tests.checks.data_evidence import chat, config_of, rows_of, write_data
from tests.checks.log_evidence import LogWriter, decay, errors, finding, found, judge
from tests.conftest import check_called

loss_trend = check_called("loss-trend")


# --- diverged ---------------------------------------------------------------------------


def test_the_incident_with_four_reports(logs: LogWriter) -> None:
    """Seed 000: four reports, and yet certain."""
    log = logs.losses([2.148, 2.609, 4.104, 10.965], {1: 1.858, 20: 10.821}, every=5)
    one = finding(judge(loss_trend, log), "diverged")
    assert one.severity.value == "error"
    assert one.measured["origin"] == 1.858
    assert one.measured["end"] == 10.965
    assert one.onset == 10


def test_its_cure(logs: LogWriter) -> None:
    log = logs.losses([2.036, 1.797, 1.687, 1.637, 1.537], {1: 1.858, 50: 1.648})
    outcome = judge(loss_trend, log)
    assert found(outcome) == {}
    assert outcome.status.value == "inconclusive"


@pytest.mark.parametrize(("end", "hit"), [(1.82, True), (1.7, False)])
def test_a_leap_that_only_just_came_back(logs: LogWriter, end: float, hit: bool) -> None:
    log = logs.losses(decay(60, 3.0, end, 0.01), {1: 1.86, 100: 2.9, 600: end})
    outcome = judge(loss_trend, log)
    assert ("diverged" in found(outcome)) is hit
    if hit:
        assert "only just come back" in finding(outcome, "diverged").message


@pytest.mark.parametrize(("level", "symptoms"), [(2.10, {"diverged": "error"}), (2.02, {})])
def test_harm_is_seen_in_every_later_validation(
    logs: LogWriter, level: float, symptoms: dict[str, str]
) -> None:
    train = decay(30, 2.2, level, noise=0.01)
    log = logs.losses(train, {1: 1.95, 100: level + 0.05, 200: level, 300: level})
    assert {k: v for k, v in found(judge(loss_trend, log)).items() if k == "diverged"} == symptoms


# --- never learned ------------------------------------------------------------------------

FRESH = ("Trainable parameters: 0.048% (4.473M/9241.706M)", "Starting training..., iters: 300")


@pytest.mark.parametrize(
    ("losses", "val", "first"),
    [
        # Training rows may be harder than those validated on.
        (decay(30, 2.4, 2.0), {1: 1.95, 150: 1.8, 300: 1.7}, 10),
        # Where a log from the middle began is not known.
        ([4.0, 4.1, 6.5, 6.4, 6.6, 6.4, 6.5], {}, 500),
        # A loss that is low already need not fall.
        (decay(30, 0.2, 0.2, noise=0.01), {1: 0.2}, 10),
    ],
)
def test_curves_without_complaint(
    logs: LogWriter, losses: list[float], val: dict[int, float], first: int
) -> None:
    assert found(judge(loss_trend, logs.losses(losses, val, first=first, head=FRESH))) == {}


@pytest.mark.parametrize(
    ("val", "head", "stated", "severity"),
    [
        # An error only of a run that began from the base model.
        ({1: 1.8}, FRESH, None, "error"),
        ({1: 1.8}, (), None, "warning"),
        ({1: 1.8}, (), {"learning_rate": 1e-8}, "error"),
        ({1: 1.8}, (), {"resume_adapter_file": "a.safetensors"}, None),
        # A validation loss that is exactly the same is certain.
        ({1: 1.81, 50: 1.81, 100: 1.81}, (), None, "error"),
    ],
)
def test_a_loss_that_did_not_move(
    logs: LogWriter,
    tmp_path: Path,
    *,
    val: dict[int, float],
    head: tuple[str, ...],
    stated: dict[str, object] | None,
    severity: str | None,
) -> None:
    config = [] if stated is None else [config_of(tmp_path, fine_tune_type="lora", **stated)]
    log = logs.losses(decay(30, 1.8, 1.8, noise=0.02), val, head=head)
    assert found(judge(loss_trend, log, *config)).get("never-learned") == severity


@pytest.mark.parametrize(("end", "symptoms"), [(1.95, {"never-learned"}), (1.8, set())])
def test_the_limit_of_not_learning(logs: LogWriter, end: float, symptoms: set[str]) -> None:
    log = logs.losses(decay(40, 2.0, end, noise=0.01), {1: 2.0}, head=FRESH)
    assert set(found(judge(loss_trend, log))) == symptoms


# --- overfitting --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("last", "symptoms"),
    [(2.6, {"overfitting": "error"}), (2.2, {"overfitting": "info"}), (2.05, {})],
)
def test_overfitting(logs: LogWriter, last: float, symptoms: dict[str, str]) -> None:
    middle = (2.0 + last) / 2
    val = {1: 3.0, 100: 2.0, 200: middle, 300: last, 400: last}
    outcome = judge(loss_trend, logs.losses(decay(40, 3.0, 0.9), val))
    assert found(outcome) == symptoms
    if symptoms:
        assert finding(outcome, "overfitting").onset == 100


def test_a_small_loss_that_doubles_is_still_small(logs: LogWriter) -> None:
    """As of short answers that a sound run learned well: a batch more or less is in doubt."""
    val = {1: 1.24, 100: 0.024, 200: 0.043, 300: 0.086, 400: 0.043}
    outcome = judge(loss_trend, logs.losses(decay(40, 1.2, 0.013, noise=0.002), val))
    assert found(outcome) == {"overfitting": "info"}


@pytest.mark.parametrize(
    ("rise", "train", "symptoms"),
    [
        (0.005, 0.1, {"overfitting": "error"}),
        (0.0, 0.1, {"overfitting": "warning"}),
        (0.005, 0.5, {}),
    ],
)
def test_memorised_rows(
    logs: LogWriter, rise: float, train: float, symptoms: dict[str, str]
) -> None:
    flat = {100 + 20 * i: 1.4 + rise * i for i in range(1, 15)}
    log = logs.losses(decay(40, 3.0, train, 0.01), {1: 4.0, 50: 1.8, 100: 1.4, **flat})
    assert found(judge(loss_trend, log)) == symptoms


def test_rows_known_by_heart_after_many_passes(tmp_path: Path, logs: LogWriter) -> None:
    flat = dict.fromkeys(range(120, 400, 20), 1.4)
    log = logs.losses(decay(40, 3.0, 0.1, 0.01), {1: 4.0, 50: 1.8, 100: 1.4, **flat})
    config = config_of(tmp_path, batch_size=4)
    assert found(judge(loss_trend, log, config)) == {"overfitting": "warning"}
    # 400 iterations of four rows, of which 24 are different.
    texts = [chat(f"What is number {i}?", f"It is {i}.") for i in range(24)] * 2
    rows = rows_of(write_data(tmp_path, train=texts), config)
    outcome = judge(loss_trend, log, config, rows)
    assert found(outcome) == {"overfitting": "error"}
    assert finding(outcome, "overfitting").measured["passes"] == pytest.approx(1600 / 24)


# --- missing evidence ---------------------------------------------------------------------


def of_pairs(losses: Sequence[float], before: float | None = None) -> list[str]:
    """As mlx-lm-lora 5 prints it."""
    first = [] if before is None else [f"Iter 1: Val loss {before}, Val took 1.0s"]
    return first + [
        f"Iter {5 * i}: loss {one}, chosen_r -0.1, rejected_r -0.1, margin 0.0"
        for i, one in enumerate(losses, 1)
    ]


#: ORPO of a model of 135 million parameters at fifty times a sound rate.
TOO_FAST = [
    *(16.231, 28.903, 17.122, 12.3, 10.178, 9.373, 8.699, 8.072, 7.629, 7.264, 7.089, 6.909),
    *(6.763, 6.438, 6.257, 5.826, 5.749, 5.691, 5.67, 5.732, 5.363, 5.177, 5.098, 5.464),
]
#: DPO of a small model on eight pairs at a time; sound.
NOISY = [0.554, 0.723, 0.61, 0.9, 0.4, 1.3, 0.3, 0.5, 1.1, 0.2, 0.15, 0.9, 0.014]


@pytest.mark.parametrize(
    ("losses", "before", "symptoms"),
    [
        (TOO_FAST, 3.334, {"diverged": "error"}),
        # Without a validation the first report is where the run began.
        (TOO_FAST, None, {}),
        ([0.69 + i / 10 for i in range(1, 40)], None, {"diverged": "error"}),
        ([0.69 + i / 10 for i in range(1, 10)], None, {}),
        (NOISY, 0.693, {}),
        # Of rows that it was not trained on, pairs the other way round: not this check's to say.
        ([1 / i for i in range(1, 30)], 0.693, {}),
        ([0.693] * 20, 0.693, {}),
        ([0.7, *[0.8] * 19], 0.693, {}),
        ([10.2, 1.3, 0.6, 0.2, 0.4, 0.5, 0.3, 2.6, 0.1, 0.1, 0.1, 0.1], 25.0, {}),
    ],
)
def test_the_loss_of_pairs_ends_far_above_where_it_began(
    logs: LogWriter, losses: list[float], before: float | None, symptoms: dict[str, str]
) -> None:
    judged = judge(loss_trend, logs.text(*of_pairs(losses, before)))
    assert found(judged) == symptoms
    assert "loss-trend.overfitting" in judged.unsought
    assert not judged.seen


def test_losses_of_rewards_are_not_judged(logs: LogWriter) -> None:
    log = logs.text(
        *(f"Iter {i}: Train loss {i / 10}, Total rewards mean 0.3, KL 0.1" for i in range(1, 40))
    )
    assert judge(loss_trend, log).status.value == "skipped"


def test_a_failed_log_without_losses_is_inconclusive(logs: LogWriter) -> None:
    assert judge(loss_trend, logs.text(FRESH[0])).status.value == "inconclusive"


@pytest.mark.slow
def test_no_error_in_noise(logs: LogWriter) -> None:
    """Sound curves of every length and scatter: not one error."""
    for seed in range(60):
        count, sigma = 12 + 5 * seed, (0.02, 0.1, 0.3)[seed % 3]
        log = logs.losses(decay(count, 2.5, 1.2, sigma, seed), {1: 2.5}, every=1 + seed % 10)
        assert errors(judge(loss_trend, log)) == [], seed


def test_losses_that_repeat_with_every_epoch(logs: LogWriter) -> None:
    epoch = [0.9741, 1.3742, 1.2390, 0.9670, 1.0386, 1.1681, 1.2240, 0.9610]
    again = judge(loss_trend, logs.losses(epoch * 2, every=1))
    assert found(again) == {"repeats": "error"}
    assert finding(again, "repeats").measured["repeats_period"] == 8
    moved = [*epoch, *(one - 0.01 for one in epoch)]
    assert "repeats" not in found(judge(loss_trend, logs.losses(moved, every=1)))
    # Three of two decimals may be chance.
    coarse = logs.losses([1.92, 1.87, 1.92, 1.87, 1.92], every=1)
    assert "repeats" not in found(judge(loss_trend, coarse))


def test_a_steep_fall_before_the_first_report_is_not_never_learned(logs: LogWriter) -> None:
    low = decay(30, 1.0, 1.0, noise=0.01)
    late = judge(loss_trend, logs.losses(low, every=50))
    assert found(late) == {}
    assert "loss-trend.never-learned" in late.unsought
    assert found(judge(loss_trend, logs.losses(low, {1: 2.9}, every=50))) == {}
    sudden = [0.684, *[0.0004] * 30]
    assert "never-learned" not in found(judge(loss_trend, logs.losses(sudden)))


@pytest.mark.parametrize(
    ("val", "severity"),
    [
        ({800: 2.074, 1000: 2.233}, "error"),
        ({800: 2.2, 1000: 2.1}, "warning"),
        ({1: 3.5, 1000: 2.2}, None),
    ],
)
def test_two_validations_far_above_the_training_loss(
    logs: LogWriter, val: dict[int, float], severity: str | None
) -> None:
    log = logs.losses([0.2, 0.15, 0.12, 0.1, 0.09], val, every=50, first=800)
    assert found(judge(loss_trend, log)).get("overfitting") == severity


def test_the_sentence_counts_as_the_log_does(tmp_path: Path) -> None:
    values = [2.0, 1.8, 1.6, *[9.0] * 20]
    for unit, line in (("step", "Step {} | loss {}"), ("epoch", "Epoch {}: loss {}")):
        path = tmp_path / f"{unit}.log"
        path.write_text("".join(line.format(at, v) + "\n" for at, v in enumerate(values, 1)))
        one = finding(judge(loss_trend, TrainingLog.read([path])), "diverged")
        assert f"From {unit} 4 on" in one.message
