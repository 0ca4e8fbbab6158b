"""Every format of training log: no row lost, none invented."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fixtures.lab.cases import logged
from mlxdoctor.evidence.training_log import TrainingLog, looks_like_log
from mlxdoctor.safety.errors import InputError
from tests.conftest import FIXTURES, LOGS, RUNS

NAN = float("nan")
ESC = "\x1b"

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def _write(text: str, name: str = "train.log", encoding: str = "utf-8") -> Path:
        path = tmp_path / name
        path.write_bytes(text.encode(encoding))
        return path

    return _write


def read(path: Path) -> TrainingLog:
    return TrainingLog.read([path])


def table(path: Path, name: str, segment: int = -1) -> dict[int, float]:
    series = read(path).segments[segment].get(name)
    assert series is not None, name
    assert len(set(series.iterations.tolist())) == len(series), "an iteration twice"
    return dict(zip(series.iterations.tolist(), series.values.tolist(), strict=True))


def same(found: dict[int, float], wanted: dict[int, float]) -> None:
    assert list(found) == list(wanted)
    np.testing.assert_array_equal(list(found.values()), list(wanted.values()))


#: Counted by hand in the raw text: file -> series -> {iteration: value}.
#: Where a file names no iteration, its reports are numbered from 1.
USER_LOGS: dict[str, dict[str, dict[int, float]]] = {
    "CONTROL-mlx-examples-613-neuralbeagle.log": {
        "train_loss": {410: 0.960, 420: 0.901, 430: 0.773, 440: 0.891, 450: 0.820},
        "trained_tokens": {410: 79934, 420: 81907, 430: 83923, 440: 85828, 450: 87615},
    },
    "CONTROL-mlx-lm-330-llama3.2-3b-wikisql-cuda.log": {
        "val_loss": {1: 2.936},
        "val_seconds": {1: 5.265},
        "train_loss": {10: 2.662, 20: 2.101, 30: 1.781, 40: 1.505, 50: 1.585},
        "peak_memory_gb": {10: 9.707, 20: 10.588, 30: 10.588, 40: 10.588, 50: 10.588},
        "tokens_per_second": {10: 161.374, 20: 4560.749, 30: 7514.985, 40: 8056.378, 50: 7889.451},
    },
    "CONTROL-torch-transformers-35438-ga1.log": {
        "train_loss": {1: 10.5949, 2: 8.2312, 3: 7.8988, 4: 8.0197, 5: 6.0704},
        "epoch": {1: 0.25, 2: 0.5, 3: 0.75, 4: 1.0, 5: 1.25},
    },
    "CONTROL-unsloth-6462-cuda-vs-mlx-parity.log": {
        "train_loss": {
            **{1: 4.0985, 2: 3.9070, 3: 3.3060, 4: 1.8891, 5: 1.1846},
            **{6: 0.8041, 7: 0.5780, 8: 0.6714, 9: 0.5859},
        },
        "grad_norm": {
            **{1: 91.4525, 2: 91.9407, 3: 77.0045, 4: 52.4635, 5: 25.1157},
            **{6: 9.2907, 7: 6.5590, 8: 6.1685, 9: 6.7463},
        },
    },
    "mlx-examples-1210-orpo.log": {
        "val_loss": {1: 3.107},
        "val_chosen_reward": {1: 2.0},
        "train_loss": {1: 2.197, 2: 8.681},
        "rejected_reward": {1: 0.0, 2: 0.0},
        "trained_tokens": {1: 541.0, 2: 1115.0},
    },
    "mlx-examples-199-flat.log": {
        "val_loss": {1: 1.777},
        "train_loss": {
            **{10: 1.741, 20: 1.788, 30: 1.802, 40: 1.808, 50: 1.783, 60: 1.747, 70: 1.740},
            **{80: 1.759, 90: 1.769, 100: 1.763, 110: 1.661, 120: 1.699, 130: 1.752},
        },
    },
    "mlx-examples-216-plateau.log": {
        "val_loss": {400: 1.495},
        "train_loss": {
            **{370: 1.146, 380: 1.187, 390: 1.153, 400: 1.229, 410: 1.167, 420: 1.270, 430: 1.112},
            **{440: 1.111, 450: 1.149, 460: 1.150, 470: 1.114, 480: 1.155, 490: 1.200},
        },
    },
    "mlx-examples-557-a-mixtral-4bit.log": {
        "val_loss": {1: 3.298},
        "train_loss": {
            **{10: 3.260, 20: 2.164, 30: 1.889, 40: 1.722, 50: 1.573, 60: 1.626, 70: 1.695},
            **{80: 1.568, 90: 1.661, 100: 1.539, 110: 1.547, 120: 1.564, 130: 1.523, 140: 1.519},
            **{150: 1.571, 160: 1.516, 170: 1.539},
        },
    },
    "mlx-examples-620-a-rank64-lr7e-5.log": {
        "val_loss": {1: 2.381},
        "train_loss": {25: 8.108, 50: 6.509},
        "learning_rate": {25: 7e-5, 50: 7e-5},
    },
    "mlx-examples-620-c-qwen1.5-14b-before-nan.log": {
        "val_loss": {1: 2.199},
        "train_loss": {151: 2.171, 302: 2.123, 453: 2.081, 604: 2.050, 755: 2.071},
        "learning_rate": {
            151: 1.987e-6,
            302: 3.976e-6,
            453: 5.966e-6,
            604: 7.956e-6,
            755: 9.946e-6,
        },
    },
    "mlx-examples-664-oom.log": {
        "val_loss": {1: 1.420},
        "train_loss": {10: 1.180, 20: 0.933},
        "peak_memory_gb": {10: 27.003, 20: 34.684},
    },
    "mlx-lm-18-a-0.22.0-suspiciously-fast.log": {
        "val_loss": {1: 3.174, 5: 2.363, 10: 1.009, 15: 0.211, 20: 0.167},
        "train_loss": {5: 2.787, 10: 1.547, 15: 0.386, 20: 0.204},
        "peak_memory_gb": {5: 56.494, 10: 59.975, 15: 64.930, 20: 64.930},
    },
    "mlx-lm-236-oom-full-ft.log": {
        "val_loss": {1: 3.495},
        "train_loss": {10: 2.586, 20: 1.731, 30: 1.808, 40: 1.723, 50: 1.487},
    },
    "mlx-lm-326-grad-debug.log": {
        "train_loss": {70: 2.786},
        "micro_loss": {
            **{67: 3.2387, 68: 2.4802, 69: 3.0505, 70: 2.4790},
            **{71: 2.7807, 72: 1.8210, 73: 3.1738},
        },
        "grad_norm": {67: 12.53, 68: 18.08, 69: 13.28, 70: 10.32, 71: 11.32, 72: 9.721, 73: 13.05},
        "micro": {67: 7, 68: 8, 69: 9, 70: 10, 71: 1, 72: 2, 73: 3},
        "toks": {67: 108, 68: 98, 69: 94, 70: 104, 71: 108, 72: 103, 73: 96},
        "local_l2": {70: 10.09},
        "world_absmax": {70: 1.212},
    },
    "mlx-lm-423-longcat-nan.log": {
        "val_loss": {1: 11.392},
        "train_loss": dict.fromkeys((10, 20, 30, 40, 50, 60), NAN),
        "trained_tokens": {10: 820, 20: 1759, 30: 2765, 40: 3749, 50: 4673, 60: 5548},
    },
    "mlx-lm-6-dpo-orpo.log": {
        "val_loss": {1: 0.055, 50: 0.052},
        "val_margin": {1: 0.028, 50: 0.036},
        "train_loss": {10: 0.061, 20: 0.058, 30: 0.072, 40: 0.057, 50: 0.045},
        "accuracy": {10: 0.6, 20: 0.8, 30: 0.5, 40: 0.7, 50: 0.8},
        "chosen_reward": {10: -0.206, 20: -0.176, 30: -0.219, 40: -0.168, 50: -0.169},
    },
    "mlx-vlm-499-full-ft-noisy.log": {
        "train_loss": {
            **{18: 10.059, 19: 11.859, 20: 8.931, 21: 9.934, 22: 8.676},
            **{23: 5.783, 24: 9.449, 25: 9.022, 26: 8.933, 27: 8.300},
        },
    },
    "mlx-vlm-795-orpo.log": {
        "train_loss": {
            **{36: 4.040, 37: 3.989, 38: 3.939, 39: 3.890, 40: 3.842, 41: 3.795},
            **{42: 3.749, 43: 3.704, 44: 3.660, 45: 3.617, 46: 3.575},
        },
        "learning_rate": dict.fromkeys(range(36, 47), 2e-8),
    },
    "torch-LlamaFactory-7443-GA-table.log": {
        "initial_loss": {1: 6.4, 2: 13.65, 3: 138.0, 4: 69.0},
        "100_step_loss": {1: 1.8, 2: 3.6, 3: 33.13, 4: 16.5},
        "gradient_acc": {1: 2, 2: 4, 3: 32, 4: 16},
    },
    "torch-MiniCPM-V-212-loss0-gradnan.log": {
        "train_loss": {1: 1.0778, 2: 0.0, 3: 0.0, 4: 0.0, 5: 0.0, 6: 0.0, 7: 0.0},
        "grad_norm": dict.fromkeys(range(1, 8), NAN),
    },
    "torch-gemma_pytorch-24-intermittent-nan.log": {
        "train_loss": {
            **{1: 5.6332, 2: 5.3049, 3: 153318.95, 4: 5.7517, 5: 5.6231},
            **{6: NAN, 7: 5.0968, 8: NAN, 9: 5.8938, 10: 6.1305},
        },
        "learning_rate": dict.fromkeys(range(1, 11), 2e-4),
        "grad_norm": {3: NAN},
    },
    "torch-unsloth-255-plain.log": {
        "train_loss": {1: 10.5604, 2: 10.2933, 3: 9.7562, 4: 9.3644, 5: 9.1276},
    },
}


@pytest.mark.parametrize("name", sorted(USER_LOGS))
def test_user_log_is_read_row_by_row(name: str) -> None:
    path = LOGS / name
    for series, values in USER_LOGS[name].items():
        same(table(path, series), values)
    assert looks_like_log(path)


def test_every_user_log_has_an_expected_table_or_verdict() -> None:
    judged = {f"{one.name}.log" for one in logged.LOGS}
    assert {path.name for path in LOGS.glob("*.log")} - judged == USER_LOGS.keys() - judged


@pytest.mark.parametrize("name", sorted(USER_LOGS))
def test_user_log_has_as_many_rows_as_lines_with_a_loss(name: str) -> None:
    """An independent count: lines that hold a loss and are neither header nor message."""
    text = (LOGS / name).read_text()
    marks = ("Train loss", "'loss'", "Val loss", "] it=")
    wanted = sum(any(mark in line for mark in marks) for line in text.splitlines())
    if "|---" in text or text.startswith("|"):
        wanted = sum(line.startswith("| ") for line in text.splitlines()) - 1
    log = read(LOGS / name)
    series = [log.main.get(key) for key in ("train_loss", "val_loss", "micro_loss", "initial_loss")]
    assert sum(len(one) for one in series if one is not None) == wanted


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
    logs = LOGS
    oom = read(logs / "mlx-lm-236-oom-full-ft.log")
    assert [(one.line_number, one.kind) for one in oom.failures] == [
        (7, "out-of-memory"),
        (8, "aborted"),
    ]
    fast = read(logs / "mlx-lm-18-a-0.22.0-suspiciously-fast.log")
    assert [one.iteration for one in fast.saves] == [5, 10, 15]
    assert fast.saves[0].files == (
        "adapters/adapters.safetensors",
        "adapters/0000005_adapters.safetensors",
    )
    assert fast.trainable is not None
    assert (fast.trainable.percent, fast.trainable.total_millions) == (0.048, 9241.706)
    assert fast.main.announced_iterations == 400
    flat = read(logs / "mlx-examples-199-flat.log")
    assert flat.trainable is not None
    assert (flat.trainable.trainable_millions, flat.trainable.total_millions) == (1.704, 7243.436)
    assert flat.main.base_val_loss == 1.777
    plateau = read(logs / "mlx-examples-216-plateau.log")
    assert plateau.main.base_val_loss is None


# --- the coloured table of mlx-lm -------------------------------------------------------


def _coloured(iteration: int, loss: str, arrow: str, speed: str, tokens: str) -> str:
    return (
        f"  {ESC}[38;5;244m{iteration:>4}{ESC}[0m    {ESC}[1;32m{loss:>5} {arrow}{ESC}[0m"
        f"    {ESC}[1m{speed:>5}{ESC}[0m    {ESC}[38;5;244m{tokens:>6}{ESC}[0m\n"
    )


EDGE = f"{ESC}[34m│{ESC}[0m"
TABLE = (
    f"{ESC}[34m╭─{ESC}[0m {ESC}[1;35mmlx_lm.lora{ESC}[0m {ESC}[34m──────────╮{ESC}[0m\n"
    f"{EDGE}    model           {ESC}[1mm/Qwen2.5-0.5B-4bit{ESC}[0m    {EDGE}\n"
    f"{EDGE}    type            {ESC}[1mlora · 16 layers · rank 8{ESC}[0m │\n"
    f"{EDGE}    optimizer       {ESC}[1madam · lr 1.0e-05{ESC}[0m   {EDGE}\n"
    f"{EDGE}    batch · iters   {ESC}[1m4 · 1,040{ESC}[0m           {EDGE}\n"
    f"{ESC}[34m╰───────────╯{ESC}[0m\n"
    "Trainable parameters: 0.048% (4.473M/9241.706M)\n"
    f"  {ESC}[1miter   train_loss     tok/s     tokens{ESC}[0m\n"
    f"  {ESC}[38;5;244m   1{ESC}[0m    {ESC}[1;35mval{ESC}[0m {ESC}[1m2.936{ESC}[0m    5.26s\n"
    + _coloured(10, "2.662", "▼", "161", "3.3k")
    + _coloured(20, "nan", "▲", "4,561", "6.6k")
    + f"\r{ESC}[2K{ESC}[1A"
    + _coloured(30, "12.346", "▲", "14,561", "1656.8k")
    + f"  {ESC}[1;32msave{ESC}[0m  {ESC}[38;5;244m0000030_adapters.safetensors{ESC}[0m\n"
    + _coloured(1040, "inf", "▲", "100", "2000.0k")
    + "train ██████████████████████████████ 100% · 1,040/1,040\n"
)


def test_coloured_table(write: Write) -> None:
    path = write(TABLE)
    log = read(path)
    same(table(path, "train_loss"), {10: 2.662, 20: NAN, 30: 12.346, 1040: float("inf")})
    same(table(path, "tokens_per_second"), {10: 161, 20: 4561, 30: 14561, 1040: 100})
    same(table(path, "trained_tokens"), {10: 3300, 20: 6600, 30: 1656800, 1040: 2000000})
    same(table(path, "val_loss"), {1: 2.936})
    same(table(path, "val_seconds"), {1: 5.26})
    assert log.format == "table"
    assert log.main.announced_iterations == 1040
    assert log.header["model"] == "m/Qwen2.5-0.5B-4bit"
    assert log.header["type"] == "lora · 16 layers · rank 8"
    assert log.header["batch"] == "4"
    assert [one.iteration for one in log.saves] == [30]


def test_table_whose_arrows_were_lost(write: Write) -> None:
    path = write("  iter   train_loss     tok/s     tokens\n  10    2.662 ?      161      3.3k\n")
    same(table(path, "train_loss"), {10: 2.662})
    same(table(path, "trained_tokens"), {10: 3300})


@pytest.mark.parametrize("name", ["healthy-ordinary", "collapse-frequent-token"])
def test_logs_of_the_fixture_runs(name: str) -> None:
    """Rows counted with other means: lines that end in k, or hold `Train loss`."""
    path = RUNS / name / "train.log"
    text = path.read_text()
    rows = text.count("▼") + text.count("▲") + text.count("Train loss")
    log = read(path)
    assert len(log.main.series["train_loss"]) == rows > 5
    assert len(log.segments) == 1


# --- the classic lines and their kin ----------------------------------------------------

CLASSIC = (
    "Starting training..., iters: 3000\n"
    "Iter 1: Val loss 2.480, Val took 0.732s\n"
    "Iter 10: Train loss 2.363, Learning Rate 1.000e-05, It/sec 1.022, Tokens/sec 88.083, "
    "Trained Tokens 862, Peak mem 6.093 GB\n"
)


def test_hand_shortened_peak(write: Write) -> None:
    path = write(CLASSIC.replace("Peak mem 6.093", "Peak58.9"))
    same(table(path, "peak_memory_gb"), {10: 58.9})


@pytest.mark.parametrize("text", ["nan", "inf", "-inf", "Infinity", "NaN"])
def test_losses_that_are_not_finite(write: Write, text: str) -> None:
    path = write(CLASSIC.replace("2.363", text))
    same(table(path, "train_loss"), {10: float(text)})


def test_utf16_and_windows_line_ends(write: Write) -> None:
    path = write(CLASSIC.replace("\n", "\r\n"), encoding="utf-16")
    same(table(path, "train_loss"), {10: 2.363})
    assert looks_like_log(path)


def test_colours_inside_values_and_links_before_them(write: Write) -> None:
    path = write(
        f"{ESC}[96mIter 1: Val loss 2.381, Val took 16.942s{ESC}[0m\n"
        f"{ESC}]8;;http://x{ESC}\\{ESC}]8;;{ESC}\\"
        f"Iter 10: Train loss {ESC}[92m3.43800000{ESC}[0m, It/sec 0.307, Tokens/sec 301.622\n"
        f"{ESC}]0;title\x07Iter 20: Train loss {ESC}[92m3.1{ESC}[0m, It/sec 0.3, Tokens/sec 3.0\n"
    )
    same(table(path, "train_loss"), {10: 3.438, 20: 3.1})
    same(table(path, "val_loss"), {1: 2.381})


def test_progress_bar_glued_to_a_report(write: Write) -> None:
    bar = " 1%|▊ | 10/1000 [00:32<53:42,  3.25s/it, Loss=9.0, LR=1.00e-04, Tokens/sec=302]"
    path = write(bar + CLASSIC.splitlines()[2] + "\n")
    same(table(path, "train_loss"), {10: 2.363})
    same(table(path, "tokens_per_second"), {10: 88.083})


def test_progress_bar_alone_counts_each_report_once(write: Write) -> None:
    def bar(step: int, loss: str) -> str:
        return f" 1%|▊ | {step}/1000 [00:32<53:42,  3.25s/it, Loss={loss}, LR=1.00e-04]"

    redraws = [(10, "3.4"), (11, "3.4"), (20, "3.4"), (20, "3.1"), (21, "3.1"), (30, "nan")]
    path = write("\r".join(bar(step, loss) for step, loss in redraws) + "\n")
    same(table(path, "train_loss"), {10: 3.4, 20: 3.1, 30: NAN})
    assert read(path).main.announced_iterations == 1000


def test_dictionaries_win_over_the_bar_beside_them(write: Write) -> None:
    path = write(
        "INFO:__main__:Training model\n"
        "#trainable params: 11.54048 M || all params: 2208.9856 M || trainable%: 0.522%\n"
        "{'Step': 10, 'Loss': '3.4376', 'Learning Rate': '1.00e-04', 'Tokens/sec': '302'}\n"
        " 1%|▊ | 10/1000 [00:32<53:42,  3.25s/it, Loss=3.4376, LR=1.00e-04, Tokens/sec=302]\n"
        "{'Step': 20, 'Loss': 'nan', 'Learning Rate': '1.00e-04', 'Tokens/sec': '302'}\n"
    )
    same(table(path, "train_loss"), {10: 3.4376, 20: NAN})
    trainable = read(path).trainable
    assert trainable is not None
    assert (trainable.percent, trainable.trainable_millions) == (0.522, 11.54048)


def test_validation_bar_is_no_report(write: Write) -> None:
    path = write(
        "Calculating loss...: 100%|█████████████████████| 25/25 [00:05<00:00,  4.75it/s]\n"
        + CLASSIC
    )
    assert set(read(path).main.series) >= {"train_loss", "val_loss"}
    same(table(path, "train_loss"), {10: 2.363})


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        (
            "Iter 50: loss 0.045, chosen_r -0.169, rejected_r -0.240, acc 0.800, margin 0.071, "
            "lr 1.000e-05, it/s 0.678, tok/s 685.863, trained_tok 1,862, peak_mem 7.767GB",
            {
                **{"train_loss": 0.045, "chosen_r": -0.169, "rejected_r": -0.24, "acc": 0.8},
                **{"margin": 0.071, "learning_rate": 1e-5, "iterations_per_second": 0.678},
                **{"tokens_per_second": 685.863, "trained_tokens": 1862, "peak_memory_gb": 7.767},
            },
        ),
        (
            "Iter 50: loss 0.1234, chosen_win 0.500, margin_win 0.500, it/s 0.500",
            {
                **{"train_loss": 0.1234, "chosen_win": 0.5, "margin_win": 0.5},
                "iterations_per_second": 0.5,
            },
        ),
        (
            "Iter 50: Train loss 1.2680, LR 1.950e-06, grad_norm 177650662.281, skipped 1",
            {
                **{"train_loss": 1.268, "learning_rate": 1.95e-6},
                **{"grad_norm": 177650662.281, "skipped": 1},
            },
        ),
        (
            "Iter 50: SKIPPED non-finite batch (loss 1.23, norm nan) -- weights untouched",
            {"skipped_batch_loss": 1.23, "skipped_batch_norm": NAN},
        ),
        ("Epoch 1: Iter 50: Val loss nan, Val took 0.001s", {"val_loss": NAN, "epoch": 1}),
        ("  Step 50/100 | Loss: 0.6931 | batch_size: 2", {"train_loss": 0.6931, "batch_size": 2}),
        ("  Step 50/100 | Loss: 0.0123 | Reward: 0.500", {"train_loss": 0.0123, "reward": 0.5}),
        ("step 50/100  loss 0.1234  lr 1.00e-04", {"train_loss": 0.1234, "learning_rate": 1e-4}),
        (
            "step 50: loss=4.2215 step_time=27,547ms batch=16",
            {"train_loss": 4.2215, "step_time": 27547, "batch": 16},
        ),
        (
            "2026-01-02 10:11:12,123 INFO Iter 50: Train loss 2.5, Foo bar 7.5",
            {"train_loss": 2.5, "foo_bar": 7.5},
        ),
        (
            "Iter 50: Train loss 0.000, Total rewards mean 0.000, KL 0.000, Peak mem 50.769 GB",
            {"train_loss": 0, "total_rewards_mean": 0, "kl": 0, "peak_memory_gb": 50.769},
        ),
    ],
)
def test_downstream_lines(write: Write, line: str, wanted: dict[str, float]) -> None:
    segment = read(write(line + "\n")).main
    for name, value in wanted.items():
        series = segment.series[name]
        assert series.iterations.tolist() == [50]
        np.testing.assert_array_equal(series.values, [value])
    assert set(segment.series) - set(wanted) <= {"val_seconds"}


def test_a_line_cut_off_before_the_total(write: Write) -> None:
    path = write(CLASSIC + "loss 2.5 step 10/\n")
    same(table(path, "train_loss"), {10: 2.363})


def test_block_of_lines(write: Write) -> None:
    path = write(
        "=" * 80 + "\nIter 10:\n" + "-" * 80 + "\n"
        "Loss: 0.123\nTotal Rewards:  μ=0.500, σ=0.100\nKL Divergence: 0.000012345678\n"
        "Generation Stats:\n  • Avg tokens: 113.1\n  • Max tokens: 512 (limit: 512)\n"
        "  • Hit limit: 25.0%\nIndividual Reward Functions:\n"
        "  • accuracy: μ=0.100, σ=0.300, cov=50.00%\n"
        "Clipping:  low=0.000, high=0.001, total=0.002\nLearning Rate: 1.0000e-05\n"
        "Speed: 0.100 it/s, 12.3 tok/s\nMemory: 9.876GB\n" + "=" * 80 + "\n"
    )
    wanted = {
        **{"train_loss": 0.123, "total_rewards_mean": 0.5, "total_rewards_std": 0.1},
        **{"kl_divergence": 1.2345678e-5, "avg_tokens": 113.1, "max_tokens": 512},
        **{"hit_limit": 25, "accuracy_mean": 0.1, "accuracy_std": 0.3, "accuracy_cov": 50},
        **{"clipping_low": 0, "clipping_high": 0.001, "clipping_total": 0.002},
        **{"learning_rate": 1e-5, "iterations_per_second": 0.1, "tokens_per_second": 12.3},
        **{"peak_memory_gb": 9.876},
    }
    segment = read(path).main
    assert {name: one.values.tolist() for name, one in segment.series.items()} == {
        name: [value] for name, value in wanted.items()
    }
    assert read(path).is_preference


def test_test_mode_truncation_and_final_save(write: Write) -> None:
    log = read(
        write(
            "[WARNING] Some sequences are longer than 8192 tokens. The longest sentence 19487 will "
            "be truncated to 8192. Consider pre-splitting your data to save memory.\n"
            "Saved final weights to adapters/adapters.safetensors.\n"
            "Testing\nTest loss 1.234, Test ppl 3.435.\n"
        )
    )
    assert log.truncations == ((19487, 8192),)
    assert (log.test_loss, log.test_perplexity) == (1.234, 3.435)
    assert [(one.iteration, one.files) for one in log.saves] == [
        (None, ("adapters/adapters.safetensors",))
    ]


def test_preference_method_is_named_in_the_header(write: Write) -> None:
    text = CLASSIC.replace("Starting training", "Starting ORPO training")
    assert read(write(text)).is_preference
    assert not read(write(CLASSIC)).is_preference


# --- records and tables -----------------------------------------------------------------


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


def test_tensorboard_csv(write: Write) -> None:
    text = "Wall time,Step,Value\n1.5e9,10,2.66\n1.6e9,20,2.5\n"
    same(table(write(text, "run-.-tag-train_loss.csv"), "train_loss"), {10: 2.66, 20: 2.5})
    same(table(write(text, "run-.-tag-eval_loss.csv"), "val_loss"), {10: 2.66, 20: 2.5})


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


# --- segments, sniffing, limits ---------------------------------------------------------


def test_a_second_run_is_a_second_segment(write: Write) -> None:
    path = write(CLASSIC + CLASSIC.replace("3000", "40").replace("2.363", "9.5"))
    log = read(path)
    assert [one.announced_iterations for one in log.segments] == [3000, 40]
    assert [one.first_line for one in log.segments] == [2, 5]
    same(table(path, "train_loss", 0), {10: 2.363})
    same(table(path, "train_loss", 1), {10: 9.5})


def test_iterations_that_go_back_begin_a_segment(write: Write) -> None:
    iterations = enumerate((10, 20, 30, 10, 20))
    lines = [f"Iter {i}: Train loss {place}.5, It/sec 1.0\n" for place, i in iterations]
    path = write("".join(lines))
    assert [len(one.series["train_loss"]) for one in read(path).segments] == [3, 2]


def test_train_before_validation_at_one_iteration_is_one_segment(write: Write) -> None:
    path = write(
        "Iter 100: Train loss 1.5, It/sec 1.0\nIter 100: Val loss 1.6, Val took 1.0s\n"
        "Iter 200: Train loss 1.4, It/sec 1.0\nIter 200: Val loss 1.5, Val took 1.0s\n"
    )
    assert len(read(path).segments) == 1


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("zsh: killed     mlx_lm.lora\n", ["killed"]),
        ("[metal::malloc] Attempting to allocate 99 bytes which is greater\n", ["out-of-memory"]),
        ('Traceback (most recent call last):\n  File "x"\nValueError: bad\n', ["traceback"]),
        ('Traceback (most recent call last):\n  File "x"\nMemoryError\n', ["out-of-memory"]),
        ('Traceback (most recent call last):\n  File "x"\nKeyboardInterrupt\n', ["interrupted"]),
        ('Traceback (most recent call last):\n  File "x"', ["traceback"]),
        ("Calculating loss of the killed seals\n", []),
    ],
)
def test_failures(write: Write, text: str, kinds: list[str]) -> None:
    assert [one.kind for one in read(write(CLASSIC + text)).failures] == kinds


def test_versions(write: Write) -> None:
    log = read(write("mlx-lm==0.22.0\nmlx 0.20.1\n" + CLASSIC))
    assert log.versions == {"mlx-lm": "0.22.0", "mlx": "0.20.1"}


NOT_LOGS = {
    "train.jsonl": '{"messages": [{"role": "user", "content": "Iter 10: Train loss 2.3"}]}\n' * 9,
    "text.jsonl": '{"text": "loss 3"}\n' * 9,
    "generations.jsonl": '{"prompt": "a", "base": "b", "tuned": "c"}\n' * 9,
    "evaluation.json": '{"loss": 2.0, "perplexity": 7.66}',
    "adapter_config.json": '{\n "fine_tune_type": "lora",\n "iters": 9,\n "learning_rate": 1e-5}',
    "README.md": "The loss was 2.5 at iter 300.\nAfter iter 300 the loss went to 1.2.\n",
    "data.csv": "name,age\nbob,3\n",
}


@pytest.mark.parametrize("name", sorted(NOT_LOGS))
def test_what_is_not_a_log(write: Write, name: str) -> None:
    path = write(NOT_LOGS[name], name)
    assert not looks_like_log(path)
    with pytest.raises(InputError, match="no report on training; understood are"):
        read(path)


def test_fixture_files_that_are_not_logs() -> None:
    for path in FIXTURES.glob("data/*/*.jsonl"):
        assert not looks_like_log(path), path
    for path in RUNS.glob("*/generations.jsonl"):
        assert not looks_like_log(path), path
    for path in RUNS.glob("*/*.json"):
        assert not looks_like_log(path), path


def test_binary_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    path.write_bytes(b"\0\1\2" * 100)
    assert not looks_like_log(path)
    with pytest.raises(InputError, match="binary"):
        read(path)


def test_an_enormous_line_does_not_hang(write: Write) -> None:
    path = write(CLASSIC + "Iter 1 loss 2 " * 2_000_000 + "\n" + CLASSIC.splitlines()[2] + "\n")
    begin = time.perf_counter()
    log = read(path)
    assert time.perf_counter() - begin < 3.0
    assert len(log.main.series["train_loss"]) == 2


def test_many_lines_are_read_in_time(write: Write) -> None:
    line = CLASSIC.splitlines()[2]
    path = write("".join(line.replace("Iter 10", f"Iter {i}") + "\n" for i in range(30_000)))
    begin = time.perf_counter()
    assert len(read(path).main.series["train_loss"]) == 30_000
    # 0.06 s where it was measured; the margin is for busy machines.
    assert time.perf_counter() - begin < 1.5
