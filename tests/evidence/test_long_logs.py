"""Lines that look alike are read by a pattern, to the same figures as each by itself."""

from pathlib import Path

import numpy as np
import pytest

from mlxdoctor.evidence.logs.log_format import LogSoFar
from mlxdoctor.evidence.training_log import Segment, TrainingLog

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


@pytest.mark.parametrize("seed", range(12))
def test_lines_of_several_forms_in_any_order(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read together they are the rows that they are one by one, redrawn bars among them."""
    rng = np.random.default_rng(seed)
    forms = [*LIKE.values(), "\r 10%|# | {0}/400 [00:10<01:20, loss={1}]", "Val loss {1}", "Saved."]
    text = ""
    for number in range(1, 401):
        form = forms[int(rng.integers(len(forms)))]
        line = form.format(number, round(float(rng.uniform(1, 3)), 3))
        text += line if line.startswith("\r") and rng.random() < 0.7 else f"{line}\n"
        if rng.random() < 0.01:
            text += f"Starting training..., iters: {int(rng.integers(400, 900))}\n"
    path = tmp_path / "train.log"
    path.write_text(text, newline="")
    together = TrainingLog.read([path])
    monkeypatch.setattr("mlxdoctor.evidence.logs.reader.LINES_BETWEEN", 1)
    alone = TrainingLog.read([path])
    assert [_rows(one) for one in together.segments] == [_rows(one) for one in alone.segments]
    assert vars(together.notes) == vars(alone.notes)


def _rows(segment: Segment) -> dict[str, object]:
    columns = {
        name: (series.iterations.tolist(), series.values.tolist())
        for name, series in segment.series.items()
    }
    return {**columns, "announced": segment.announced_iterations, "lines": segment.first_line}
