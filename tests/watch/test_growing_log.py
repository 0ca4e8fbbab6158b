"""Logs as they are written: files that grow, vanish, are cut or replaced; odd bytes."""

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from mlxdoctor.evidence.training_log import Segment, Series
from mlxdoctor.safety.errors import InputError
from mlxdoctor.watch.growing_log import GrowingLog, LogState, rows_of
from mlxdoctor.watch.monitor import LogRow

HALF = "Iter 10: Train loss 2.5, It/sec 1.0\nIter 20: Train loss 1"


@dataclass
class Log:
    """A log in a folder of its own, and what the watch reads of it."""

    path: Path
    since: float | None = None

    def __post_init__(self) -> None:
        self.growing = GrowingLog(self.path, self.since)

    def append(self, text: str | bytes) -> None:
        with self.path.open("ab") as file:
            file.write(text.encode() if isinstance(text, str) else text)

    def losses(self, *, is_whole: bool = False) -> list[tuple[int, float]]:
        return losses(self.state(is_whole=is_whole))

    def state(self, *, is_whole: bool = False) -> LogState:
        return self.growing.read(self.growing.stamp(), is_whole=is_whole)


def losses(state: LogState) -> list[tuple[int, float]]:
    rows = rows_of(state.run) if state.run is not None else []
    return [(row.step, row.values["train_loss"]) for row in rows if "train_loss" in row.values]


@pytest.fixture
def log(path: Path) -> Log:
    return Log(path)


def test_a_line_is_read_once_it_has_an_end(log: Log) -> None:
    log.append(HALF)
    assert log.losses() == [(10, 2.5)]
    assert log.losses(is_whole=True) == [(10, 2.5), (20, 1.0)]
    log.append(".75, It/sec 1.0\n")
    assert log.losses() == [(10, 2.5), (20, 1.75)]


def test_a_file_that_is_not_there_yet_or_empty(log: Log) -> None:
    assert log.growing.stamp() is None
    log.append("")
    assert log.state() == LogState()


def test_a_progress_bar_is_read_as_it_comes(log: Log) -> None:
    log.append("10%|# | 1/10 [00:01<00:09, loss=3.4]\r20%|##| 2/10 [00:02<00:08, loss=3.2]\r30%|")
    assert log.losses() == [(1, 3.4), (2, 3.2)]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-8-sig"])
def test_other_encodings_and_odd_bytes(log: Log, encoding: str) -> None:
    log.append("loss ▼\nIter 10: Train loss 2.5, It/sec 1.0\n".encode(encoding))
    assert log.losses() == [(10, 2.5)]


def test_what_an_older_process_wrote_is_passed_over_until_the_file_is_replaced(log: Log) -> None:
    log.append("Iter 10: Train loss 9.5, It/sec 1.0\nIter 20: Train loss 9.0, It/sec 1.0\n")
    os.utime(log.path, (0, 0))
    later = Log(log.path, since=1.0)
    assert later.losses() == []
    later.append("Iter 10: Train loss 2.5, It/sec 1.0\n")
    assert later.losses() == [(10, 2.5)]
    log.path.write_text("Iter 5: Train loss 2.0, It/sec 1.0\n")
    assert later.losses() == [(5, 2.0)]


def test_what_is_no_log_is_refused_without_waiting(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="folder"):
        GrowingLog(tmp_path)
    (tmp_path / "binary").write_bytes(b"\0\1\2\n")
    with pytest.raises(InputError, match="binary"):
        Log(tmp_path / "binary").losses()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="not a regular file"):
        GrowingLog(tmp_path / "pipe")


def test_what_it_says_beside_the_reports(log: Log) -> None:
    log.append("Starting training..., iters: 600\nIter 10: Train loss 2.0, It/sec 1.0\n")
    state = log.state()
    assert state.run.announced_iterations == 600
    assert state.failure is None
    assert not state.begins_anew
    log.append("libc++abi: terminating due to uncaught exception: [METAL] Insufficient Memory\n")
    failure = log.state().failure
    assert failure.kind == "out-of-memory"
    log.append("Starting training..., iters: 600\n")
    assert log.state().begins_anew
    log.append("Iter 10: Train loss 1.9, It/sec 1.0\n")
    assert log.state().failure is None
    assert log.losses() == [(10, 1.9)]


def series(steps: list[int]) -> Series:
    return Series(np.array(steps), np.array([step + at / 8 for at, step in enumerate(steps)]))


@pytest.mark.parametrize(
    ("columns", "rows"),
    [
        (
            {"train_loss": [10, 20], "val_loss": [0, 20]},
            [
                (0, {"val_loss": 0.0}),
                (10, {"train_loss": 10.0}),
                (20, {"train_loss": 20.125, "val_loss": 20.125}),
            ],
        ),
        (
            {"train_loss": [1, 1, 2], "val_loss": [1]},
            [
                (1, {"train_loss": 1.0}),
                (1, {"train_loss": 1.125, "val_loss": 1.0}),
                (2, {"train_loss": 2.25}),
            ],
        ),
    ],
    ids=["iterations", "epochs"],
)
def test_rows_in_order(
    columns: dict[str, list[int]], rows: list[tuple[int, dict[str, float]]]
) -> None:
    run = Segment({name: series(steps) for name, steps in columns.items()}, 1, 9)
    assert rows_of(run) == [LogRow(*row) for row in rows]
