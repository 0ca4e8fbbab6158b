"""What a log says of the model at each save."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from mlxdoctor.evidence.training_log import TrainingLog
from mlxdoctor.judge.log_at_saves import DIVERGED_NATS, LOST_SHARE, LoggedCourse, course
from tests.checks.log_evidence import LogWriter
from tests.conftest import RUNS

SAVES = (50, 100, 150, 200)
FALLING = [4.0 * 0.9**i + 0.5 for i in range(20)]


def at_saves(log: TrainingLog, saves: tuple[int, ...] = SAVES) -> LoggedCourse:
    found = course(log, saves)
    assert found is not None
    return found


def test_a_falling_loss_loses_nothing(tmp_path: Path) -> None:
    found = at_saves(LogWriter(tmp_path).losses(FALLING))
    assert found.lost == (False,) * 4
    assert found.risen == (False,) * 4
    assert (found.onset, found.story, found.covers) == (None, "", True)
    assert found.losses == pytest.approx(tuple(FALLING[at] for at in (4, 9, 14, 19)))


def test_a_blow_up_dates_the_break(tmp_path: Path) -> None:
    found = at_saves(LogWriter(tmp_path).losses([*FALLING[:12], *[6.0] * 8]))
    assert found.lost == (False, False, True, True)
    assert found.onset == 130
    assert found.story == f"the log's loss blew up at iteration 130, from {FALLING[10]:.3g} to 6"


#: Nats above a level, and the share of what was learned, that are a blow-up.
NATS, SHARE = DIVERGED_NATS, LOST_SHARE


@pytest.mark.parametrize(
    ("losses", "val", "lost"),
    [
        # Of a small loss the limit in nats decides.
        ([0.3] * 10 + [0.3 + 1.04 * NATS] * 10, {}, "..xx"),
        ([0.3] * 10 + [0.3 + 0.96 * NATS] * 10, {}, "...."),
        # From 8 to 4: a rise by a quarter of that is far from half as much again.
        ([8.0, 6.0, *[4.0] * 8, *[4.0 + 4.2 * SHARE] * 10], {1: 8.0}, "..xx"),
        ([8.0, 6.0, *[4.0] * 8, *[4.0 + 3.8 * SHARE] * 10], {1: 8.0}, "...."),
        # One bad report is no blow-up, and a run that recovers has broken saves all the same.
        ([*[1.0] * 9, 9.0, *[1.0] * 10], {}, "...."),
        ([*[1.0] * 8, *[6.0] * 4, *[1.0] * 8], {}, ".x.."),
    ],
)
def test_saves_made_while_the_loss_was_blown_up(
    tmp_path: Path, losses: list[float], val: dict[int, float], lost: str
) -> None:
    found = at_saves(LogWriter(tmp_path).losses(losses, val))
    assert "".join(".x"[each] for each in found.lost) == lost
    assert (found.onset is not None) is lost.endswith("x")


def test_dense_reports_are_smoothed(tmp_path: Path) -> None:
    random = np.random.default_rng(3)
    quiet = random.normal(1.0, 0.2, 120)
    losses = [float(one) for one in (*quiet, *random.normal(5.0, 0.2, 80))]
    found = at_saves(LogWriter(tmp_path).losses(losses, every=1))
    assert found.lost == (False, False, True, True)
    assert found.onset == pytest.approx(121, abs=3)


def test_nan_from_some_iteration_on(tmp_path: Path) -> None:
    found = at_saves(LogWriter(tmp_path).losses([*FALLING[:12], *[math.nan] * 8]))
    assert found.lost == (False, False, True, True)
    assert found.story == "the log's loss is not finite from iteration 130 on"


@pytest.mark.parametrize(("last", "risen"), [(1.25, True), (1.19, False)])
def test_a_validation_loss_that_rises(tmp_path: Path, last: float, risen: bool) -> None:
    val = {1: 4.0, 50: 2.0, 100: 2.0 * last, 150: 2.0 * last, 200: 2.0 * last}
    found = at_saves(LogWriter(tmp_path).losses(FALLING, val))
    assert found.risen == (False, risen, risen, risen)
    assert found.best == 50


def test_one_bad_validation_is_no_rise(tmp_path: Path) -> None:
    val = {1: 4.0, 50: 2.0, 100: 3.0, 150: 1.9, 200: 1.8}
    assert at_saves(LogWriter(tmp_path).losses(FALLING, val)).risen == (False,) * 4
    # At the end the one before it must agree.
    val = {1: 4.0, 50: 2.0, 100: 1.9, 150: 1.8, 200: 2.9}
    assert at_saves(LogWriter(tmp_path).losses(FALLING, val)).risen == (False,) * 4


def test_a_log_that_ends_early_does_not_cover_the_saves(tmp_path: Path) -> None:
    found = at_saves(LogWriter(tmp_path).losses(FALLING[:10]))
    assert not found.covers
    assert at_saves(LogWriter(tmp_path).losses(FALLING[:19])).covers


def test_nothing_to_compare_with(tmp_path: Path) -> None:
    assert course(None, SAVES) is None
    table = LogWriter(tmp_path).text("epoch,loss", *(f"{i},{4 - i / 10}" for i in range(1, 9)))
    assert course(table, SAVES) is None


@pytest.mark.parametrize(
    ("name", "saves", "lost"),
    [
        ("healthy-noisy-batch1", (500, 1000), (False, False)),
        ("healthy-ordinary", (300, 600), (False, False)),
        ("no-supervised-tokens", (40, 80, 120), (False, True, True)),
        ("collapse-frequent-token", (100, 200, 300), (True, True, True)),
    ],
)
def test_real_logs(name: str, saves: tuple[int, ...], lost: tuple[bool, ...]) -> None:
    log = TrainingLog.read([RUNS / name / "train.log"])
    assert at_saves(log, saves).lost == lost
