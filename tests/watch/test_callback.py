import json
import math
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.optimizers as optim
import pytest
from mlx_lm.tuner.callbacks import TrainingCallback
from mlx_lm.tuner.trainer import TrainingArgs
from mlx_lm.tuner.trainer import train as mlx_lm_train

from mlxdoctor import TrainingStopped, WatchCallback
from mlxdoctor.evidence.training_log import TrainingLog
from mlxdoctor.watch.alarms import AlarmKind
from mlxdoctor.watch.monitor import Watch
from tests.twin.small import VOCABULARY, small_model


class Recorder(TrainingCallback):  # type: ignore[misc]
    """Keeps what it is given."""

    def __init__(self) -> None:
        self.train: list[dict[str, Any]] = []
        self.val: list[dict[str, Any]] = []

    def on_train_loss_report(self, train_info: dict[str, Any]) -> None:
        self.train.append(train_info)

    def on_val_loss_report(self, val_info: dict[str, Any]) -> None:
        self.val.append(val_info)


def train(callback: Any, rate: float, folder: Path, iterations: int = 12) -> None:
    """A real training of a tiny model with mlx-lm's loop."""
    mx.random.seed(3)
    rows = [([(i * j) % VOCABULARY for j in range(1, 17)], 0) for i in range(1, 17)]
    arguments = TrainingArgs(
        batch_size=4,
        iters=iterations,
        val_batches=1,
        steps_per_report=2,
        steps_per_eval=6,
        steps_per_save=6,
        adapter_file=folder / "adapters.safetensors",
        max_seq_length=32,
    )
    model = small_model()
    optimizer = optim.Adam(learning_rate=rate)
    mlx_lm_train(model, optimizer, rows, rows, arguments, training_callback=callback)


@pytest.mark.slow
def test_a_sound_training_is_recorded_whole_and_ends(tmp_path: Path) -> None:
    inner = Recorder()
    watch = WatchCallback(tmp_path / "out" / "train.jsonl", inner, iterations=12, stop=True)
    train(watch, 1e-3, tmp_path)
    assert watch.alarm is None
    log = TrainingLog.read([tmp_path / "out" / "train.jsonl"]).main
    told = {name: [row[name] for row in inner.train] for name in inner.train[0]}
    for name, key in (
        ("train_loss", "train_loss"),
        ("learning_rate", "learning_rate"),
        ("peak_memory_gb", "peak_memory"),
        ("tokens_per_second", "tokens_per_second"),
        ("iterations_per_second", "iterations_per_second"),
        ("trained_tokens", "trained_tokens"),
    ):
        series = log.series[name]
        assert series.iterations.tolist() == told["iteration"]
        assert series.values.tolist() == pytest.approx(told[key])
    assert (
        log.series["val_loss"].iterations.tolist()
        == [row["iteration"] for row in inner.val]
        == [0, 5, 11]
    )


def test_a_diverging_training_is_stopped_between_its_saves(tmp_path: Path) -> None:
    record, inner = tmp_path / "train.jsonl", Recorder()
    watch = WatchCallback(record, inner, iterations=200, stop=True)
    with pytest.raises(TrainingStopped) as stopped:
        train(watch, 1.0, tmp_path, iterations=200)
    alarm = stopped.value.alarm
    assert watch.alarm is alarm
    assert alarm.verdict in {AlarmKind.DIVERGING, AlarmKind.NON_FINITE}
    assert alarm.step <= 20
    assert alarm.saved_steps == 200 - alarm.step
    # The report that raised it reached the other callback too.
    assert max(row["iteration"] for row in (*inner.train, *inner.val)) == alarm.step
    rows = [json.loads(line) for line in record.read_text().splitlines()]
    assert rows[-1]["alarm"]["verdict"] == alarm.verdict.value
    assert TrainingLog.read([record]).main.get("train_loss") is not None


def report(step: int, loss: float) -> dict[str, Any]:
    return {"iteration": step, "train_loss": loss, "learning_rate": 1e-5, "peak_memory": 1.0}


def test_without_stop_the_alarm_is_told_once_and_the_training_goes_on(
    capsys: pytest.CaptureFixture[str],
) -> None:
    watch = WatchCallback(None)
    for step, loss in ((10, 2.0), (20, math.nan), (30, math.nan)):
        watch.on_train_loss_report(report(step, loss))
    told = capsys.readouterr().err
    assert told.count("non-finite at iteration 20") == 1
    assert watch.alarm.step == 20


def test_what_the_wrapped_callback_raises_is_its_own_and_the_record_is_kept(tmp_path: Path) -> None:
    class Broken(Recorder):
        def on_train_loss_report(self, train_info: dict[str, Any]) -> None:
            raise LookupError("mine")

    watch = WatchCallback(tmp_path / "r.jsonl", Broken())
    with pytest.raises(LookupError, match="mine"):
        watch.on_train_loss_report(report(10, 2.0))
    assert '"train_loss": 2.0' in (tmp_path / "r.jsonl").read_text()


def test_a_fault_of_the_watch_ends_no_training(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(Watch, "see", fail)
    inner = Recorder()
    watch = WatchCallback(tmp_path / "r.jsonl", inner, stop=True)
    for step in (10, 20):
        watch.on_train_loss_report(report(step, 2.0))
    assert len(inner.train) == 2
    assert len((tmp_path / "r.jsonl").read_text().splitlines()) == 2
    assert capsys.readouterr().err.count("the watch failed; the training goes on") == 1


def test_a_record_that_cannot_be_written_ends_no_training_and_no_watch(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    watch = WatchCallback(tmp_path / "file" / "r.jsonl", stop=True)
    watch.on_train_loss_report(report(10, 2.0))
    assert "the training goes on" in capsys.readouterr().err
    with pytest.raises(TrainingStopped, match="non-finite"):
        watch.on_train_loss_report(report(20, math.nan))


def test_numbers_of_mlx_and_unknown_keys_are_recorded(tmp_path: Path) -> None:
    watch = WatchCallback(tmp_path / "r.jsonl")
    row = {"iteration": 10, "train_loss": mx.array(2.5), "note": "x", "other": mx.array(1)}
    watch.on_train_loss_report(row)
    (written,) = [json.loads(line) for line in (tmp_path / "r.jsonl").read_text().splitlines()]
    assert written | {"seconds": 0} == {**row, "train_loss": 2.5, "other": 1, "seconds": 0}
