"""Logs that users showed: no row lost, none invented."""

from __future__ import annotations

import pytest

from fixtures.lab.cases import logged
from mlxdoctor.evidence.training_log import looks_like_log
from tests.conftest import LOGS
from tests.evidence.log_tables import NAN, read, same, table

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
