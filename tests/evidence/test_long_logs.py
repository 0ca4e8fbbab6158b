"""Lines that look alike are read by a pattern, to the same figures as each by itself."""

from pathlib import Path

import numpy as np
import pytest

from mlxdoctor.evidence.logs.log_format import LogSoFar
from mlxdoctor.evidence.training_log import TrainingLog

LINES = 2_000
LIKE = {
    "mlx-lm": "Iter {0}: Train loss {1}, It/sec 3.5, Peak mem 2.1 GB",
    "a logger": "2026-01-02 10:11:12,123 INFO step {0} | loss {1} | lr 1e-05",
    "JSON": '{{"step": {0}, "loss": {1}}}',
}


@pytest.mark.parametrize("name", LIKE)
@pytest.mark.parametrize("odd", ["", "nan", "-.-"])
def test_like_lines(name: str, odd: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [LIKE[name].format(number, round(1 + 1 / number, 5)) for number in range(1, LINES + 1)]
    lines[999] = LIKE[name].format(1000, odd) if odd else ""
    if name == "JSON":
        lines[999] = lines[999].replace("nan", "NaN")
    path = tmp_path / "train.log"
    path.write_text("\n".join(lines) + "\n")
    one_by_one = []
    unlike = LogSoFar.unlike
    monkeypatch.setattr(
        LogSoFar, "unlike", lambda *given: (one_by_one.append(x) or x for x in unlike(*given))
    )
    quickly = TrainingLog.read([path]).main.series["train_loss"]
    assert len(one_by_one) < 20
    monkeypatch.setattr(LogSoFar, "unlike", lambda log, *batch: zip(*batch, strict=True))
    slowly = TrainingLog.read([path]).main.series["train_loss"]
    assert len(quickly) == LINES - (odd != "nan")
    assert np.array_equal(quickly.iterations, slowly.iterations)
    assert np.array_equal(quickly.values, slowly.values, equal_nan=True)
