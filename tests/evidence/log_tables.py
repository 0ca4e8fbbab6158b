"""Logs to read, and their series as tables."""

from collections.abc import Callable
from pathlib import Path

import numpy as np

from mlxdoctor.evidence.training_log import TrainingLog, looks_like_log

NAN = float("nan")
ESC = "\x1b"
#: What mlx-lm prints.
CLASSIC = (
    "Starting training..., iters: 3000\n"
    "Iter 1: Val loss 2.480, Val took 0.732s\n"
    "Iter 10: Train loss 2.363, Learning Rate 1.000e-05, It/sec 1.022, Tokens/sec 88.083, "
    "Trained Tokens 862, Peak mem 6.093 GB\n"
)

#: Writes text into a file of the name given, "train.log" by default.
Write = Callable[..., Path]


def read(path: Path) -> TrainingLog:
    return TrainingLog.read([path])


def read_text(path: Path, content: str | bytes) -> TrainingLog:
    """The log with that content, which is written first and has to look like one."""
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert looks_like_log(path)
    return read(path)


def table(path: Path, name: str, segment: int = -1) -> dict[int, float]:
    series = read(path).segments[segment].get(name)
    assert series is not None, name
    assert len(set(series.iterations.tolist())) == len(series), "an iteration twice"
    return dict(zip(series.iterations.tolist(), series.values.tolist(), strict=True))


def same(found: dict[int, float], wanted: dict[int, float]) -> None:
    assert list(found) == list(wanted)
    np.testing.assert_array_equal(list(found.values()), list(wanted.values()))
