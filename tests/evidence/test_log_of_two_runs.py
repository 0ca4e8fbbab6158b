"""Which of a folder's logs is judged, and where a log of epochs begins."""

from pathlib import Path

from mlxdoctor.evidence.training_log import TrainingLog
from mlxdoctor.measure.logged_levels import logged_loss

FIRST = (
    "Iter 1: Val loss 4.460, Val took 1.0s\nIter 10: Train loss 3.796\nIter 20: Train loss 1.9\n"
)
RESUMED = (
    "Loading fine-tuned weights from first.safetensors\n"
    "Iter 1: Val loss 1.654, Val took 1.0s\nIter 10: Train loss 1.683\nIter 20: Train loss 1.6\n"
)


def test_a_resumed_run_comes_after_the_one_that_it_goes_on_from(tmp_path: Path) -> None:
    for name, text in (("train.log", RESUMED), ("train_part1.log", FIRST)):
        (tmp_path / name).write_text(text)
    for names in (("train.log", "train_part1.log"), ("train_part1.log", "train.log")):
        log = TrainingLog.read([tmp_path / name for name in names])
        assert log.main.base_val_loss == 1.654
        assert log.resumed


def test_a_log_that_counts_epochs_alone_shows_its_start_and_its_end(tmp_path: Path) -> None:
    lines = [{"eval_loss": 5.8, "epoch": 0.0}, {"loss": 4.7, "epoch": 0.1}]
    lines += [{"loss": 3.1, "epoch": 0.2}, {"eval_loss": 2.6, "epoch": 0.3}]
    path = tmp_path / "train.log"
    path.write_text("".join(f"{line}\n" for line in lines))
    log = TrainingLog.read([path])
    assert log.main.base_val_loss == 5.8
    logged = logged_loss(log)
    assert (logged.after, logged.split) == (2.6, "valid")
    path.write_text("".join(f"{line}\n" for line in lines[1:]))
    assert TrainingLog.read([path]).main.base_val_loss is None
