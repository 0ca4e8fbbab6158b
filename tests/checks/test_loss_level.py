"""Losses against the levels that can be known beforehand."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.config import TrainingConfig
from tests.checks.data_evidence import BASE, chat, rows_of, write_data
from tests.checks.log_evidence import LogWriter, decay, finding, found, judge
from tests.conftest import check_called
from tests.weight_files import write_config

loss_level = check_called("loss-level")


@pytest.fixture(scope="module")
def base() -> BaseModel:
    return BaseModel.read(BASE)


def test_an_unusual_text_that_is_learned_at_once(logs: LogWriter) -> None:
    assert found(judge(loss_level, logs.losses(decay(20, 5.0, 2.0), {1: 14.6}))) == {}


@pytest.mark.parametrize(
    ("excess", "end", "severity"),
    [
        (1.6, 2.0, "error"),
        (1.4, 4.0, "warning"),
        (0.3, 4.0, "warning"),
        (1.4, 2.0, "info"),
        (0.1, 4.0, None),
    ],
)
def test_with_the_model(
    logs: LogWriter, base: BaseModel, excess: float, end: float, severity: str | None
) -> None:
    uniform = math.log(base.vocab_size or 0)
    outcome = judge(loss_level, logs.losses(decay(20, 5.0, end), {1: uniform + excess}), base)
    assert found(outcome).get("starts-above-uniform") == severity
    if severity is not None:
        one = finding(outcome, "starts-above-uniform")
        assert one.measured["uniform_guess"] == pytest.approx(uniform)
        assert one.onset == 1


def test_constant_guess(logs: LogWriter, tmp_path: Path) -> None:
    rows = rows_of(write_data(tmp_path, train=[chat("Where is it?", "In the north.")] * 4))
    floor = rows.unigram_entropy()
    above = judge(
        loss_level, logs.losses(decay(20, 4.0, floor + 0.4, 0.01), {1: floor - 0.2}), rows
    )
    assert found(above) == {"ends-above-unigram": "error"}
    assert finding(above, "ends-above-unigram").measured["unigram_entropy"] == floor
    below = judge(
        loss_level, logs.losses(decay(20, 4.0, floor - 0.4, 0.01), {1: floor - 0.2}), rows
    )
    assert found(below) == {}


def test_a_base_that_was_no_better_is_only_warned_about(logs: LogWriter, tmp_path: Path) -> None:
    rows = rows_of(write_data(tmp_path, train=[chat("Where is it?", "In the north.")] * 4))
    floor = rows.unigram_entropy()
    log = logs.losses(decay(20, 6.0, floor + 0.4, 0.01), {1: floor + 2.0})
    assert found(judge(loss_level, log, rows)) == {"ends-above-unigram": "warning"}


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
        (4, (32.1, None), {"starts-above-uniform": "error"}),
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
    assert found(outcome) == symptoms
    if "sum-over-accumulation" in symptoms:
        one = finding(outcome, "sum-over-accumulation")
        assert one.measured["mean"] == pytest.approx(first / steps)
        assert one.onset == 10


@pytest.mark.parametrize(("above", "hit"), [(0.2, True), (-0.2, False)])
def test_the_end_of_a_sum_is_compared_as_a_mean(
    logs: LogWriter, tmp_path: Path, above: float, hit: bool
) -> None:
    rows = rows_of(write_data(tmp_path, train=[chat("Where is it?", "In the north.")] * 4))
    floor = rows.unigram_entropy()
    # The curve is still a little above its end.
    log = logs.losses([*decay(20, 32.0, 24.0, 0.01), *[8 * (floor + above)] * 20])
    outcome = judge(loss_level, log, rows, accumulating(tmp_path, 8))
    assert ("ends-above-unigram" in found(outcome)) is hit
    assert "sum-over-accumulation" in found(outcome)


@pytest.mark.parametrize(
    ("losses", "symptoms"),
    [
        ([2.0, 0.2, 0.1], {"suspiciously-low": "info"}),
        ([2.0, 0.5, 0.01], {"suspiciously-low": "warning"}),
        ([2.0, 1.0, 0.5], {}),
        ([2.0, 1.5, 1.0, 0.7, 0.2], {}),
    ],
)
def test_low_at_once(logs: LogWriter, losses: list[float], symptoms: dict[str, str]) -> None:
    assert found(judge(loss_level, logs.losses(losses, {1: 2.1}))) == symptoms


def test_what_cannot_be_judged(logs: LogWriter) -> None:
    middle = judge(loss_level, logs.losses([8.9, 8.8, 8.7], first=500))
    assert found(middle) == {}
    assert "loss-level.starts-above-uniform" in middle.unsought
    assert "loss-level.ends-above-unigram" in middle.unsought
    assert "loss-level.stays-at-chance" not in middle.unsought
    preference = logs.text("Iter 1: loss 9.9, chosen_r 0.1", "Iter 2: loss 9.9, chosen_r 0.1")
    assert judge(loss_level, preference).status.value == "skipped"
    assert judge(loss_level).status.value == "skipped"


# --- at chance ------------------------------------------------------------------------------

TAIL = [10.318, 10.290, 9.941, 9.841, 9.639, 9.962, 10.292, 9.914, 10.156, 10.157]


@pytest.mark.parametrize(
    ("losses", "severity"),
    [
        (TAIL, "error"),
        ([12.80, 12.81, 12.79, 12.80], "error"),
        ([9.1, 9.2, 9.05], "error"),
        # Two reports are no level, and below nine nats a language model may begin.
        ([10.3, 10.2], None),
        ([8.8, 8.9, 8.7, 8.9], None),
        # Above the largest vocabulary it may be another loss.
        ([21.0, 20.9, 21.1], "warning"),
        # Fallen by a tenth and more.
        ([11.5, 10.6, 9.9], None),
        ([14.0 - 0.45 * i for i in range(12)], None),
    ],
)
def test_a_loss_that_stays_at_chance_in_a_logs_tail(
    logs: LogWriter, losses: list[float], severity: str | None
) -> None:
    outcome = judge(loss_level, logs.losses(losses, first=2910))
    assert found(outcome).get("stays-at-chance") == severity


def test_chance_is_that_of_the_model_where_it_is_known(logs: LogWriter) -> None:
    base = BaseModel.read(BASE)
    uniform = math.log(base.vocab_size or 0)
    for level, severity in ((uniform - 0.1, "error"), (uniform - 0.5, None)):
        outcome = judge(loss_level, logs.losses([level] * 4, first=500), base)
        assert found(outcome).get("stays-at-chance") == severity


def test_a_sum_over_accumulation_steps_may_stay_there(logs: LogWriter, tmp_path: Path) -> None:
    config = accumulating(tmp_path, 8)
    alone = judge(loss_level, logs.losses(TAIL, first=2910), config)
    assert found(alone) == {"stays-at-chance": "warning"}
    # A validation, or mlx-lm's own columns, say that it is the loss of a batch.
    validated = judge(loss_level, logs.losses(TAIL, {3000: 10.017}, first=2910), config)
    assert found(validated) == {"stays-at-chance": "error"}
    summed = judge(loss_level, logs.losses(TAIL, {3000: 1.3}, first=2910), config)
    assert found(summed) == {"stays-at-chance": "warning"}


def test_the_models_name_tells_its_vocabulary(logs: LogWriter, tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("model: mlx-community/Llama-3.2-3B-Instruct-4bit\niters: 100\n")
    log = logs.losses(decay(20, 5.0, 2.0), {1: 12.4})
    assert found(judge(loss_level, log)) == {}
    one = finding(judge(loss_level, log, TrainingConfig.read(path)), "starts-above-uniform")
    assert one.measured["vocabulary"] == 128_256
    assert f"{math.log(128_256):.3f}" in one.message
