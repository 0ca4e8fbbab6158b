"""Lines of mlx-lm and of the trainers that print alike."""

from __future__ import annotations

import numpy as np
import pytest

from mlxdoctor.evidence.training_log import looks_like_log
from tests.evidence.log_tables import CLASSIC, ESC, NAN, Write, read, same, table


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


def test_test_mode_and_final_save(write: Write) -> None:
    log = read(
        write(
            "Saved final weights to adapters/adapters.safetensors.\n"
            "Testing\nTest loss 1.234, Test ppl 3.435.\n"
        )
    )
    assert log.test_loss == 1.234
    assert [(one.iteration, one.files) for one in log.saves] == [
        (None, ("adapters/adapters.safetensors",))
    ]


def test_preference_method_is_named_in_the_header(write: Write) -> None:
    text = CLASSIC.replace("Starting training", "Starting ORPO training")
    assert read(write(text)).is_preference
    assert not read(write(CLASSIC)).is_preference
