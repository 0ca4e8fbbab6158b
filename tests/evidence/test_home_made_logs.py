"""Logs of trainers that nobody else has: every row read, with the right values."""

from pathlib import Path

import numpy as np
import pytest

from mlxdoctor.evidence.training_log import Segment
from tests.evidence.log_tables import read_text as read

LOSSES = ("2.5000", "2.2500", "nan", "inf", "1.5000", "1.2500")
#: (epoch, step in the epoch) of six reports in two epochs of three.
PLACES = tuple((epoch, step) for epoch in (1, 2) for step in (1, 2, 3))


def same(found: Segment, name: str, iterations: list[int], values: list[float]) -> None:
    series = found.series[name]
    assert series.iterations.tolist() == iterations
    np.testing.assert_array_equal(series.values, values)


#: Name -> a line of it, from the count of all reports, the epoch, the step in it, and the loss.
COUNTED = {
    "step | loss | s/it": "Step {n} | loss {loss} | 19.2 s/it",
    "Time = 1s": "Step {n}: Loss = {loss}, Grad Norm = 0.0, Time = 19.2s",
    "epoch and batch": "Epoch {e}/2 Batch {s}/3 Loss: {loss} Grad norm: 0.5 LR: 1.46e-06",
    "brackets": "[{n}/100] loss={loss} lr=1e-04 gnorm=0.5",
    "E01|S0001": "[E{e:02d}|S{s:04d}] loss={loss} ppl=12.1",
    "PyTorch tutorial": "Epoch [{e}/2], Step [{s}/3], Loss: {loss}",
    "two fractions": "[{e}/2] {n}/100 loss {loss} gnorm 1.26 lr 1.0e-03",
    "ImageNet": "Epoch: [{e}][{s}/3]\tTime 0.5 (0.6)\tLoss {loss} (2.5)",
    "logging": "2026-01-02 10:11:1{n},123 - trainer - INFO - Step {n} - loss: {loss} - lr: 1e-05",
    "file and line": "[2026-01-02 10:11:12][INFO][train.py:45] step={n} loss={loss} lr=1e-05",
    "loguru": "2026-01-02 10:11:12.123 | INFO     | __main__:train:45 - step {n}/100 | loss {loss}",
    "glog": "I0102 10:11:12.123456 12345 train.py:45] step: {n}, loss: {loss}",
    "emojis": "🔥 Step {n}/100 | 📉 loss: {loss} | ⚡ 19.2 it/s | 🧠 8.5 GB",
    "array": "Iteration {n}: loss = array({loss}, dtype=float32)",
    "dictionary of arrays": "step {n}: {{'loss': array({loss}, dtype=float32)}}",
    "of": "Iter {n} of 100: loss {loss}",
    "German": "Schritt {n} | Verlust {loss} | Lernrate 0.00025",
    "French": "Étape {n}/100 : perte {loss}, taux d'apprentissage 1e-05",
    "Spanish": "Paso {n}: pérdida = {loss}",
    "hash": "#{n} loss={loss}",
    "cells": "  {n} | weighted loss {loss} |   4.1s",
    "logfmt": "ts=2026-01-02T10:11:12Z level=info epoch={e} grad_norm=0.5 loss={loss} step={n}",
    "JSON behind a prefix": 'INFO:root:{{"step": {n}, "loss": "{loss}"}}',
    "arrow": "step {n} -> loss {loss} (lr=1e-05, 302 tok/s, mem 9500MB)",
    "update :: ce": "update {n} :: ce={loss} :: |g|=0.5",
    "fairseq": "2026-01-02 10:11:12 | INFO | epoch 00{e}:    {n} / 100 loss={loss}, ppl=5.6",
    "norm and dt": "step   {n} | loss: {loss} | norm: 1.52 | dt: 338.1ms | tok/sec: 155000.0",
    "average behind the loss": "iter={n} avg_loss=9.0 loss={loss}",
    "postfix": "Training: {n}%|█▌  | {n}/100 [00:01<00:09, 10.0it/s, loss={loss}, lr=1.0e-04]",
    "postfix dictionary": "{n}%|█ | {n}/100 [00:01<00:09, 1s/it, {{'loss': {loss}, 'lr': 1e-05}}]",
    "a bar an epoch": "Epoch {e}/2: {s}%|█| {s}/3 [00:01<00:09, loss={loss}]",
    "loss before the bar": "Epoch {e} loss {loss}:  {s}%|█▌  | {s}/3 [00:01<00:09, 10.0it/s]",
    "step before the bar": "Epoch {e}, Step {s}, Loss: {loss}:   1%|▏  | {n}/144 [00:02<02:20]",
}


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("name", COUNTED)
def test_every_counted_row_is_read(name: str, end: str, tmp_path: Path) -> None:
    lines = [
        COUNTED[name].format(n=n, e=e, s=s, loss=loss)
        for n, ((e, s), loss) in enumerate(zip(PLACES, LOSSES, strict=True), 1)
    ]
    log = read(tmp_path / "a.log", end.join(lines) + end)
    (segment,) = log.segments
    same(segment, "train_loss", [1, 2, 3, 4, 5, 6], [float(one) for one in LOSSES])
    assert segment.axis in ("step", "iteration")
    assert not log.sources[0].note


#: Name -> a report on an epoch, with its training and its validation loss.
BY_EPOCH = {
    "complete": "Epoch {e} complete. Average loss: {loss}\nVal loss: {val}",
    "emojis": "✅ Epoch {e} done — avg loss {loss} · val_loss {val}",
    "Keras": "Epoch {e}/3 - 12s - loss: {loss} - val_loss: {val}",
    "lines": "Epoch {e}\n-------\n  train loss: {loss}\n  val loss: {val}",
    "headed": "--- Epoch {e}/3 ---\nTrain Loss: {loss}\nValid Loss: {val}",
    "ended": "Epoch {e} ended | train_loss={loss} | val_loss={val} | took 12s",
    "after": "After epoch {e}: loss is {loss}, validation loss is {val}",
    "of the split": "Epoch {e} | train | loss {loss}\nEpoch {e} | validation | loss {val}",
}


@pytest.mark.parametrize("name", BY_EPOCH)
def test_reports_on_epochs(name: str, tmp_path: Path) -> None:
    losses = {1: 2.5, 2: 2.25, 3: 2.0}
    text = "\n".join(BY_EPOCH[name].format(e=e, loss=x, val=x + 1) for e, x in losses.items())
    segment = read(tmp_path / "a.log", text + "\n").main
    same(segment, "train_loss", [1, 2, 3], [2.5, 2.25, 2.0])
    same(segment, "val_loss", [1, 2, 3], [3.5, 3.25, 3.0])
    assert segment.axis == "epoch"


def test_names_with_their_values_between_bars_are_no_head_of_a_table(tmp_path: Path) -> None:
    lines = [f"| epoch {e} | valid on 'valid' | valid loss {4 - e}.25 | ppl 9.0" for e in (1, 2)]
    segment = read(tmp_path / "a.log", "\n".join(lines)).main
    same(segment, "val_loss", [1, 2], [3.25, 2.25])


VALIDATIONS = {
    "of its own": "[eval] step {0} loss {1}\n",
    "the split behind the step": "Step {0} | val | loss {1} | ppl 20.1\n",
    "without a step": "  >> Validation loss: {1}\n",
    "in a word": "val_loss={1}\n",
    "the average of the evaluation": "Evaluation @ step {0}: avg loss = {1}\n",
}


@pytest.mark.parametrize("name", VALIDATIONS)
def test_a_line_on_validation_is_none_on_training(name: str, tmp_path: Path) -> None:
    text = "".join(
        f"Step {step} | loss {step / 8}\n"
        + (VALIDATIONS[name].format(step, step / 4) if step % 20 == 0 else "")
        for step in (10, 20, 30, 40)
    )
    segment = read(tmp_path / "a.log", text).main
    same(segment, "train_loss", [10, 20, 30, 40], [1.25, 2.5, 3.75, 5.0])
    same(segment, "val_loss", [20, 40], [5.0, 10.0])


TABLES = {
    "rich": (
        "┏━━━━━━┳━━━━━━━━┳━━━━━━━━┓\n┃ Step ┃ Loss   ┃ LR     ┃\n┡━━━━━━╇━━━━━━━━╇━━━━━━━━┩\n",
        "│ {0}   │ {1:.4f} │ 1e-05  │\n",
    ),
    "rounded": (
        "╭──────┬────────╮\n│ Step │ Loss   │\n├──────┼────────┤\n",
        "│ {0}   │ {1:.4f} │\n",
    ),
    "ASCII": ("+------+------+\n| step | loss |\n+------+------+\n", "| {0}   | {1:.4f} |\n"),
    "blanks": ("  step    loss      lr\n", "  {0:4d}  {1:.4f}  1e-05\n"),
    "data frame": ("   step    loss      lr\n", "0  {0:4d}  {1:.4f}  1e-05\n"),
    "blanks in it": ("  step  loss  val_loss \\\n", "0  {0}  {1}  NaN\n1  {0}  NaN  0.5\n"),
    "tabs": ("Step\tTraining Loss\n", "{0}\t{1}\n"),
}


@pytest.mark.parametrize("name", TABLES)
def test_tables(name: str, tmp_path: Path) -> None:
    head, row = TABLES[name]
    text = head + "".join(row.format(step, step / 8) for step in (10, 20, 30))
    same(read(tmp_path / "a.log", text).main, "train_loss", [10, 20, 30], [1.25, 2.5, 3.75])


@pytest.mark.parametrize("line", ["train 1.{e} valid 0.{e} *", "train: 1.{e}, validation: 0.{e}"])
def test_losses_may_be_named_by_their_rows(line: str, tmp_path: Path) -> None:
    steps = [f"step {n} loss {5 / n:.4f}" for n in range(1, 5)]
    ends = [f"epoch {e}: {line.format(e=e)}" for e in (1, 2)]
    text = "\n".join(("train 100 valid 20", *steps[:2], ends[0], *steps[2:], ends[1]))
    (segment,) = read(tmp_path / "train.log", text).segments
    same(segment, "val_loss", [2, 4], [0.1, 0.2])
    same(segment, "epoch_train_loss", [2, 4], [1.1, 1.2])


def test_a_second_trainer_that_counts_no_steps(tmp_path: Path) -> None:
    """Fine-tuning with steps, then rewards in dictionaries without."""
    first = "".join(f"step {at}/60 loss={3 - at / 30}\n" for at in range(10, 61, 10))
    second = [f"{{'loss': {at / 10}, 'reward': 0.0, 'epoch': {at / 10}}}" for at in range(1, 6)]
    log = read(tmp_path / "a.log", first + "\n".join(second))
    assert [run.axis for run in log.segments] == ["step", "row"]
    same(log.main, "train_loss", [1, 2, 3, 4, 5], [0.1, 0.2, 0.3, 0.4, 0.5])
    # A few lines behind the last step are of the same run.
    (run,) = read(tmp_path / "a.log", first + "\n".join(second[:2])).segments
    assert run.axis == "step"


def test_steps_that_each_epoch_counts_anew_go_on(tmp_path: Path) -> None:
    text = "".join(
        f"Epoch {epoch}/2\n"
        + "".join(f"  Batch {at}/30, Loss: {at / epoch}\n" for at in (10, 20, 30))
        for epoch in (1, 2)
    )
    (segment,) = read(tmp_path / "a.log", text).segments
    same(segment, "train_loss", [10, 20, 30, 40, 50, 60], [10, 20, 30, 5, 10, 15])
    same_losses = "".join(
        f"Epoch {epoch}, Step {at}, Loss: {1 + at}\n" for epoch in (1, 2, 3) for at in (0, 1)
    )
    (segment,) = read(tmp_path / "a.log", same_losses).segments
    same(segment, "train_loss", [0, 1, 2, 3, 4, 5], [1, 2, 1, 2, 1, 2])


@pytest.mark.parametrize(
    ("line", "share"),
    [
        ("Trainable parameters: 0.1% (5.2M/3212.750M)", (0.1, 5.2, 3212.75)),
        ("trainable params: 4,000,000 || all params: 8,000,000 || trainable%: 50.0", (50, 4, 8)),
        ("Trainable parameters: 3,000,000\nFrozen parameters: 9,000,000", (25, 3, 12)),
        ("Total params: 1.2B\nTrainable params: 12 million", (1, 12, 1200)),
        ("trainable parameters: 590688", (0, 0.590688, None)),
    ],
)
def test_counts_of_parameters(line: str, share: tuple[float | None, ...], tmp_path: Path) -> None:
    log = read(tmp_path / "a.log", f"{line}\nStep 1 | loss 2.5\n")
    found = log.notes.trainable
    counts = (found.percent, found.trainable_millions, found.total_millions)
    assert counts == pytest.approx(share)


@pytest.mark.parametrize(
    "line",
    [
        "% mlx_lm.lora --train --model mlx-community/Llama-3.2-3B --iters 9",
        "Loading model mlx-community/Llama-3.2-3B",
        "Namespace(model='mlx-community/Llama-3.2-3B', train=True)",
        "base_model: mlx-community/Llama-3.2-3B",
        'models=["mlx-community/Llama-3.2-3B"]',
    ],
)
def test_the_model_that_a_log_names(line: str, tmp_path: Path) -> None:
    log = read(tmp_path / "a.log", f"{line}\nStep 1 | loss 2.5\n")
    assert log.notes.header["model"] == "mlx-community/Llama-3.2-3B"


def test_a_name_of_a_thousand_words(tmp_path: Path) -> None:
    words = "part_" * 1000
    lines = [f"{words} at step {step}: 7 | loss {2 + step / 10}\n" for step in (1, 2, 3)]
    (segment,) = read(tmp_path / "a.log", "".join(lines)).segments
    assert segment.reports == 3


@pytest.mark.parametrize(("told", "seconds"), [("1.341e+04", 13410.0), ("9.5", 9.5)])
def test_how_long_a_training_took(told: str, seconds: float, tmp_path: Path) -> None:
    text = f"step 1 loss=2.5\nstep 2 loss=2.0\n{{'train_runtime': '{told}', 'train_loss': '2.2'}}\n"
    assert float(read(tmp_path / "a.log", text).notes.header["runtime"]) == seconds
