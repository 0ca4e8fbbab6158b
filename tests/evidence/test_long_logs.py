"""Stretches of like lines are read together, to the same figures as line by line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mlxdoctor.evidence.logs.log_format import Alike
from mlxdoctor.evidence.training_log import TrainingLog

LINES = 10_000


def line(number: int, loss: str = "") -> str:
    return (
        f"Iter {number}: Train loss {loss or round(1 + 1 / number, 5)}, It/sec 3.5, Peak mem 2.1 GB"
    )


@pytest.mark.parametrize(
    ("odd", "rows", "together"),
    [
        (line(6_001), LINES, [False, True, True]),
        (line(6_001, "nan"), LINES, [False, True, True]),
        (line(6_001, "-.-"), LINES - 1, [False, False, True]),
        ("Iter 6000: Val loss 1.250, Val took 2.0s", LINES - 1, [False, False, False]),
        ("", LINES - 1, [False, False, False]),
    ],
)
def test_like_lines_read_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, odd: str, rows: int, together: list[bool]
) -> None:
    lines = [line(number) for number in range(1, LINES + 1)]
    lines[6_000] = odd
    path = tmp_path / "train.log"
    path.write_text("\n".join(lines) + "\n")
    asked: list[bool] = []
    as_it_is = Alike.read_all

    def counted(alike: Alike, numbered: list[tuple[int, str]]) -> bool:
        asked.append(as_it_is(alike, numbered))
        return asked[-1]

    monkeypatch.setattr(Alike, "read_all", counted)
    found = TrainingLog.read([path]).main.series["train_loss"]
    assert asked == together
    monkeypatch.setattr(Alike, "read_all", lambda alike, numbered: False)
    slowly = TrainingLog.read([path]).main.series["train_loss"]
    assert len(found.values) == rows
    assert np.array_equal(found.iterations, slowly.iterations)
    assert np.array_equal(found.values, slowly.values, equal_nan=True)
