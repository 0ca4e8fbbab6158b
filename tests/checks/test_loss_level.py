"""Losses against the levels that can be known beforehand."""

import math
from pathlib import Path

import pytest

from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.config import TrainingConfig
from tests.checks.data_evidence import BASE, chat, rows_of, write_data
from tests.checks.log_evidence import LogWriter, decay, finding
from tests.conftest import check_called
from tests.given import outcome as judge
from tests.given import severities
from tests.weight_files import write_config

loss_level = check_called("loss-level")
MODEL = BaseModel.read(BASE)


@pytest.mark.parametrize(
    ("excess", "end", "severity"),
    [
        (1.6, 2.0, "error"),
        (1.6, 1.0, "info"),
        (1.4, 4.0, "warning"),
        (0.3, 4.0, "warning"),
        (1.4, 2.0, "info"),
        (0.1, 4.0, None),
    ],
)
def test_with_the_model(logs: LogWriter, excess: float, end: float, severity: str | None) -> None:
    uniform = math.log(MODEL.vocab_size or 0)
    outcome = judge(loss_level, logs.losses(decay(20, 5.0, end), {1: uniform + excess}), MODEL)
    assert severities(outcome).get("starts-above-uniform") == severity
    if severity is not None:
        one = finding(outcome, "starts-above-uniform")
        assert one.measured["uniform_guess"] == pytest.approx(uniform)
        assert one.onset == 1


TAIL = [10.318, 10.290, 9.941, 9.841, 9.639, 9.962, 10.292, 9.914, 10.156, 10.157]


@pytest.mark.parametrize(
    ("losses", "val", "first", "signs"),
    [
        # An unusual text that is learned at once.
        (decay(20, 5.0, 2.0), {1: 14.6}, 10, {"starts-above-uniform": "info"}),
        # Low at once.
        ([2.0, 0.2, 0.1], {1: 2.1}, 10, {"suspiciously-low": "info"}),
        ([2.0, 0.5, 0.01], {1: 2.1}, 10, {"suspiciously-low": "warning"}),
        ([2.0, 1.0, 0.5], {1: 2.1}, 10, {}),
        ([2.0, 1.5, 1.0, 0.7, 0.2], {1: 2.1}, 10, {}),
        # Driven below zero.
        ([2.0, -1.5, -9.0], {1: 2.1}, 10, {"below-zero": "warning"}),
        ([0.3, -0.5, -0.9], {1: 2.1}, 10, {}),
        # A log's tail that stays at chance.
        (TAIL, {}, 2910, {"stays-at-chance": "error"}),
        ([12.80, 12.81, 12.79, 12.80], {}, 2910, {"stays-at-chance": "error"}),
        ([9.1, 9.2, 9.05], {}, 2910, {"stays-at-chance": "error"}),
        # Every token has the same probability.
        ([10.823, 10.822, 10.825, 10.824], {}, 2910, {"stays-uniform": "warning"}),
        # Two reports are no level, and below nine nats a language model may begin.
        ([10.3, 10.2], {}, 2910, {}),
        ([8.8, 8.9, 8.7, 8.9], {}, 2910, {}),
        # Above the largest vocabulary it may be another loss.
        ([21.0, 20.9, 21.1], {}, 2910, {"stays-at-chance": "warning"}),
        # Fallen by a tenth and more.
        ([11.5, 10.6, 9.9], {}, 2910, {}),
        ([14.0 - 0.45 * i for i in range(12)], {}, 2910, {}),
        # Near it at the start, which is a note whatever became of it.
        ([7.0, 5.5, 4.0, 3.0], {1: 9.6}, 10, {"starts-near-uniform": "info"}),
        ([7.0, 5.5, 4.0, 3.0], {1: 7.6}, 10, {}),
    ],
)
def test_without_the_model(
    logs: LogWriter, losses: list[float], val: dict[int, float], first: int, signs: dict[str, str]
) -> None:
    assert severities(judge(loss_level, logs.losses(losses, val, first=first))) == signs


@pytest.mark.parametrize(("below", "severity"), [(0.1, "error"), (0.5, None)])
def test_chance_is_that_of_the_model_where_it_is_known(
    logs: LogWriter, below: float, severity: str | None
) -> None:
    log = logs.losses([math.log(MODEL.vocab_size or 0) - below] * 4, first=500)
    assert severities(judge(loss_level, log, MODEL)).get("stays-at-chance") == severity


@pytest.mark.parametrize(
    ("val", "severity"), [({}, "warning"), ({3000: 10.017}, "error"), ({3000: 1.3}, None)]
)
def test_a_sum_over_accumulation_steps_may_stay_there(
    logs: LogWriter, tmp_path: Path, val: dict[int, float], severity: str | None
) -> None:
    """A validation, or mlx-lm's own columns, say that it is the loss of a batch."""
    log = logs.losses(TAIL, val, first=2910)
    outcome = judge(loss_level, log, accumulating(tmp_path, 8))
    assert severities(outcome).get("stays-at-chance") == severity


@pytest.mark.parametrize(
    ("above", "before", "steps", "severity"),
    [
        (0.4, -0.2, 1, "error"),
        (-0.4, -0.2, 1, None),
        # A base that was no better is only warned about.
        (0.4, 2.0, 1, "warning"),
        # The end of a sum is compared as a mean.
        (0.2, None, 8, "error"),
        (-0.2, None, 8, None),
    ],
)
def test_a_constant_guess(
    logs: LogWriter,
    tmp_path: Path,
    *,
    above: float,
    before: float | None,
    steps: int,
    severity: str | None,
) -> None:
    rows = rows_of(write_data(tmp_path, train=[chat("Where is it?", "In the north.")] * 4))
    floor = rows.unigram_entropy()
    # The curve is still a little above its end.
    losses = decay(20, 4.0 * steps, 3.0 * steps, 0.01) + [steps * (floor + above)] * 20
    log = logs.losses(losses, {} if before is None else {1: floor + before})
    outcome = judge(loss_level, log, rows, accumulating(tmp_path, steps))
    assert severities(outcome).get("ends-above-unigram") == severity
    assert ("sum-over-accumulation" in severities(outcome)) is (steps > 1)
    if severity is not None:
        assert finding(outcome, "ends-above-unigram").measured["unigram_entropy"] == floor


def test_what_cannot_be_judged(logs: LogWriter) -> None:
    middle = judge(loss_level, logs.losses([8.9, 8.8, 8.7], first=500))
    assert "loss-level.starts-above-uniform" in middle.unsought
    assert "loss-level.ends-above-unigram" in middle.unsought
    assert "loss-level.stays-at-chance" not in middle.unsought
    preference = logs.text("Iter 1: loss 9.9, chosen_r 0.1", "Iter 2: loss 9.9, chosen_r 0.1")
    assert judge(loss_level, preference).status.value == "skipped"


def accumulating(tmp_path: Path, steps: int) -> TrainingConfig:
    return TrainingConfig.read(write_config(tmp_path / "run", grad_accumulation_steps=steps))


#: ln 300,000 is 12.6; 1.5 times that is 18.9.
@pytest.mark.parametrize(
    ("steps", "losses", "symptoms"),
    [
        # Without a validation loss the first loss must be far above a guess.
        (8, (19.0, None), {"sum-over-accumulation": "error"}),
        (8, (18.8, None), {"starts-above-uniform": "error"}),
        (1, (19.0, None), {"starts-above-uniform": "error"}),
        # What is left when it is divided must be a usual loss.
        (4, (31.9, None), {"sum-over-accumulation": "error"}),
        (4, (32.1, None), {"starts-far-above": "warning"}),
        (80, (23.0, None), {"starts-above-uniform": "error"}),
        # A sound validation loss must be about a step's share of the training loss.
        (4, (13.0, 3.3), {"sum-over-accumulation": "error"}),
        (4, (13.0, 2.2), {"sum-over-accumulation": "error"}),
        (4, (13.0, 2.1), {}),
        (4, (13.0, 4.9), {}),
        (4, (12.7, 3.3), {}),
        # Validation that is summed too.
        (8, (24.0, 23.5), {"sum-over-accumulation": "error"}),
    ],
)
def test_losses_that_are_added_up(
    logs: LogWriter,
    tmp_path: Path,
    steps: int,
    losses: tuple[float, float | None],
    symptoms: dict[str, str],
) -> None:
    first, before = losses
    val = {1: before} if before is not None else {}
    log = logs.losses([first, *decay(19, first, first / 2)], val)
    outcome = judge(loss_level, log, accumulating(tmp_path, steps))
    assert severities(outcome) == symptoms
    if "sum-over-accumulation" in symptoms:
        one = finding(outcome, "sum-over-accumulation")
        assert one.measured["mean"] == pytest.approx(first / steps)
        assert one.onset == 10


def test_the_models_name_tells_its_vocabulary(logs: LogWriter, tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("model: mlx-community/Llama-3.2-3B-Instruct-4bit\niters: 100\n")
    log = logs.losses(decay(20, 5.0, 2.0), {1: 12.4})
    assert severities(judge(loss_level, log)) == {"starts-near-uniform": "info"}
    one = finding(judge(loss_level, log, TrainingConfig.read(path)), "starts-above-uniform")
    assert one.measured["vocabulary"] == 128_256
    assert f"{math.log(128_256):.3f}" in one.message
