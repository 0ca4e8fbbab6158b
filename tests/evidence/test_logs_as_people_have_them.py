"""Logs that were printed twice, emptied while they were written, or kept by others."""

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlxdoctor.api import diagnose
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.kind import Missing
from mlxdoctor.evidence.training_log import TrainingLog, looks_like_log
from mlxdoctor.judge.extent import remarked
from mlxdoctor.measure.logged_levels import logged_loss
from mlxdoctor.run import Run
from tests.checks.log_evidence import finding
from tests.evidence.log_tables import read_text as read


def line(at: int, loss: float) -> str:
    return (
        f"Iter {at}: Train loss {loss:.3f}, Learning Rate 1.000e-05, It/sec 1.0{at % 97:02d}, "
        f"Tokens/sec 88.083, Trained Tokens {86 * at}, Peak mem 6.093 GB"
    )


def val(at: int, loss: float) -> str:
    return f"Iter {at}: Val loss {loss:.3f}, Val took 60.201s"


LINES = ["Loading pretrained model", "Starting training..., iters: 300", val(1, 3.0)]
for at in range(10, 301, 10):
    LINES.append(line(at, 3 - at / 200))
    LINES.extend([val(at, 3 - at / 300)] if at % 100 == 0 else [])
TEXT = "\n".join(LINES) + "\n"


def is_whole(log: TrainingLog) -> None:
    (segment,) = log.segments
    assert segment.reports == 34
    for name in ("train_loss", "learning_rate", "iterations_per_second", "peak_memory_gb"):
        assert segment.series[name].iterations.tolist() == list(range(10, 301, 10)), name
    losses = [round(3 - at / 200, 3) for at in range(10, 301, 10)]
    np.testing.assert_allclose(segment.series["train_loss"].values, losses, atol=1e-9)
    assert segment.series["val_loss"].iterations.tolist() == [1, 100, 200, 300]
    assert segment.series["trained_tokens"].values.tolist()[-1] == 86 * 300


@pytest.mark.parametrize(
    "row",
    ['{{"step": {0:03d}, "loss": 2.{0:03d}}}', "step {0:03d} loss 2.{0:03d} lr 1.0e-05 abcdefgh"],
)
def test_lines_of_one_length_are_not_taken_for_broken_ones(row: str, tmp_path: Path) -> None:
    log = read(tmp_path / "a.log", "".join(row.format(at) + "\n" for at in range(101, 200)))
    assert len(log.main.series["train_loss"]) == 99


def test_an_empty_log_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("model: base\niters: 9\nlearning_rate: 1e-5\n")
    (tmp_path / "train.log").write_text("")
    run = Run.discover([tmp_path])
    why = r"^train\.log is empty, and no other training log was found; name it with --log$"
    with pytest.raises(Missing, match=why):
        run.need(TrainingLog)


def test_a_log_printed_twice_is_one_run(tmp_path: Path) -> None:
    tail = "\n".join(LINES[-8:]) + "\n"
    for more, repeats in (
        (TEXT, 34),
        (tail, 8),
        (json.dumps({"log_tail": LINES[-8:]}, indent=1), 8),
        (tail + tail, 16),
        (
            "".join(
                f'{{"iteration": {at}, "train_loss": {3 - at / 200 + 1e-4}}}\n' for at in (290, 300)
            ),
            2,
        ),
    ):
        log = read(tmp_path / "a.log", TEXT + more)
        is_whole(log)
        assert log.main.repeats == repeats
        assert log.sources[0].note == f"{repeats} reports printed a second time, counted once"


def test_a_log_that_goes_on_behind_what_it_printed_twice(tmp_path: Path) -> None:
    more = "\n".join([*LINES[:20], *LINES[15:20], *LINES[20:]])
    is_whole(read(tmp_path / "a.log", more))


def test_a_run_that_was_begun_again_is_another(tmp_path: Path) -> None:
    again = [line(at, 3.5 - at / 200) for at in (10, 20, 30)]
    log = read(tmp_path / "a.log", TEXT + "\n".join(again))
    assert [one.reports for one in log.segments] == [34, 3]
    remark = log.sources[0].note
    assert remark.startswith("judged 3 of 37 reports, those of lines 37 to 39; the others are of")
    # The same losses, at another speed: it was trained again.
    other = [line(at, 3 - at / 200).replace("It/sec 1", "It/sec 2") for at in (10, 20, 30)]
    assert len(read(tmp_path / "a.log", TEXT + "\n".join(other)).segments) == 2


def rows(order: Sequence[int]) -> str:
    cells = (f"{at},{3 - at / 20},{3 - at / 30 if at % 10 == 0 else ''}\n" for at in order)
    return "step,loss,val_loss\n" + "".join(cells)


@pytest.mark.parametrize(
    "table",
    [
        rows(range(30, 0, -1)),
        rows(random.Random(1).sample(range(1, 31), 30)),
        "step,loss,val_loss\n"
        + "".join(f"{at},{3 - at / 20},\n" for at in range(1, 31))
        + "".join(f"{at},,{3 - at / 30}\n" for at in (10, 20, 30)),
    ],
    ids=["backwards", "at random", "by kind"],
)
def test_rows_of_a_table_in_any_order(table: str, tmp_path: Path) -> None:
    log = read(tmp_path / "a.csv", table)
    (segment,) = log.segments
    assert segment.series["train_loss"].iterations.tolist() == list(range(1, 31))
    assert segment.series["train_loss"].values.tolist() == [3 - at / 20 for at in range(1, 31)]
    assert segment.series["val_loss"].iterations.tolist() == [10, 20, 30]


def test_a_table_of_a_run_that_was_begun_again(tmp_path: Path) -> None:
    text = rows(range(1, 31)) + "".join(f"{at},{2 - at / 20},\n" for at in range(1, 11))
    assert [one.reports for one in read(tmp_path / "a.csv", text).segments] == [30, 10]


def notebook(*outputs: dict[str, Any]) -> str:
    cells = [
        {"cell_type": "markdown", "source": ["# loss 9"]},
        {"cell_type": "code", "source": ["train()"], "outputs": list(outputs)},
    ]
    return json.dumps(
        {"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}, indent=1
    )


def printed(text: str | list[str]) -> dict[str, Any]:
    return {"output_type": "stream", "name": "stdout", "text": text}


def test_a_notebook(tmp_path: Path) -> None:
    picture = {"output_type": "display_data", "data": {"image/png": "A" * 300_000}}
    error = {
        "output_type": "error",
        "ename": "ValueError",
        "evalue": "no rows",
        "traceback": ["\x1b[31m----\x1b[0m", "ValueError: no rows"],
    }
    pieces = [
        printed([TEXT[:1000]]),
        printed(TEXT[1000:2000]),
        printed(TEXT[2000:].splitlines(True)),
    ]
    path = tmp_path / "train.ipynb"
    log = read(path, notebook(picture, *pieces, picture, error))
    is_whole(log)
    # The pieces that lie in one line of the file come before those with a line each.
    last = TEXT.splitlines()[-1]
    (place,) = (n for n, line in enumerate(path.read_text().splitlines(), 1) if last in line)
    assert log.main.last_line == place
    assert [one.text for one in log.notes.failures] == ["ValueError: no rows"]
    assert Run.discover([tmp_path]).files.logs == (path,)


@pytest.mark.parametrize(("is_later", "severity"), [(True, "info"), (False, "error")])
def test_an_error_of_a_later_cell_is_not_the_training_s(
    tmp_path: Path, is_later: bool, severity: str
) -> None:
    error = {"output_type": "error", "ename": "NameError", "evalue": "x", "traceback": []}
    document = json.loads(notebook(printed(TEXT)))
    later = {"cell_type": "code", "outputs": [error]}
    document["cells"] = [*document["cells"], later]
    if not is_later:
        document["cells"][-2]["outputs"].append(document["cells"].pop()["outputs"][0])
    path = tmp_path / "train.ipynb"
    path.write_text(json.dumps(document))
    (found,) = diagnose(path, select=["log-failures"]).findings
    assert (found.code, found.severity) == ("log-failures.traceback", severity)


def test_a_notebook_with_a_table_of_losses(tmp_path: Path) -> None:
    body = "".join(f"<tr>\n<td>{at}</td>\n<td>{3 - at / 20}</td></tr>" for at in (10, 20))
    table = f"<table border=1><tr style='x'><th>Step</th><th>Training Loss</th></tr>{body}</table>"
    shown = {"output_type": "display_data", "data": {"text/html": [table], "text/plain": "<HTML>"}}
    log = read(tmp_path / "a.ipynb", notebook(shown))
    assert log.main.series["train_loss"].values.tolist() == [2.5, 2.0]
    assert log.main.series["train_loss"].iterations.tolist() == [10, 20]
    # Jupyter stores a line of the file for each line; the rows are where they stand there.
    shown["data"] = {"text/html": table.splitlines(keepends=True)}
    text = json.dumps(json.loads(notebook(shown)), indent=1)
    main = read(tmp_path / "c.ipynb", text).main
    places = [
        n for n, line in enumerate(text.splitlines(), 1) if "<td>10<" in line or ">20<" in line
    ]
    assert [main.first_line, main.last_line] == places
    # One that trained nothing is no log.
    (tmp_path / "b.ipynb").write_text(notebook(printed("hello\n")))
    assert not looks_like_log(tmp_path / "b.ipynb")


def wandb(folder: Path, run: str, rate: float) -> Path:
    files = folder / "wandb" / run / "files"
    files.mkdir(parents=True)
    (files / "config.yaml").write_text(
        f"_wandb:\n    value:\n        cli_version: 0.19\nlearning_rate:\n    value: {rate}\n"
        "batch_size:\n    desc: null\n    value: 2\nnum_layers:\n    value: 8\n"
        "lora_parameters:\n    value:\n        rank: 8\n        scale: 10.0\n        dropout: 0.0\n"
    )
    summary = {"train_loss": 0.5, "val_loss": 0.75, "_step": 300, "_runtime": 9}
    (files / "wandb-summary.json").write_text(json.dumps(summary))
    (files.parent / f"{run}.wandb").write_bytes(b"\0\1\2:W&B" * 99)
    (files / "output.log").write_text(TEXT)
    return files


def test_a_wandb_folder_from_above(tmp_path: Path) -> None:
    wandb(tmp_path, "run-20250101_100000-zzz", 1e-3)
    files = wandb(tmp_path, "run-20250201_100000-aaa", 2e-5)
    for given in (tmp_path, tmp_path / "wandb", files.parent):
        run = Run.discover([given])
        config, log = run.get(TrainingConfig), run.get(TrainingLog)
        assert (config.learning_rate, config.batch_size, config.scale) == (2e-5, 2, 10.0)
        assert config.iters == 1000
        is_whole(log)
        assert log.sources[0].path == files / "output.log"
        assert not run.unreadable


def test_a_wandb_configuration_of_another_trainer_has_no_defaults(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("wandb_version: 1\nlearning_rate:\n  value: 1e-4\nepochs:\n  value: 3\n")
    config = TrainingConfig.read(path)
    assert config.learning_rate == 1e-4
    assert (config.iters, config.scale, config.batch_size) == (None, None, None)


@pytest.mark.parametrize(
    ("name", "content", "is_told"),
    [
        ("train.log", "@@1@@ L~nan G~nan\n" * 20, True),
        ("run7.txt", "".join(f">> t{at} << L = nan, g = nan\n" for at in range(9)), True),
        ("run7.txt", "hello\nthe loss was great\n", False),
        ("server.log", "GET / 200\n" * 20, False),
        ("train.jsonl", '{"text": "loss: nan"}\n' * 20, False),
        ("train.log", "", False),
    ],
)
def test_a_log_of_an_unknown_format_is_told_of(
    name: str, content: str, is_told: bool, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(content)
    (tmp_path / "adapter_config.json").write_text('{"fine_tune_type": "lora", "iters": 9}')
    said = [str(one) for one in Run.discover([tmp_path]).unreadable]
    assert [name in one and "looks like a training log" in one for one in said] == [True] * is_told


def test_lines_that_may_be_reports_and_are_not_read(tmp_path: Path) -> None:
    log = read(tmp_path / "a.log", TEXT + "aux loss: 2.5\n" * 2)
    assert "2 lines that may be reports could not be read, first line 37" in log.sources[0].note


def test_a_validation_behind_the_last_report_is_of_the_end(tmp_path: Path) -> None:
    lines = [f'{{"i": {i}, "train/loss": {4 - i / 10}}}\n' for i in (10, 20, 30)]
    log = read(tmp_path / "a.log", "".join(lines) + '{"i": 30, "val/loss": 0.9}\n')
    assert (log.main.axis, logged_loss(log).after) == ("step", 0.9)
    epochs = "epoch 1: train 1.8 valid 0.9\nepoch 2: train 0.8 valid 0.7\n"
    log = read(tmp_path / "b.log", epochs)
    assert (log.main.axis, logged_loss(log).after) == ("epoch", 0.7)


def test_a_log_that_two_processes_wrote_has_each_report_once(tmp_path: Path) -> None:
    record = '{{"current_steps": {}, "loss": {}, "epoch": {}}}\n'.format
    first = [record(step, 3 - step / 100, step / 50) for step in range(10, 210, 10)]
    second = [record(step, 3.001 - step / 100, step / 50) for step in range(10, 190, 10)]
    pairs = zip(first, ["", "", *second], strict=True)
    log = read(tmp_path / "a.jsonl", "".join(line for pair in pairs for line in pair))
    assert log.main.series["train_loss"].iterations.tolist() == list(range(10, 210, 10))
    assert "18 reports printed a second time, counted once" in log.sources[0].note


def test_a_fine_tuning_that_is_started_again_is_another_run(tmp_path: Path) -> None:
    def run(losses: Sequence[float]) -> list[str]:
        epochs = [
            f"12:00:{number:02d} - app - INFO - Epoch {number} validation loss: {loss}"
            for number, loss in enumerate(losses, 1)
        ]
        first = f"12:00:00 - app - INFO - Initial validation loss: {losses[0] + 0.1}"
        return ["12:00:00 - app - INFO - Starting finetuning process", first, *epochs]

    lines = [*run([2.5, 2.4, 2.3]), *run([2.4, 2.2, 2.0, 1.9])]
    first, second = read(tmp_path / "a.log", "\n".join(lines)).segments
    assert first.series["val_loss"].values.tolist() == [2.6, 2.5, 2.4, 2.3]
    assert second.series["val_loss"].values.tolist() == [2.5, 2.4, 2.2, 2.0, 1.9]


@pytest.mark.parametrize(
    "line", ["$ cp train.jsonl valid.jsonl", "Created validation set (copied from train)"]
)
def test_validation_rows_that_are_copied_show_nothing(line: str, tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text(f"{line}\n{TEXT}")
    report = diagnose(tmp_path / "train.log")
    assert "log-failures.validation-copied" in {one.code for one in report.findings}
    assert report.verdict.value == "suspect"
    assert not any(seen.learned for seen in report.seen)


def test_a_log_that_has_but_a_summary(tmp_path: Path) -> None:
    text = "Num examples = 2 | Total steps = 3\ntrainable params: 1 || all params: 9\n"
    text += "{'train_runtime': 23.7, 'train_loss': 3.168, 'epoch': 3}\n"
    (tmp_path / "train.log").write_text(text)
    said = [seen.message for seen in diagnose(tmp_path / "train.log").seen]
    assert said == [
        "Of the loss only a mean over the run could be read, 3.168.",
        "The log says of the run: 2 rows to train on; 24 seconds of training; 1e-06 M trained "
        "parameters; its end, with a summary.",
    ]


def test_a_history_beside_settings_is_a_log(tmp_path: Path) -> None:
    records = [{"step": at, "loss": 2.0 / at, "val_loss": None} for at in (2, 4, 6)]
    stated = {"base_model": "a/b", "learning_rate": 1e-4, "lora_rank": 8, "max_steps": 9}
    (tmp_path / "summary.json").write_text(json.dumps({**stated, "course": records}))
    report = diagnose(tmp_path / "summary.json")
    assert [one.kind for one in report.evidence] == ["training log"]
    assert "log-failures.ends-early" in {one.code for one in report.findings}


def test_a_crash_that_is_noted_beside_a_report(tmp_path: Path) -> None:
    text = "Iter 10: Train loss 1.4\nIter 20: Train loss 0.7   <-- crashed (OOM, two jobs)\n"
    (tmp_path / "train.log").write_text(text)
    report = diagnose(tmp_path / "train.log")
    assert "log-failures.out-of-memory" in {one.code for one in report.findings}
    assert "training loss fell from 1.400 at iteration 10 to 0.700" in report.seen[0].message


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("zsh: line 3: 812 Terminated: 15  python train.py", "interrupted"),
        ("FileNotFoundError: [WinError 2] The system cannot find the file", "setting-refused"),
        ("ImportError: flash_attn.so: undefined symbol: _ZN3c105Error", "environment-lacking"),
    ],
)
def test_what_ended_a_run_in_the_systems_words(line: str, code: str, tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text(f"Iter 10: Train loss 1.4\n{line}\n")
    assert finding(diagnose(tmp_path / "train.log"), code).code == f"log-failures.{code}"


def test_an_epoch_that_is_named_at_the_end_says_nothing_of_the_beginning(tmp_path: Path) -> None:
    rows = [f"loss: {2.8 - at / 10:.3f} grad_norm: 1.0" for at in range(12)]
    text = "\n".join([*rows, "{'eval_loss': 1.3, 'epoch': 3.0}"])
    assert read(tmp_path / "a.log", text).main.shows_start


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        (["--- Epoch 1/3 ---"], "1 start (line 1)"),
        (["开始训练...", "开始训练..."], "2 starts (lines 1, 2)"),
        (["Starting finetuning", "Finetuning done!"], "1 start (line 1); its end (line 2)"),
    ],
)
def test_a_training_without_a_loss_is_told_of(lines: list[str], told: str, tmp_path: Path) -> None:
    (tmp_path / "run.log").write_text("\n".join(lines))
    report = diagnose(tmp_path / "run.log")
    says = f"No loss could be read in the log. It speaks of {told}."
    assert says in [seen.message for seen in report.seen]


def test_rewards_alone_are_reports(tmp_path: Path) -> None:
    rows = [f"[trainer] Step {at}/100  reward={0.4 + at / 300:.4f}" for at in range(10, 110, 10)]
    rows.append("api.SignalException: Process 519 got signal: 2")
    (tmp_path / "a.txt").write_text("\n".join(rows))
    report = diagnose(tmp_path / "a.txt")
    assert [one.code for one in report.findings] == ["log-failures.interrupted"]
    assert any("mean reward went from" in seen.message for seen in report.seen)


def test_scores_of_steps_are_a_log_without_a_loss(tmp_path: Path) -> None:
    rows = [json.dumps({"round": at, "n": 200, "asr": 0.4 - 0.1 * at}) for at in range(4)]
    (tmp_path / "rounds.jsonl").write_text("\n".join(rows))
    (seen,) = diagnose(tmp_path / "rounds.jsonl").seen
    assert seen.message == (
        "The log has no loss; its 4 reports have asr from 0.4 to 0.1; n 200 throughout."
    )


def test_a_save_is_heard_of_after_the_last_report(tmp_path: Path) -> None:
    lines = ["Starting training..., iters: 600", "Iter 200: Train loss 1.4, It/sec 1.0"]
    lines.append("Iter 500: Saved adapter weights to a.safetensors and 0000500_a.safetensors.")
    (tmp_path / "train.log").write_text("\n".join(lines))
    early = finding(diagnose(tmp_path / "train.log"), "ends-early")
    assert early.measured["reached"] == 500


def test_validations_that_nothing_counts_lie_among_the_reports(tmp_path: Path) -> None:
    lists = {"train_losses": [2.0, 1.5, 1.0, 0.8, 0.6, 0.5], "eval_losses": [1.8, 1.4, 1.5]}
    (tmp_path / "metrics.json").write_text(json.dumps({**lists, "hyperparameters": {"lr": 1e-4}}))
    log = TrainingLog.read([tmp_path / "metrics.json"])
    assert log.main.finite("val_loss").iterations.tolist() == [2, 4, 6]
    assert [one.kind for one in diagnose(tmp_path / "metrics.json").evidence] == ["training log"]


def test_a_table_of_variants_is_no_course(tmp_path: Path) -> None:
    rows = ["| preset | val_loss |", "|---|---|", "| small | 0.66 |", "| base | 0.72 |"]
    log = read(tmp_path / "a.md", "\n".join(rows))
    assert log.main.get("val_loss") is None


def test_a_notebook_says_which_trainer_it_makes(tmp_path: Path) -> None:
    table = "<tr><th>Step</th><th>Training Loss</th></tr>" + "".join(
        f"<tr><td>{at}</td><td>0.000000</td></tr>" for at in range(2, 22, 2)
    )
    cell = {"source": ["trainer = GRPOTrainer(model)"], "outputs": [{"data": {"text/html": table}}]}
    (tmp_path / "a.ipynb").write_text(json.dumps({"cells": [cell]}))
    report = diagnose(tmp_path / "a.ipynb")
    assert [one.code for one in report.findings] == []
    said = [seen.message for seen in report.seen]
    assert any("The log has no reward" in sentence for sentence in said)
    assert not any("its end" in sentence for sentence in said)


def test_a_log_in_chinese(tmp_path: Path) -> None:
    text = "".join(
        f"当前Batch：{at}/100 | 当前epoch:0/1 | 当前损失值：{3 - at / 50} | 当前准确率：{at}.00%\n"
        for at in range(10, 101, 10)
    )
    (segment,) = read(tmp_path / "train.log", text).segments
    assert segment.series["train_loss"].values[-1] == 1.0
    assert segment.series["accuracy"].values[-1] == 100.0


def test_a_log_with_a_broken_byte(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    russian = "".join(
        f"шаг {at}: потери: {3 - at / 50} валидация завершена\n" for at in range(10, 101, 10)
    )
    path.write_bytes(russian.encode() + b"sample: \xd0\n")
    assert TrainingLog.read([path]).main.reports == 10


#: Losses within a document, and scores of some steps beside columns of all.
NESTED = {"lr": 1, "loss_history": {"iters": [0, 250], "train": [4.3, 2.4], "val": [2.5, 2.0]}}
OF_SOME = {"step": [1, 2, 3], "loss": [3.0, 2.9, 2.8], "dev_chrf": {"1": 2.5, "3": 2.0}}
PART = "\n".join(
    json.dumps({"eval_loss": 3 - at / 1e3, "step": at}, indent=2) for at in (500, 1000)
)


@pytest.mark.parametrize(
    ("name", "text", "column"),
    [
        # A trainer's summary is no report; columns of one that each row has are none.
        ("a.csv", "loss,step,total_flos,train_loss\n2.5,1,,\n2.0,2,,\n,2,1e9,9.5\n", "train_loss"),
        ("a.csv", "loss,step,total_flos\n2.5,1,nan\n2.0,2,nan\n", "train_loss"),
        ("a.csv", "loss,step,train_samples_per_second\n2.5,1,9.5\n2.0,2,9.5\n", "train_loss"),
        # A loss beside its perplexity is the validation's; near to each other they are two.
        (
            "a.md",
            "| Step | 验证集 PPL | NLL |\n|--|--|--|\n|0|12.182|2.5|\n|25|7.389|2.0|\n",
            "val_loss",
        ),
        (
            "a.md",
            "| Step | Val PPL | Loss |\n|--|--|--|\n|0|12.55|2.5|\n|25|7.61|2.0|\n",
            "train_loss",
        ),
        ("a.txt", PART, "val_loss"),
        ("a.json", json.dumps(NESTED), "val_loss"),
        ("a.json", json.dumps(OF_SOME), "dev_chrf"),
    ],
)
def test_what_a_column_holds(name: str, text: str, column: str, tmp_path: Path) -> None:
    assert read(tmp_path / name, text).main.series[column].values.tolist() == [2.5, 2.0]


@pytest.mark.parametrize(
    ("lines", "millions"),
    [
        # Of the model that the first is held against; and a share is no count.
        (
            ["Reference model parameters to be updated:", "trainable model parameters: 0"],
            124.440577,
        ),
        (["percentage of trainable model parameters: 0.00%"], 124.440577),
        # Of the same once more.
        (["trainable model parameters: 0"], 0.0),
    ],
)
def test_parameters_of_a_second_model(lines: list[str], millions: float, tmp_path: Path) -> None:
    first = ["trainable model parameters: 124440577", "all model parameters: 124440577"]
    log = read(tmp_path / "a.log", "\n".join([*first, *lines, *LINES]))
    assert log.notes.trainable is not None
    assert log.notes.trainable.trainable_millions == pytest.approx(millions)


@pytest.mark.parametrize(
    ("line", "warnings", "starts"),
    [
        ("# which model layers are CRITICAL for venvy commands", 0, 1),
        ("2024-05-05 | WARNING | the template has no end token", 1, 1),
        ("WARNING the template has no end token", 1, 1),
        ("[12:00:01] WARNING  The tokenizer has no pad token set", 1, 1),
        ("2024-05-05 12:00:01,123 ERROR Failed to save the checkpoint", 1, 1),
        ("UserWarning: KL divergence is starting to become negative: a failed training", 0, 1),
    ],
)
def test_words_that_are_no_levels_and_no_starts(
    line: str, warnings: int, starts: int, tmp_path: Path
) -> None:
    notes = read(tmp_path / "a.log", f"{TEXT}{line}\n").notes
    assert (len(notes.warnings), len(notes.run_marks)) == (warnings, starts)


def test_what_is_skipped_is_quoted_behind_a_bar(tmp_path: Path) -> None:
    bar = " 14%|█▍        | 380/2724 [14:02:33<86:01:24, 132.12s/it][2023-06-07 22:20:23,340] "
    line = f"{bar}[INFO] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 64, reducing to 32"
    (seen,) = remarked(read(tmp_path / "a.log", f"{TEXT}{line}\n"))
    assert "OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 64" in str(seen.measured["text"])


def test_rewards_without_a_step_and_losses_with_a_letter(tmp_path: Path) -> None:
    rewards = (f"time: 7.1s  rewards: tensor([{n}., -1., -1., {n}.])" for n in (-1, 1, 1))
    policy = read(tmp_path / "a.log", "\n".join(rewards)).main
    assert policy.series["rewards"].values.tolist() == [-1.0, 0.0, 0.0]
    row = '{{"train_closs": {}, "epoch": {}, "val_closs": {}}}'
    rows = (row.format(2.5 - n, n, 2.0 - n) for n in range(2))
    closs = read(tmp_path / "b.log", "\n".join(rows)).main
    assert closs.series["train_loss"].values.tolist() == [2.5, 1.5]
    assert closs.series["val_loss"].values.tolist() == [2.0, 1.0]


@pytest.mark.parametrize(
    ("machines", "losses"),
    # Of one machine losses may meet.
    [(3, [2.5, 1.5, 1.25, 1.0]), (1, [2.5, 1.5, 1.5, 1.25]), (1, [2.5, 2.5, 2.25, 2.25, 2.0])],
)
def test_each_report_once_of_several_machines(
    machines: int, losses: list[float], tmp_path: Path
) -> None:
    lines = [
        f"10.0.0.{node}: {{'loss': {loss}, 'learning_rate': 5e-05, 'epoch': 0.0}}"
        for loss in losses
        for node in range(machines)
    ]
    log = read(tmp_path / "a.log", "\n".join(lines))
    assert log.main.series["train_loss"].values.tolist() == losses


def test_a_dictionary_behind_the_line_of_a_source(tmp_path: Path) -> None:
    line = "[INFO|2026-03-23 13:37:53] logging.py:144 >> {{'loss': {}, 'epoch': 0.0{}}}"
    log = read(tmp_path / "a.log", "\n".join(line.format(2.5 - n / 4, n) for n in (1, 2, 3)))
    assert log.main.axis == "row"
    assert log.main.series["epoch"].values.tolist() == [0.01, 0.02, 0.03]
