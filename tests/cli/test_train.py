import json
from pathlib import Path
from typing import Any

import pytest

from mlxdoctor.evidence.training_log import TrainingLog
from tests.conftest import FIXTURES, Call


def config(folder: Path, **changes: Any) -> str:
    """A short run on the smallest data, as a file."""
    values = {
        "model": str(FIXTURES / "base"),
        "data": str(FIXTURES / "data" / "geography-tiny"),
        "adapter_path": str(folder / "adapters"),
        "iters": 4,
        "batch_size": 1,
        "num_layers": 1,
        "val_batches": 1,
        "steps_per_report": 2,
        "max_seq_length": 64,
    }
    path = folder / "lora.json"
    path.write_text(json.dumps({**values, **changes}))
    return str(path)


def test_what_is_refused_ends_with_2_and_a_hint(tmp_path: Path, call: Call) -> None:
    code, _, err = call("train", "-c", config(tmp_path, learning_rte=1))
    assert (code, "did you mean 'learning_rate'?" in err) == (2, True)
    code, _, err = call("train", "-c", config(tmp_path), "--set", "mlxdoctor.clip=1")
    assert (code, "unknown key 'clip'" in err) == (2, True)
    code, _, err = call("train", "-c", config(tmp_path, model="nobody/nothing"))
    assert (code, "nothing is downloaded" in err) == (2, True)
    assert not (tmp_path / "adapters").exists()


@pytest.mark.slow
def test_a_run_prints_a_log_this_tool_reads(tmp_path: Path, call: Call) -> None:
    code, text, _ = call("train", "-c", config(tmp_path), "--set", "iters=6")
    assert code == 0
    (tmp_path / "train.log").write_text(text)
    log = TrainingLog.read([tmp_path / "train.log"])
    losses, rates = log.main.series["train_loss"], log.main.series["learning_rate"]
    assert losses.iterations.tolist() == [2, 4, 6]
    assert rates.values.tolist() == [1e-5] * 3
    assert log.main.announced_iterations == 6
    assert log.notes.trainable is not None
    lines = (tmp_path / "adapters" / "metrics.jsonl").read_text().splitlines()
    found = [line["train_loss"] for line in map(json.loads, lines) if "train_loss" in line]
    assert losses.values.tolist() == pytest.approx(
        [(found[at] + found[at + 1]) / 2 for at in (0, 2, 4)], abs=5e-4
    )


@pytest.mark.slow
def test_a_diverged_run_ends_with_1(tmp_path: Path, call: Call) -> None:
    high = ["--set", "learning_rate=1", "--set", "iters=30", "--set", "num_layers=4"]
    code, _, err = call("train", "-c", config(tmp_path), *high)
    assert (code, "Ended early, diverging: The loss ends at" in err) == (1, True)
    assert call("train", "-c", config(tmp_path), *high, "--set", "mlxdoctor.mode=parity")[0] == 0
