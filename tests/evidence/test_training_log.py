import json
from pathlib import Path

import pytest

from mlxdoctor.evidence.training_log import TrainingLog, looks_like_log
from mlxdoctor.measure.logged_levels import logged_loss
from mlxdoctor.safety.errors import InputError
from tests.conftest import FIXTURES, RUNS
from tests.evidence.log_tables import CLASSIC, Write, read, same, table


def test_a_second_run_is_a_second_segment(write: Write) -> None:
    path = write(CLASSIC + CLASSIC.replace("3000", "40").replace("2.363", "9.5"))
    log = read(path)
    assert [one.announced_iterations for one in log.segments] == [3000, 40]
    assert [one.first_line for one in log.segments] == [2, 5]
    same(table(path, "train_loss", 0), {10: 2.363})
    same(table(path, "train_loss", 1), {10: 9.5})


def test_versions(write: Write) -> None:
    log = read(write("mlx-lm==0.22.0\nmlx 0.20.1\n" + CLASSIC))
    assert log.notes.versions == {"mlx-lm": "0.22.0", "mlx": "0.20.1"}


NOT_LOGS = [
    ("train.jsonl", '{"messages": [{"role": "user", "content": "Iter 10: Train loss 2.3"}]}\n' * 9),
    ("text.jsonl", '{"text": "loss 3"}\n' * 9),
    ("generations.jsonl", '{"prompt": "a", "base": "b", "tuned": "c"}\n' * 9),
    ("evaluation.json", '{"loss": 2.0, "perplexity": 7.66}'),
    ("adapter_config.json", '{"fine_tune_type": "lora",\n "iters": 9,\n "learning_rate": 1e-5}'),
    ("README.md", "The loss was 2.5 at iter 300.\nAfter iter 300 the loss went to 1.2.\n"),
    ("data.csv", "name,age\nbob,3\n"),
    ("a.txt", "After epoch 3 the loss was 2.5.\n"),
    ("a.txt", "Loss at step 10: 2.5\n"),
    ("a.txt", "Our best loss: 2.5\nThe final loss: 2.25\nA loss: 1.5\n"),
    ("a.txt", "Validation loss: 2.5\n"),
    ("a.txt", "step 10 of the recipe: 3 eggs, no loss\n"),
    # Losses in bits are none in nats.
    ("a.log", "".join(f"step {at} bits/tok train={3.5 - at / 100}\n" for at in (40, 80, 120))),
    # Pairs of figures: too few, out of order, and counts.
    ("a.txt", "10 2.5\n20 2.25\n"),
    ("a.txt", "10 2.5\n5 2.25\n3 2.0\n"),
    ("a.txt", "10 2\n20 3\n30 4\n"),
]


@pytest.mark.parametrize(("name", "text"), NOT_LOGS)
def test_what_is_not_a_log(write: Write, name: str, text: str) -> None:
    path = write(text, name)
    assert not looks_like_log(path)
    with pytest.raises(InputError, match="no report on training; understood are"):
        read(path)


def test_a_lone_loss_is_read_where_its_file_is_named(write: Write) -> None:
    path = write("loss: 2.5\nsomething else\n", "a.txt")
    assert not looks_like_log(path)
    assert read(path).main.reports == 1


def test_fixture_files_that_are_not_logs() -> None:
    for path in FIXTURES.glob("data/*/*.jsonl"):
        assert not looks_like_log(path), path
    for path in RUNS.glob("*/generations.jsonl"):
        assert not looks_like_log(path), path
    for path in RUNS.glob("*/*.json"):
        assert not looks_like_log(path), path


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


def test_of_several_logs_the_one_that_agrees_with_the_configuration(tmp_path: Path) -> None:
    for name, iters, loss in (("a.log", 30, 1.5), ("b.log", 40, 2.5)):
        text = f"Starting training..., iters: {iters}\nIter 10: Train loss {loss}, It/sec 1.0\n"
        (tmp_path / name).write_text(f"Loading configuration file {name[0]}.yaml\n{text}")
    paths = [tmp_path / name for name in ("a.log", "b.log")]
    for stated, loss in (({}, 2.5), ({"config": "x/a.yaml"}, 1.5), ({"config": "b.yaml"}, 2.5)):
        log = TrainingLog.read(paths, stated)
        assert log.main.series["train_loss"].values.tolist() == [loss]


def test_a_distance_beside_a_cross_entropy_is_of_rows(write: Write) -> None:
    line = "step {0} loss 2.5 {1} 1.5 kl 0.1\n"
    for name, is_of_rewards in (("ce", False), ("entropy", True)):
        text = "".join(line.format(step, name) for step in (1, 2, 3))
        assert read(write(text)).is_preference is is_of_rewards


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


def bar(epoch: int, step: int, loss: float) -> str:
    return (
        f"Epoch {epoch}: {step // 4:3d}%|#| {step}/400 [01:00<02:00, 2.5it/s, loss={loss}, v_num=0]"
    )


def test_a_bar_that_names_the_next_epoch_before_it_counts_anew(write: Write) -> None:
    drawn = ["\r".join(bar(0, step, 4.0 - step / 400) for step in (100, 200, 300, 400))]
    for epoch in (1, 2):
        # First as the epoch before it ended.
        losses = {step: 4.0 - epoch - step / 400 for step in (100, 200, 300, 400)}
        rows = [bar(epoch, step, loss) for step, loss in losses.items()]
        drawn.append("\r".join([bar(epoch, 400, 4.0 - epoch), *rows]))
    text = "\n".join(drawn)
    (segment,) = TrainingLog.read([write(text)]).segments
    assert segment.series["train_loss"].iterations[-4:].tolist() == [900, 1000, 1100, 1200]


def test_an_epoch_s_summary_at_its_last_step_begins_no_epoch(write: Write) -> None:
    rows = [{"step": step, "loss": 4.0 - step / 100} for step in range(10, 101, 10)]
    rows[5:5] = [{"epoch": 1, "step": 50, "train_loss": 3.7, "val_loss": 3.6}]
    rows.append({"epoch": 2, "step": 100, "train_loss": 3.2, "val_loss": 3.1})
    (segment,) = TrainingLog.read([write("\n".join(map(json.dumps, rows)))]).segments
    assert segment.last == 100
    assert segment.series["val_loss"].iterations.tolist() == [50, 100]


def test_a_line_that_is_printed_once_more_with_the_validation(write: Write) -> None:
    lines = []
    for epoch in range(1, 13):
        said = f"127/127 ---- 1s 1s/step - accuracy: 0.8{epoch:02d}0 - loss: {3 - epoch / 10:.4f}"
        lines += [f"Epoch {epoch}/40", said, f"{said} - val_loss: {2 - epoch / 10:.4f}"]
    (segment,) = TrainingLog.read([write("\n".join(lines))]).segments
    losses = segment.series["val_loss"]
    assert losses.iterations.tolist() == [127 * epoch for epoch in range(1, 13)]
    assert losses.values[-1] == 0.8


def test_what_is_said_anew_of_the_judged_run_counts(write: Write) -> None:
    banner = "Num examples = {} | Num Epochs = {} | Total steps = {}\n"
    text = (
        banner.format(41, 2, 12)
        + "".join(f"{{'loss': {loss}, 'epoch': {epoch}}}\n" for loss, epoch in ((2.5, 1), (2.0, 2)))
        + banner.format(108, 3, 300)
        + "".join(f"{{'loss': {3 - e / 10}, 'epoch': {e / 10}}}\n" for e in range(1, 30))
    )
    log = TrainingLog.read([write(text)])
    assert len(log.segments) == 2
    assert log.notes.header["rows"] == "108"
