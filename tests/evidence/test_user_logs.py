"""Logs that users showed: no row lost, none invented."""

import re

import pytest

from fixtures.lab.cases import logged
from mlxdoctor.evidence.training_log import looks_like_log
from tests.conftest import LOGS
from tests.evidence.log_tables import read, same, table

#: Counted by hand in the raw text: the series of a file, from which iteration and by how many, and
#: its values; of a layout one or two files. Where one names no iteration, its reports are numbered
#: from 1.
USER_LOGS = """
CONTROL-mlx-lm-330-llama3.2-3b-wikisql-cuda
  val_loss from 1 by 1: 2.936
  val_seconds from 1 by 1: 5.265
  train_loss from 10 by 10: 2.662 2.101 1.781 1.505 1.585
  peak_memory_gb from 10 by 10: 9.707 10.588 10.588 10.588 10.588
  tokens_per_second from 10 by 10: 161.374 4560.749 7514.985 8056.378 7889.451
CONTROL-torch-transformers-35438-ga1
  train_loss from 1 by 1: 10.5949 8.2312 7.8988 8.0197 6.0704
  epoch from 1 by 1: 0.25 0.5 0.75 1 1.25
CONTROL-unsloth-6462-cuda-vs-mlx-parity
  train_loss from 1 by 1: 4.0985 3.907 3.306 1.8891 1.1846 0.8041 0.578 0.6714 0.5859
  grad_norm from 1 by 1: 91.4525 91.9407 77.0045 52.4635 25.1157 9.2907 6.559 6.1685 6.7463
mlx-examples-1210-orpo
  val_loss from 1 by 1: 3.107
  val_chosen_reward from 1 by 1: 2
  train_loss from 1 by 1: 2.197 8.681
  rejected_reward from 1 by 1: 0 * 2
  trained_tokens from 1 by 1: 541 1115
mlx-lm-18-a-0.22.0-suspiciously-fast
  train_loss from 5 by 5: 2.787 1.547 0.386 0.204
  peak_memory_gb from 5 by 5: 56.494 59.975 64.93 64.93
mlx-lm-326-grad-debug
  train_loss from 70 by 1: 2.786
  micro_loss from 67 by 1: 3.2387 2.4802 3.0505 2.479 2.7807 1.821 3.1738
  grad_norm from 67 by 1: 12.53 18.08 13.28 10.32 11.32 9.721 13.05
  micro from 67 by 1: 7 8 9 10 1 2 3
  toks from 67 by 1: 108 98 94 104 108 103 96
mlx-lm-6-dpo-orpo
  val_loss from 1 by 49: 0.055 0.052
  val_margin from 1 by 49: 0.028 0.036
  train_loss from 10 by 10: 0.061 0.058 0.072 0.057 0.045
  accuracy from 10 by 10: 0.6 0.8 0.5 0.7 0.8
  chosen_reward from 10 by 10: -0.206 -0.176 -0.219 -0.168 -0.169
mlx-vlm-499-full-ft-noisy
  train_loss from 18 by 1: 10.059 11.859 8.931 9.934 8.676 5.783 9.449 9.022 8.933 8.3
mlx-vlm-795-orpo
  train_loss from 36 by 1: 4.04 3.989 3.939 3.89 3.842 3.795 3.749 3.704 3.66 3.617 3.575
  learning_rate from 36 by 1: 2e-08 * 11
torch-LlamaFactory-7443-GA-table
  initial_loss from 1 by 1: 6.4 13.65 138 69
  100_step_loss from 1 by 1: 1.8 3.6 33.13 16.5
  gradient_acc from 1 by 1: 2 4 32 16
torch-MiniCPM-V-212-loss0-gradnan
  train_loss from 1 by 1: 1.0778 0 0 0 0 0 0
  grad_norm from 1 by 1: nan * 7
torch-gemma_pytorch-24-intermittent-nan
  train_loss from 1 by 1: 5.6332 5.3049 153318.95 5.7517 5.6231 nan 5.0968 nan 5.8938 6.1305
  learning_rate from 1 by 1: 0.0002 * 10
  grad_norm from 3 by 1: nan
torch-unsloth-255-plain
  train_loss from 1 by 1: 10.5604 10.2933 9.7562 9.3644 9.1276
"""
_ROW = re.compile(r"  (\S+) from (\d+) by (\d+): ([^:]+?)(?=\n  \S|\Z)")
TABLES = dict(re.findall(r"^(\S+)\n((?:  .+\n)+)", USER_LOGS, re.MULTILINE))


@pytest.mark.parametrize("name", TABLES)
def test_user_log_is_read_row_by_row(name: str) -> None:
    path = LOGS / f"{name}.log"
    assert looks_like_log(path)
    rows = _ROW.findall(TABLES[name].rstrip())
    assert len(rows) == TABLES[name].count(":")
    for series, first, every, text in rows:
        figures, _, times = text.partition(" * ")
        values = [float(figure) for figure in figures.split() * int(times or 1)]
        same(table(path, series), {int(first) + int(every) * i: x for i, x in enumerate(values)})


def test_every_user_log_has_an_expected_table_or_verdict() -> None:
    judged = {log.own.stem for log in logged.LOGS}
    assert {path.stem for path in LOGS.glob("*.log")} - judged == TABLES.keys() - judged


def test_parity_table_keeps_its_three_runs_apart() -> None:
    log = read(LOGS / "CONTROL-unsloth-6462-cuda-vs-mlx-parity.log")
    assert [one.name for one in log.segments] == ["CUDA main", "CUDA branch", "MLX branch"]
    assert log.segments[0].series["train_loss"].values[0] == 4.1118
    assert {one.axis for one in log.segments} == {"step"}


def test_table_without_iterations_invents_none() -> None:
    log = read(LOGS / "torch-LlamaFactory-7443-GA-table.log")
    assert log.main.axis == "row"
    assert log.main.get("train_loss") is None


def test_messages_around_the_reports() -> None:
    oom = read(LOGS / "mlx-lm-236-oom-full-ft.log")
    assert [(one.line_number, one.kind) for one in oom.notes.failures] == [
        (7, "out-of-memory"),
        (8, "aborted"),
    ]
    path = LOGS / "mlx-lm-18-a-0.22.0-suspiciously-fast.log"
    same(table(path, "val_loss"), {1: 3.174, 5: 2.363, 10: 1.009, 15: 0.211, 20: 0.167})
    fast = read(path)
    assert [one.iteration for one in fast.notes.saves] == [5, 10, 15]
    assert fast.notes.saves[0].files == (
        "adapters/adapters.safetensors",
        "adapters/0000005_adapters.safetensors",
    )
    assert (fast.notes.trainable.percent, fast.notes.trainable.total_millions) == (0.048, 9241.706)
    assert fast.main.announced_iterations == 400
    flat = read(LOGS / "mlx-examples-199-flat.log")
    assert (flat.notes.trainable.trainable_millions, flat.notes.trainable.total_millions) == (
        1.704,
        7243.436,
    )
    assert flat.main.base_val_loss == 1.777
    plateau = read(LOGS / "mlx-examples-216-plateau.log")
    assert plateau.main.base_val_loss is None
