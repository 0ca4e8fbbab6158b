"""Logs that are records or tables: JSON, CSV, Markdown."""

from __future__ import annotations

import json

import pytest

from tests.evidence.log_tables import NAN, Write, read, same, table


def test_callback_records(write: Write) -> None:
    rows = [
        {"iteration": 0, "val_loss": 2.9, "val_time": 1.0},
        {"iteration": 10, "train_loss": NAN, "learning_rate": 1e-5, "peak_memory": 3.2},
        {"iteration": 19, "val_loss": 2.5, "val_time": 1.5},
        {"iteration": 20, "train_loss": 2.2, "learning_rate": 1e-5, "peak_memory": 3.2},
    ]
    path = write("".join(json.dumps(row) + "\n" for row in rows), "metrics.jsonl")
    same(table(path, "train_loss"), {10: NAN, 20: 2.2})
    same(table(path, "val_loss"), {0: 2.9, 19: 2.5})
    same(table(path, "peak_memory_gb"), {10: 3.2, 20: 3.2})
    assert read(path).main.base_val_loss == 2.9
    assert len(read(path).segments) == 1


def test_wandb_export(write: Write) -> None:
    path = write(
        '{"_step":10,"_runtime":1.5,"iteration":10,"train_loss":2.66,"note":"x"}\n'
        '{"_step":20,"_runtime":2.5,"iteration":20,"train_loss":"NaN","note":null}\n'
        '{"_step":30,"_runtime":3.5,"iteration":30,"note":"x"}\n',
        "history.jsonl",
    )
    same(table(path, "train_loss"), {10: 2.66, 20: NAN})


def test_a_null_that_becomes_a_number_is_not_lost(write: Write) -> None:
    rows = [{"iteration": i, "train_loss": 2.0, "x": None if i < 5 else i} for i in range(10)]
    path = write("".join(json.dumps(row) + "\n" for row in rows), "metrics.jsonl")
    same(table(path, "x"), {i: i for i in range(5, 10)})
    assert len(table(path, "train_loss")) == 10


@pytest.mark.parametrize("separators", [(", ", ": "), (",", ":"), (" , ", " : ")])
def test_many_records_in_any_spacing(write: Write, separators: tuple[str, str]) -> None:
    rows = [
        {"iteration": i, "train_loss": NAN if i == 7 else i / 8, "learning_rate": 1e-05}
        if i % 10
        else {"iteration": i, "val_loss": i / 4, "val_time": 1}
        for i in range(9000)
    ]
    path = write("".join(json.dumps(row, separators=separators) + "\n" for row in rows), "a.jsonl")
    same(table(path, "train_loss"), {i: NAN if i == 7 else i / 8 for i in range(9000) if i % 10})
    same(table(path, "val_loss"), {i: i / 4 for i in range(0, 9000, 10)})


def test_integers_of_any_size(write: Write) -> None:
    rows = [
        f'{{"iteration": {i}, "train_loss": 2.0, "trained_tokens": {10**400}}}' for i in (1, 2, 3)
    ]
    path = write("\n".join(rows) + "\n", "metrics.jsonl")
    same(table(path, "trained_tokens"), dict.fromkeys((1, 2, 3), float("inf")))


def test_broken_records_cost_only_themselves(write: Write) -> None:
    path = write(
        '{"iteration": 1, "train_loss": 3.0}\n{"iteration": 2, "train_lo}\n'
        '{"iteration": 3, "train_loss": 2.0}\n{"iteration": 4, "tra',
        "metrics.jsonl",
    )
    same(table(path, "train_loss"), {1: 3.0, 3: 2.0})


def test_epochs_as_axis(write: Write) -> None:
    path = write(
        '{"epoch": 1, "train_loss": 50.04, "val_loss": 3.49}\n'
        '{"epoch": 2, "train_loss": 40.04, "val_loss": 3.39}\n',
        "metrics.jsonl",
    )
    assert read(path).main.axis == "epoch"
    same(table(path, "val_loss"), {1: 3.49, 2: 3.39})


def test_trainer_state(write: Write) -> None:
    history = [
        {"epoch": 0.25, "grad_norm": 188.29, "learning_rate": 4.58e-05, "loss": 10.59, "step": 1},
        {"epoch": 0.5, "grad_norm": 88.1, "learning_rate": 4e-05, "loss": 8.59, "step": 2},
        {"eval_loss": 2.5, "eval_runtime": 3.0, "epoch": 0.5, "step": 2},
        {"train_loss": 9.1, "train_runtime": 10.0, "total_flos": 1.0, "epoch": 0.5, "step": 2},
    ]
    path = write(json.dumps({"global_step": 2, "log_history": history}, indent=1), "state.json")
    same(table(path, "train_loss"), {1: 10.59, 2: 8.59})
    same(table(path, "val_loss"), {2: 2.5})
    assert read(path).main.axis == "step"


def test_bare_history(write: Write) -> None:
    path = write('{"global_step":3,"train_loss_history":[3.0,2.0,1.0]}', "trainer_state.json")
    assert read(path).main.axis == "row"
    same(table(path, "train_loss"), {1: 3.0, 2: 2.0, 3: 1.0})


def test_closing_summary_is_no_report(write: Write) -> None:
    path = write(
        "{'loss': 2.5, 'grad_norm': 1.0, 'learning_rate': 1e-05, 'epoch': 0.5}\n"
        "{'eval_loss': 2.25, 'eval_runtime': 3.5, 'epoch': 0.5}\n"
        "{'train_runtime': 10.0, 'train_samples_per_second': 2.0, 'train_loss': 9.9}\n"
    )
    same(table(path, "train_loss"), {1: 2.5})
    same(table(path, "val_loss"), {1: 2.25})


def test_csv_of_several_runs(write: Write) -> None:
    path = write(
        '"Step","run-1 - train_loss","run-1 - train_loss__MIN","run-1 - train_loss__MAX",'
        '"run-2 - train_loss"\n10,2.5,2.4,2.6,3.1\n20,2.4,2.3,2.5,\n30,,,,NaN\n',
        "wandb.csv",
    )
    log = read(path)
    assert [one.name for one in log.segments] == ["run-1", "run-2"]
    same(table(path, "train_loss", 0), {10: 2.5, 20: 2.4})
    same(table(path, "train_loss", 1), {10: 3.1, 30: NAN})


def test_plain_csv(write: Write) -> None:
    path = write("iteration;loss;val_loss\n1;2.5;\n2;nan;2.75\n", "log.csv")
    same(table(path, "train_loss"), {1: 2.5, 2: NAN})
    same(table(path, "val_loss"), {2: 2.75})


def test_markdown_table_with_train_and_validation(write: Write) -> None:
    path = write(
        "# Results\n\n| Iter | Train loss | Val loss |\n|---:|---:|---:|\n"
        "| 10 | 2.5 | - |\n| 20 | **2.25** | 2.75 |\n\n| a | b |\n|---|---|\n| 1 | 2 |\n",
        "report.md",
    )
    same(table(path, "train_loss"), {10: 2.5, 20: 2.25})
    same(table(path, "val_loss"), {20: 2.75})
