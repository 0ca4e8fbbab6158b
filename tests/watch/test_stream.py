"""A log that grows gives the reports that it gives once it is whole."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxdoctor.evidence.training_log import TrainingLog
from mlxdoctor.watch.alarms import Watch
from mlxdoctor.watch.report_stream import ReportStream, read_log, read_whole
from mlxdoctor.watch.reports import LogRow

RUNS = sorted((Path(__file__).resolve().parents[2] / "fixtures" / "runs").glob("*/train.*"))


def losses(reports: list[LogRow], name: str) -> list[tuple[int, float]]:
    return [(one.step, one.values[name]) for one in reports if name in one.values]


@pytest.mark.parametrize("path", RUNS, ids=lambda path: path.parent.name)
def test_line_by_line_gives_what_diagnose_reads(path: Path) -> None:
    stream = ReportStream(path)
    grown: list[LogRow] = []
    for line in path.read_text().splitlines(keepends=True):
        grown.extend(stream.feed(line))
    grown.extend(stream.finish())
    segment = TrainingLog.read([path]).main
    for name in ("train_loss", "val_loss", "learning_rate", "tokens_per_second"):
        series = segment.get(name)
        expected = (
            []
            if series is None
            else list(zip(series.iterations.tolist(), series.values.tolist(), strict=True))
        )
        np.testing.assert_array_equal(losses(grown, name), expected)
    assert repr(grown) == repr(read_log(path))


def test_a_report_is_there_as_soon_as_its_line_is() -> None:
    stream = ReportStream(Path("train.log"))
    (first,) = stream.feed("Iter 10: Train loss 2.648, Learning Rate 1e-05, It/sec 0.161\n")
    assert first.step == 10
    assert first.values["train_loss"] == 2.648
    (row,) = stream.feed('{"iteration": 20, "train_loss": 2.5}\n')
    assert row == LogRow(20, {"train_loss": 2.5})
    assert stream.feed("nothing of interest\n") == []


def test_a_csv_table_grows_by_rows() -> None:
    stream = ReportStream(Path("history.csv"))
    assert stream.feed("step,loss,lr\n") == []
    (first,) = stream.feed("10,2.5,0.001\n")
    assert (first.step, first.values["train_loss"]) == (10, 2.5)
    second, third = stream.feed("20,2.4,0.001\n30,2.3,0.001\n")
    assert (second.step, third.step) == (20, 30)


def test_the_columns_of_a_table_are_runs_of_their_own() -> None:
    stream = ReportStream(Path("wandb.csv"))
    rows = stream.feed('"Step","a - train/loss","b - train/loss"\n1,2.5,2.6\n2,2.4,9.0\n')
    assert {one.run for one in rows} == {"a", "b"}


def test_a_progress_bar_counts_only_where_nothing_else_reports() -> None:
    bar = "10%|#  | 1/10 [00:01<00:09, loss=3.4]\r20%|## | 2/10 [00:02<00:08, loss=3.2]\n"
    alone = ReportStream(Path("a.log"))
    assert losses([*alone.feed(bar), *alone.finish()], "train_loss") == [(1, 3.4), (2, 3.2)]
    beside = ReportStream(Path("b.log"))
    rows = [*beside.feed("Iter 1: Train loss 3.3, It/sec 1.0\n"), *beside.feed(bar)]
    assert losses([*rows, *beside.finish()], "train_loss") == [(1, 3.3)]


def test_rows_without_a_step_are_counted() -> None:
    stream = ReportStream(Path("t.log"))
    rows = stream.feed("{'loss': 2.0, 'lr': 0.1}\n{'loss': 1.9, 'lr': 0.1}\n")
    assert [one.step for one in rows] == [1, 2]


def test_how_long_the_training_is_and_that_it_broke_off() -> None:
    stream = ReportStream(Path("t.log"))
    stream.feed("Starting training..., iters: 600\nIter 10: Train loss 2.0, It/sec 1.0\n")
    assert stream.iterations == 600
    assert stream.failure is None
    stream.feed("libc++abi: terminating due to uncaught exception: [METAL] Insufficient Memory\n")
    assert stream.failure is not None
    assert stream.failure.kind == "out-of-memory"
    stream.feed("Iter 10: Train loss 2.0, It/sec 1.0\n")
    assert stream.failure is None


def test_what_repeats_is_not_kept() -> None:
    stream = ReportStream(Path("t.log"))
    for step in range(1, 500):
        stream.feed(f"step {step}/500  loss 0.5\nIter {step}: Saved adapter weights to a.npz.\n")
    assert stream.iterations == 500
    assert stream.notes.size <= 4


def test_a_document_is_read_whole_and_half_of_one_is_none(tmp_path: Path) -> None:
    path = tmp_path / "trainer_state.json"
    history = [{"step": 10, "loss": 2.0}, {"step": 20, "loss": 1.9}, {"step": 20, "eval_loss": 2.0}]
    text = json.dumps({"global_step": 20, "log_history": history}, indent=1)
    path.write_text(text)
    assert losses(read_whole(path), "train_loss") == [(10, 2.0), (20, 1.9)]
    assert losses(read_log(path), "val_loss") == [(20, 2.0)]
    path.write_text(text[:40])
    assert read_whole(path) == []


_WORDS = st.sampled_from(
    (
        *("Iter 10: ", "Train loss nan, ", "{", '{"iteration": 1, "train_loss": ', "1e999", "}"),
        *("\n", "\r", "| Step | loss |\n|--|--|\n| 1 | 2 |\n", "step,loss\n1,2\n", "[", "▼"),
        *("\x1b[31m", "Traceback (most recent call last)", "Iter 5:\n", "╭"),
        "10/100 [00:32<00:10, loss=3.4]",
    )
)


@settings(deadline=None)
@given(st.lists(_WORDS | st.text(max_size=8), max_size=30), st.integers(1, 7))
def test_whatever_is_written_reading_goes_on(words: list[str], every: int) -> None:
    stream, watch = ReportStream(Path("t.log")), Watch()
    for start in range(0, len(words), every):
        for report in stream.feed("".join(words[start : start + every])):
            watch.see(report)
    for report in stream.finish():
        watch.see(report)


@pytest.mark.parametrize(
    ("epochs", "steps"),
    [((1, 2, 3), [10, 20, 30, 40, 50, 60]), ((1, 2, 1), [10, 20, 30, 40, 10, 20])],
)
def test_steps_are_counted_over_epochs_and_anew_in_another_run(
    epochs: tuple[int, ...], steps: list[int]
) -> None:
    lines = [f"Epoch {one}/3 Batch {at}/20 Loss: 2.5" for one in epochs for at in (10, 20)]
    stream = ReportStream(Path("train.log"))
    rows = [row for line in lines for row in stream.feed(f"{line}\n")] + stream.finish()
    assert [one.step for one in rows] == steps
