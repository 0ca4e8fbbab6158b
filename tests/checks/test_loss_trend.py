"""Where a loss goes: curves on either side of each limit."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.checks.data_evidence import chat, config_of, rows_of, write_data
from tests.checks.log_evidence import LogWriter, decay, errors, finding
from tests.conftest import check_called
from tests.given import outcome as judge
from tests.given import severities

loss_trend = check_called("loss-trend")
FRESH = ("Trainable parameters: 0.048% (4.473M/9241.706M)", "Starting training..., iters: 300")
#: Validation losses that stay, after a fall.
FLAT = {1: 4.0, 50: 1.8, 100: 1.4, **dict.fromkeys(range(120, 400, 20), 1.4)}
#: Ones that leave at once.
LEAVES = {1: 2.994, 10: 3.102, 20: 4.441, 30: 7.298}
#: Ones that rise again, by a little each.
CLIMBING = FLAT | {100 + 20 * i: 1.4 + 0.005 * i for i in range(1, 15)}
EPOCH = [0.9741, 1.3742, 1.2390, 0.9670, 1.0386, 1.1681, 1.2240, 0.9610]
MEMORISED, STILL = [0.2, 0.15, 0.12, 0.1, 0.09], decay(30, 1.0, 1.0, noise=0.01)


def risen(last: float) -> dict[int, float]:
    return {1: 3.0, 100: 2.0, 200: (2.0 + last) / 2, 300: last, 400: last}


CLIMBS = (2.65, 1.4, 1.2, 1.127, 1.16, 1.23, 1.28)
EASED = [2.0, 1.4, 1.4, 0.6, 0.6, 0.5, 0.3, 0.3, 0.3]


@pytest.mark.parametrize(
    ("losses", "val", "more", "signs"),
    [
        # A run with the rate that cured the one of seed 000.
        ([2.036, 1.797, 1.687, 1.637, 1.537], {1: 1.858, 50: 1.648}, {}, ""),
        # A leap that only just came back.
        (decay(60, 3.0, 1.82, 0.01), {1: 1.86, 100: 2.9, 600: 1.82}, {}, "diverged error"),
        (decay(60, 3.0, 1.7, 0.01), {1: 1.86, 100: 2.9, 600: 1.7}, {}, ""),
        # Harm is seen in every later validation.
        (
            decay(30, 2.2, 2.1, 0.01),
            {1: 1.95, 100: 2.15, 200: 2.1, 300: 2.1},
            {},
            "diverged error",
        ),
        (decay(30, 2.2, 2.02, 0.01), {1: 1.95, 100: 2.07, 200: 2.02, 300: 2.0}, {}, ""),
        # Training rows may be harder than those validated on.
        (decay(30, 2.4, 2.0), {1: 1.95, 150: 1.8, 300: 1.7}, {"head": FRESH}, ""),
        # Rows that are learned by heart take the training loss down.
        ([1.894, 1.523, 2.108], LEAVES, {}, "validation-diverged error"),
        ([1.894, 1.523, 0.408], LEAVES, {}, "overfitting error"),
        ([], {1: 2.1, 600: 0.8, 800: 7.3}, {}, "validation-diverged error"),
        # A blind guess among all tokens has 12.6.
        ([*[1.28] * 12, 34023.8, 1.3], {}, {}, "exploded error"),
        # Where a log from the middle began is not known.
        ([4.0, 4.1, 6.5, 6.4, 6.6, 6.4, 6.5], {}, {"first": 500, "head": FRESH}, ""),
        # A loss that is low already need not fall.
        (decay(30, 0.2, 0.2, noise=0.01), {1: 0.2}, {"head": FRESH}, ""),
        (decay(40, 2.0, 1.95, noise=0.01), {1: 2.0}, {"head": FRESH}, "never-learned error"),
        (decay(40, 2.0, 1.8, noise=0.01), {1: 2.0}, {"head": FRESH}, ""),
        # It fell before the first report, or at once.
        (STILL, {}, {"every": 50}, ""),
        (STILL, {1: 2.9}, {"every": 50}, ""),
        ([0.684, *[0.0004] * 30], {}, {}, ""),
        (EPOCH * 2, {}, {"every": 1}, "repeats error"),
        ([*EPOCH, *(loss - 0.01 for loss in EPOCH)], {}, {"every": 1}, ""),
        # Three of two decimals may be chance.
        ([1.92, 1.87, 1.92, 1.87, 1.92], {}, {"every": 1}, ""),
        (decay(40, 3.0, 0.9), risen(2.6), {}, "overfitting error"),
        (decay(40, 3.0, 0.9), risen(2.2), {}, "overfitting info"),
        (decay(40, 3.0, 0.9), risen(2.05), {}, ""),
        # A small loss that doubles is still small: a batch more or less is in doubt.
        (
            decay(40, 1.2, 0.013, noise=0.002),
            {1: 1.24, 100: 0.024, 200: 0.043, 300: 0.086, 400: 0.043},
            {},
            "overfitting info",
        ),
        # The last of five is no noise where it is half as high again.
        (
            decay(40, 3.0, 0.4, 0.01),
            {1: 3.0, 100: 0.9, 200: 0.8, 400: 1.3},
            {},
            "overfitting warning",
        ),
        (decay(40, 3.0, 0.4, 0.01), {1: 3.0, 100: 0.9, 200: 0.8, 400: 1.0}, {}, ""),
        # It climbs by more than its noise past the steep start.
        (
            decay(40, 2.1, 0.95, 0.01),
            dict(zip((1, 50, 100, 200, 250, 300, 400), CLIMBS, strict=True)),
            {},
            "overfitting info",
        ),
        # A first report far above the others shows a fall, and a warm-up none.
        ([2.05, 1.8, *[1.7, 1.72] * 20], {}, {}, ""),
        (decay(40, 0.7, 0.7, 0.01), {}, {"head": ["Starting training..., iters: 5000"]}, ""),
        (
            decay(40, 0.7, 0.7, 0.001),
            {},
            {"head": ["Starting training..., iters: 400"]},
            "never-learned warning",
        ),
        # Rows known by heart.
        (decay(40, 3.0, 0.1, 0.01), CLIMBING, {}, "overfitting error"),
        (decay(40, 3.0, 0.1, 0.01), FLAT, {}, "overfitting warning"),
        (decay(40, 3.0, 0.5, 0.01), CLIMBING, {}, "overfitting info"),
        # One update that breaks the weights; a report that stands out.
        ([1.7, 1.7, 1.7, *[11.5, 11.8, 11.5]], {}, {"first": 1151}, "leapt warning"),
        ([1.7, 1.7, 1.7, *[3.6, 3.8, 3.7]], {}, {"first": 1151}, "leapt info"),
        ([1.7, 1.7, 1.7, *[11.5, 1.8, 1.7]], {}, {"first": 1151}, ""),
        # Two validations far above the training loss.
        (MEMORISED, {800: 2.074, 1000: 2.233}, {"every": 50, "first": 800}, "overfitting error"),
        (MEMORISED, {800: 2.2, 1000: 2.1}, {"every": 50, "first": 800}, "overfitting warning"),
        (MEMORISED, {1: 3.5, 1000: 2.2}, {"every": 50, "first": 800}, "by-heart warning"),
        (MEMORISED, {1: 3.5, 1000: 0.9}, {"every": 50, "first": 800}, ""),
        # Validation rows that are easier than those trained on.
        (EASED, {1: 3.0, 30: 0.7, 60: 0.275, 90: 0.15}, {}, "held-out-below info"),
        (EASED, {1: 3.0, 30: 1.12, 60: 0.44, 90: 0.24}, {}, ""),
        # Validations alone.
        ([], {200: 0.358, 400: 0.7, 500: 0.7}, {}, "overfitting warning"),
        ([], {200: 0.358, 400: 0.4, 500: 0.4}, {}, ""),
    ],
)
def test_curves(
    logs: LogWriter, losses: list[float], val: dict[int, float], more: dict[str, Any], signs: str
) -> None:
    outcome = judge(loss_trend, logs.losses(losses, val, **more))
    assert " ".join(f"{code} {severity}" for code, severity in severities(outcome).items()) == signs


def test_losses_that_recur_and_those_that_only_meet(logs: LogWriter) -> None:
    """A few rows in any order under weights that stay; and a long sound log of four decimals."""
    order, chance = np.random.default_rng(0), np.random.default_rng(1)
    rows = order.permutation([3.5073, 3.1906, 3.7451, 3.9202, 3.3321, 3.8844, 3.5551] * 4)
    sign = finding(judge(loss_trend, logs.losses(rows.tolist())), "repeats")
    assert sign.message.startswith("28 training losses have 7 different values")
    met = np.round(1.2 + 2.0 / np.arange(1, 4001) ** 0.5 + chance.normal(0.0, 0.02, 4000), 4)
    assert len(np.unique(met)) < 0.6 * len(met)
    # So have losses in bfloat16, which are printed with all their digits.
    half = np.round(chance.normal(1.5, 0.05, 120) * 128) / 128
    assert len(np.unique(half)) < 0.5 * len(half)
    for each in (met, half):
        assert "loss-trend.repeats" not in severities(judge(loss_trend, logs.losses(each.tolist())))


def test_the_best_save_that_was_gone_back_to(logs: LogWriter) -> None:
    rows = [
        f"Epoch {i} - loss: {3 - i / 3:.3f} - val_loss: {value}"
        for i, value in enumerate([2.9, 2.5, 2.3, 2.2, 2.3, 2.4, 2.5], 1)
    ]
    for last, said in (("", "may be the better one"), ("Restored best model", "went back to its")):
        sign = finding(judge(loss_trend, logs.text(*rows, last)), "overfitting")
        assert said in sign.message


def test_the_figures(logs: LogWriter) -> None:
    """Seed 000: four reports, and yet certain."""
    log = logs.losses([2.148, 2.609, 4.104, 10.965], {1: 1.858, 20: 10.821}, every=5)
    sign = finding(judge(loss_trend, log), "diverged")
    assert (sign.severity.value, sign.onset) == ("error", 10)
    assert (sign.measured["origin"], sign.measured["end"]) == (1.858, 10.965)
    log = logs.losses(decay(60, 3.0, 1.82, 0.01), {1: 1.86, 100: 2.9, 600: 1.82})
    assert "only just come back" in finding(judge(loss_trend, log), "diverged").message
    log = logs.losses(decay(40, 3.0, 0.9), risen(2.6))
    assert finding(judge(loss_trend, log), "overfitting").onset == 100
    again = finding(judge(loss_trend, logs.losses(EPOCH * 2, every=1)), "repeats")
    assert again.measured["repeats_period"] == 8
    for last in (0.7, 0.4):
        seen = judge(loss_trend, logs.losses([], {200: 0.358, 400: last, 500: last})).seen
        assert seen[0].message.startswith("The validation loss goes from 0.358 to")


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
    assert severities(judge(loss_trend, log, *config)).get("never-learned") == severity


def test_rows_known_by_heart_after_many_passes(tmp_path: Path, logs: LogWriter) -> None:
    log, config = logs.losses(decay(40, 3.0, 0.1, 0.01), FLAT), config_of(tmp_path, batch_size=4)
    assert severities(judge(loss_trend, log, config)) == {"overfitting": "warning"}
    # 400 iterations of four rows, of which 24 are different.
    texts = [chat(f"What is number {i}?", f"It is {i}.") for i in range(24)] * 2
    rows = rows_of(write_data(tmp_path, train=texts), config)
    outcome = judge(loss_trend, log, config, rows)
    assert severities(outcome) == {"overfitting": "error"}
    assert finding(outcome, "overfitting").measured["passes"] == pytest.approx(1600 / 24)


#: ORPO of a model of 135 million parameters at fifty times a sound rate.
TOO_FAST = [
    *(16.231, 28.903, 17.122, 12.3, 10.178, 9.373, 8.699, 8.072, 7.629, 7.264, 7.089, 6.909),
    *(6.763, 6.438, 6.257, 5.826, 5.749, 5.691, 5.67, 5.732, 5.363, 5.177, 5.098, 5.464),
]
#: DPO of a small model on eight pairs at a time; sound.
NOISY = [0.554, 0.723, 0.61, 0.9, 0.4, 1.3, 0.3, 0.5, 1.1, 0.2, 0.15, 0.9, 0.014]


@pytest.mark.parametrize(
    ("losses", "before", "hit"),
    [
        (TOO_FAST, 3.334, True),
        # Without a validation the first report is where the run began.
        (TOO_FAST, None, False),
        ([0.69 + i / 10 for i in range(1, 40)], None, True),
        ([0.69 + i / 10 for i in range(1, 10)], None, False),
        (NOISY, 0.693, False),
        # Of rows that it was not trained on, pairs the other way round: not this check's to say.
        ([1 / i for i in range(1, 30)], 0.693, False),
        ([0.693] * 20, 0.693, False),
        ([0.7, *[0.8] * 19], 0.693, False),
        ([10.2, 1.3, 0.6, 0.2, 0.4, 0.5, 0.3, 2.6, 0.1, 0.1, 0.1, 0.1], 25.0, False),
    ],
)
def test_the_loss_of_pairs_ends_far_above_where_it_began(
    logs: LogWriter, losses: Sequence[float], before: float | None, hit: bool
) -> None:
    lines = [] if before is None else [f"Iter 1: Val loss {before}, Val took 1.0s"]
    lines += [f"Iter {5 * i}: loss {x}, margin 0.0" for i, x in enumerate(losses, 1)]
    outcome = judge(loss_trend, logs.text(*lines))
    assert severities(outcome) == ({"diverged": "error"} if hit else {})
    assert "loss-trend.overfitting" in outcome.unsought
    assert not any(seen.learned for seen in outcome.seen)


def test_missing_evidence(logs: LogWriter) -> None:
    few = judge(loss_trend, logs.losses([2.036, 1.797, 1.687], {1: 1.858}))
    assert few.status.value == "inconclusive"
    assert judge(loss_trend, logs.text(FRESH[0])).status.value == "inconclusive"
    rewards = (f"Iter {i}: Train loss {i / 10}, Total rewards mean 0.3" for i in range(1, 40))
    assert judge(loss_trend, logs.text(*rewards)).status.value == "skipped"
    late = judge(loss_trend, logs.losses(STILL, every=50))
    assert "loss-trend.never-learned" in late.unsought


@pytest.mark.slow
def test_no_error_in_noise(logs: LogWriter) -> None:
    """Sound curves of every length and scatter: not one error."""
    for seed in range(60):
        count, sigma = 12 + 5 * seed, (0.02, 0.1, 0.3)[seed % 3]
        log = logs.losses(decay(count, 2.5, 1.2, sigma, seed), {1: 2.5}, every=1 + seed % 10)
        assert errors(judge(loss_trend, log)) == [], seed


@pytest.mark.parametrize(
    ("unit", "line"), [("step", "Step {} | loss {}"), ("epoch", "Epoch {}: loss {}")]
)
def test_the_sentence_counts_as_the_log_does(logs: LogWriter, unit: str, line: str) -> None:
    losses = [2.0, 1.8, 1.6, *[9.0] * 20]
    log = logs.text(*(line.format(i, loss) for i, loss in enumerate(losses, 1)))
    assert f"From {unit} 4 on" in finding(judge(loss_trend, log), "diverged").message


@pytest.mark.parametrize(
    ("epochs", "end", "val", "symptoms"),
    [
        (5, 0.01, "", {"none-held-out": "warning"}),
        (3, 0.01, "", {}),
        (5, 0.2, "", {}),
        (5, 0.01, "'eval_loss': 0.45, ", {}),
    ],
)
def test_rows_that_went_by_many_times_and_none_was_held_out(
    logs: LogWriter, epochs: int, end: float, val: str, symptoms: dict[str, str]
) -> None:
    rows = (
        f"{{'loss': {loss:.4f}, {val}'epoch': {epochs * (i + 1) / 30:.3f}}}"
        for i, loss in enumerate(decay(30, 2.0, end, noise=0.0))
    )
    assert severities(judge(loss_trend, logs.text(*rows))) == symptoms


def test_what_still_warms_up_need_not_have_learned(logs: LogWriter) -> None:
    rows = [f"{{'loss': {1.6 + 0.01 * (i % 3)}, 'learning_rate': {i * 1e-6}}}" for i in range(40)]
    assert "never-learned" not in severities(judge(loss_trend, logs.text(*rows)))


@pytest.mark.parametrize(("rate", "severity"), [(1e-6, "warning"), (2e-4, "info")])
def test_a_small_fall_at_a_usual_rate_is_a_fact(
    logs: LogWriter, rate: float, severity: str
) -> None:
    noise = (0.03, -0.05, 0.06, -0.02, 0.0, -0.06, 0.05)
    losses = [1.44 - 0.001 * i + noise[i % 7] for i in range(1, 32)]
    rows = [
        f"{{'loss': {loss:.4f}, 'learning_rate': {rate}, 'step': {10 * i}}}"
        for i, loss in enumerate(losses, 1)
    ]
    assert severities(judge(loss_trend, logs.text(*rows)))["never-learned"] == severity


@pytest.mark.parametrize(
    ("score", "is_told"), [("", True), ("{'eval_f1': 0.4, 'epoch': 9}", False)]
)
def test_scores_of_held_out_rows_tell_of_them(logs: LogWriter, score: str, is_told: bool) -> None:
    rows = [f"{{'loss': {3.0 / 2**i:.4f}, 'epoch': {i}}}" for i in range(1, 12)]
    outcome = judge(loss_trend, logs.text(*rows[:4], score, *rows[4:], score.replace("0.4", "0.5")))
    assert ("none-held-out" in severities(outcome)) == is_told
