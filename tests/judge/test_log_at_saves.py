import math

import numpy as np
import pytest

from mlxdoctor.evidence.training_log import TrainingLog
from mlxdoctor.judge.save_flaws import DIVERGED_NATS, LOST_SHARE, LoggedCourse, course
from tests.checks.log_evidence import LogWriter

SAVES = (50, 100, 150, 200)
FALLING = [4.0 * 0.9**i + 0.5 for i in range(20)]
#: Nats above a level, and the share of what was learned, that are a blow-up.
NATS, SHARE = DIVERGED_NATS, LOST_SHARE


def at_saves(log: TrainingLog, saves: tuple[int, ...] = SAVES) -> LoggedCourse:
    logged = course(log, saves)
    assert logged is not None
    return logged


@pytest.mark.parametrize(
    ("losses", "val", "lost", "onset"),
    [
        (FALLING, {}, "....", None),
        ([*FALLING[:12], *[6.0] * 8], {}, "..xx", 130),
        ([*FALLING[:12], *[math.nan] * 8], {}, "..xx", 130),
        # Of a small loss the limit in nats decides.
        ([0.3] * 10 + [0.3 + 1.04 * NATS] * 10, {}, "..xx", 110),
        ([0.3] * 10 + [0.3 + 0.96 * NATS] * 10, {}, "....", None),
        # From 8 to 4: a rise by a quarter of that is far from half as much again.
        ([8.0, 6.0, *[4.0] * 8, *[4.0 + 4.2 * SHARE] * 10], {1: 8.0}, "..xx", 110),
        ([8.0, 6.0, *[4.0] * 8, *[4.0 + 3.8 * SHARE] * 10], {1: 8.0}, "....", None),
        # One bad report is no blow-up, and a run that recovers has broken saves all the same.
        ([*[1.0] * 9, 9.0, *[1.0] * 10], {}, "....", None),
        ([*[1.0] * 8, *[6.0] * 4, *[1.0] * 8], {}, ".x..", None),
    ],
)
def test_saves_made_while_the_loss_was_blown_up(
    logs: LogWriter, losses: list[float], val: dict[int, float], lost: str, onset: int | None
) -> None:
    logged = at_saves(logs.losses(losses, val))
    assert "".join(".x"[each] for each in logged.lost) == lost
    assert (logged.onset, logged.covers) == (onset, True)
    assert logged.losses == pytest.approx([losses[i] for i in (4, 9, 14, 19)], nan_ok=True)


def test_the_blow_up_as_a_clause(logs: LogWriter) -> None:
    story = f"the log's loss blew up at iteration 130, from {FALLING[10]:.3g} to 6"
    assert at_saves(logs.losses([*FALLING[:12], *[6.0] * 8])).story == story
    story = "the log's loss is not finite from iteration 130 on"
    assert at_saves(logs.losses([*FALLING[:12], *[math.nan] * 8])).story == story


def test_dense_reports_are_smoothed(logs: LogWriter) -> None:
    random = np.random.default_rng(3)
    losses = [*random.normal(1.0, 0.2, 120).tolist(), *random.normal(5.0, 0.2, 80).tolist()]
    logged = at_saves(logs.losses(losses, every=1))
    assert logged.lost == (False, False, True, True)
    assert logged.onset == pytest.approx(121, abs=3)


def test_the_validations_at_the_saves(logs: LogWriter) -> None:
    logged = at_saves(logs.losses(FALLING, {1: 4.0, 50: 2.0, 101: 2.5, 200: 1.8}))
    assert logged.validations == (2.0, 2.5, None, 1.8)


def test_nothing_to_compare_with(logs: LogWriter) -> None:
    assert not at_saves(logs.losses(FALLING[:10])).covers
    assert at_saves(logs.losses(FALLING[:19])).covers
    assert course(None, SAVES) is None
    table = logs.text("epoch,loss", *(f"{i},{4 - i / 10}" for i in range(1, 9)))
    assert course(table, SAVES) is None
