import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.checkpoints import CheckpointHistory
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.training_log import TrainingLog
from mlxdoctor.judge.save_flaws import (
    DIVERGED_NATS,
    LOST_SHARE,
    NOMINAL_LARGE,
    LoggedCourse,
    SaveVerdict,
    course,
    examine,
)
from mlxdoctor.run import Run
from tests.bisect.states import ZERO, changed, history, standings, state
from tests.checks.log_evidence import LogWriter
from tests.conftest import RUNS

GROWING = [state(0.1), state(0.2, 1), state(0.3, 2)]
BROKEN = state(0.2, 1)
BROKEN["model.layers.0.self_attn.q_proj.lora_b"][0, 0] = np.inf


def examined(
    folder: Path,
    states: Sequence[dict[str, Any]],
    final: dict[str, Any] | None = None,
    log: TrainingLog | None = None,
) -> tuple[SaveVerdict, ...]:
    saves = history(folder, states, final)
    return examine(saves, TrainingConfig.read(folder), None, log)[1]


@pytest.mark.parametrize(
    ("states", "final", "expected", "flaw"),
    [
        (GROWING, GROWING[-1], "gggg", ""),
        ([state(0.1), BROKEN, state(0.3, 2)], None, "gbg", "non-finite"),
        ([state(NOMINAL_LARGE * 1.01)], None, "b", "exploded"),
        ([state(NOMINAL_LARGE * 0.99)], None, "g", ""),
        ([ZERO, ZERO], ZERO, "uuu", "zero-b"),
        (GROWING[:2], changed(GROWING[1], 1, 0.0), "ggb", "erased"),
    ],
)
def test_what_the_files_show(
    tmp_path: Path,
    states: list[dict[str, Any]],
    final: dict[str, Any] | None,
    expected: str,
    flaw: str,
) -> None:
    verdicts = examined(tmp_path, states, final)
    assert standings(verdicts) == expected
    bad = [verdict for verdict in verdicts if not verdict.is_good]
    assert [flaw for verdict in bad for flaw in verdict.flaws] == [flaw] * len(bad)
    assert all(verdict.is_certain for verdict in bad)


def test_what_is_said_of_them(tmp_path: Path) -> None:
    verdicts = examined(tmp_path, [state(0.1), BROKEN, state(0.2)], changed(state(0.2), 1, 0.0))
    assert [verdict.why for verdict in verdicts[1:]] == [
        "1 of its values are NaN or infinite",
        "",
        "1 of 4 modules lost what they had learned: B is 0",
    ]
    same = examined(tmp_path / "same", GROWING, GROWING[-1])
    assert [verdict.same_as for verdict in same] == [None, None, None, 2]


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    saves = history(tmp_path, [state(0.1), state(0.2)])
    (tmp_path / "0000200_adapters.safetensors").write_bytes(b"\x00" * 4)
    verdicts = examine(saves, TrainingConfig.read(tmp_path), None, None)[1]
    assert standings(verdicts) == "gb"
    assert list(verdicts[1].flaws) == ["unreadable"]


def test_what_the_log_shows(tmp_path: Path) -> None:
    log = LogWriter(tmp_path).losses([2.0, 1.5, 1.2, 1.0, 6.0, 6.0], every=50)
    verdicts = examined(tmp_path, GROWING, log=log)
    assert standings(verdicts) == "ggb"
    assert verdicts[2].why == "saved while the log's loss was 6"
    assert not verdicts[2].is_certain


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("healthy-ordinary", "ggg"),
        ("healthy-noisy-batch1", "ggg"),
        ("healthy-masked-warmup", "ggg"),
        ("healthy-short-low-rate", "ggg"),
        ("no-supervised-tokens", "gbbb"),
        ("b-never-trained", "uuu"),
        ("rate-far-too-high-nan", "bbb"),
        ("rate-too-high-garbled", "bb"),
        ("scale-too-large", "bbb"),
        ("collapse-frequent-token", "bbbb"),
    ],
)
def test_real_runs(name: str, expected: str) -> None:
    run = Run.discover([RUNS / name], allow_model=False)
    config, base, log = run.get(TrainingConfig), run.get(BaseModel), run.get(TrainingLog)
    verdicts = examine(run.need(CheckpointHistory), config, base, log)[1]
    assert standings(verdicts) == expected


SAVES = (50, 100, 150, 200)
FALLING = [4.0 * 0.9**i + 0.5 for i in range(20)]
#: Nats above a level, and the share of what was learned, that are a blow-up.
NATS, SHARE = DIVERGED_NATS, LOST_SHARE


def at_saves(log: TrainingLog, saves: tuple[int, ...] = SAVES) -> LoggedCourse:
    return course(log, saves)


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
