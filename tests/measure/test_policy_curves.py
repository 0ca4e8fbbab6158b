"""Metrics of preference and reward training under the names that trainers give them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mlxdoctor.evidence.training_log import Series
from mlxdoctor.measure.policy_curves import PolicyCurves, correlation, policy_curves
from tests.checks.log_evidence import LogWriter

#: As mlx-lm-lora 5 prints a report of GRPO, colours left out; figures are made up.
GROUPS = """{bar}
Iter {at}:
{line}
Loss: 0.012
Total Rewards:  μ=0.400, σ=0.300
Group Rewards:  μ=0.400, σ=0.200
KL Divergence: 0.050000000000
KL saturation: 2.00%
{line}
Generation Stats:
  • Avg tokens: 31.5
  • Min tokens: 7
  • Max tokens: 48 (limit: 48)
  • Hit limit: 25.0%
{line}
Individual Reward Functions:
  • format: μ=0.100, σ=0.050, cov=100.00%
{line}
Clipping:  low=0.000, high=0.010, total=0.020
Learning Rate: 1.0000e-05
Speed: 1.000 it/s, 100.0 tok/s
Memory: 2.000GB
{bar}"""


@pytest.fixture
def logs(tmp_path: Path) -> LogWriter:
    return LogWriter(tmp_path)


def trained(curves: PolicyCurves) -> dict[str, list[float]]:
    return {role: [round(x, 9) for x in one.values] for role, one in curves.trained.items()}


def held_out(curves: PolicyCurves) -> dict[str, list[float]]:
    return {role: one.values.tolist() for role, one in curves.held_out.items()}


def test_groups_of_mlx_lm_lora(logs: LogWriter) -> None:
    log = logs.text(
        "[INFO] Training mode: GRPO",
        *(GROUPS.format(bar="=" * 80, line="-" * 80, at=at) for at in (10, 20)),
    )
    curves = policy_curves(log)
    assert curves.method == "grpo"
    assert curves.samples
    assert trained(curves) == {
        role: [value] * 2
        for role, value in {
            **{"loss": 0.012, "reward": 0.4, "spread": 0.2, "kl": 0.05},
            **{"length": 31.5, "cut_off": 0.25},
        }.items()
    }


def test_pairs_of_mlx_lm_lora(logs: LogWriter) -> None:
    log = logs.text(
        "Training Mode: DPO",
        "Iter 1: Val loss 0.693, Val chosen reward 0.000, Val rejected reward 0.000, Val accuracy "
        "0.000, Val margin 0.000, Val took 0.100s",
        "Iter 5: loss 0.500, chosen_r 0.100, rejected_r -0.300, acc 0.800, margin 0.400, lr "
        "1.000e-05, it/s 1.000, tok/s 100.000, peak_mem 1.000GB",
    )
    curves = policy_curves(log)
    assert (curves.method, curves.samples, curves.has_reference) == ("dpo", False, True)
    assert trained(curves) == {
        **{"loss": [0.5], "chosen": [0.1], "rejected": [-0.3], "margin": [0.4]},
        "accuracy": [0.8],
    }
    assert held_out(curves) == {
        **{"loss": [0.693], "chosen": [0.0], "rejected": [0.0], "margin": [0.0]},
        "accuracy": [0.0],
    }


def test_other_modes_of_mlx_lm_lora(logs: LogWriter) -> None:
    online = logs.text(
        "[INFO] Training mode: ONLINE_DPO",
        "Iter 5: Train loss 0.600, Accuracy 0.750, Margin 0.200, Learning Rate 1.000e-05, It/sec "
        "1.000, Tokens/sec 10.000, Trained Tokens 100, Peak mem 1.000 GB",
    )
    assert policy_curves(online).method == "online_dpo"
    assert trained(policy_curves(online)) == {"loss": [0.6], "accuracy": [0.75], "margin": [0.2]}
    regression = logs.text(
        "Iter 5: KLPO loss=0.5000, reward=0.2500, KL=0.003000, tokens=10, route=token/mc",
        "Iter 10: KLPO loss=0.4000, reward=0.3000, KL=0.004000, tokens=20, route=token/mc",
    )
    assert (
        trained(policy_curves(regression)).items()
        >= {
            "reward": [0.25, 0.3],
            "kl": [0.003, 0.004],
        }.items()
    )
    reinforced = logs.text(
        "Iter 5: Val loss 0.1, Val rewards 0.300, Val KL penalty 0.010, Val advantages 0.100, Val "
        "took 0.1s",
        "Iter 5: Train loss 0.100, Rewards 0.250, KL penalty 0.010, Learning Rate 1.000e-05",
    )
    assert trained(policy_curves(reinforced))["reward"] == [0.25]
    assert held_out(policy_curves(reinforced))["reward"] == [0.3]


def test_callback_records_of_mlx_lm_lora(logs: LogWriter) -> None:
    log = logs.text(
        '{"iteration": 10, "train_loss": 0.5, "train_chosen_reward": 0.2, "train_rejected_reward": '
        '-0.1, "train_accuracies": 0.9, "train_margins": 0.3, "train_policy_chosen_logps": -1.5, '
        '"train_policy_rejected_logps": -2.5, "learning_rate": 1e-05}',
        '{"iteration": 20, "train_loss": 0.1, "train_total_rewards_mean": 0.5, '
        '"train_grouped_rewards_std": 0.25, "train_kl": 0.02, "train_hit_max_tokens_ratio": 0.5, '
        '"train_average_generated_tokens": 40.0}',
    )
    assert trained(policy_curves(log)) == {
        **{"loss": [0.5, 0.1], "chosen": [0.2], "rejected": [-0.1], "margin": [0.3]},
        **{"accuracy": [0.9], "chosen_logps": [-1.5]},
        **{"reward": [0.5], "spread": [0.25], "kl": [0.02], "cut_off": [0.5], "length": [40.0]},
    }


def test_records_of_trl(logs: LogWriter) -> None:
    pairs = logs.text(
        "{'loss': 0.69, 'grad_norm': 1.5, 'learning_rate': 5e-07, 'rewards/chosen': 0.01, "
        "'rewards/rejected': -0.02, 'rewards/accuracies': 0.6, 'rewards/margins': 0.03, "
        "'logps/chosen': -80.5, 'logps/rejected': -90.5, 'logits/chosen': -1.0, 'entropy': 0.7, "
        "'mean_token_accuracy': 0.6, 'epoch': 0.1}",
        "{'eval_loss': 0.68, 'eval_rewards/chosen': 0.02, 'eval_rewards/rejected': -0.02, "
        "'eval_rewards/accuracies': 0.7, 'eval_rewards/margins': 0.04, 'epoch': 0.1}",
    )
    assert trained(policy_curves(pairs)) == {
        **{"loss": [0.69], "chosen": [0.01], "rejected": [-0.02], "accuracy": [0.6]},
        **{"margin": [0.03], "chosen_logps": [-80.5]},
    }
    assert held_out(policy_curves(pairs))["margin"] == [0.04]
    groups = logs.text(
        "{'loss': 0.0, 'reward': 0.4, 'reward_std': 0.2, 'frac_reward_zero_std': 0.25, "
        "'rewards/format/mean': 0.4, 'rewards/format/std': 0.2, 'kl': 0.001, 'entropy': 0.9, "
        "'completions/mean_length': 100.0, 'completions/max_length': 256.0, "
        "'completions/clipped_ratio': 0.1, 'clip_ratio/region_mean': 0.01, 'epoch': 0.1}",
    )
    assert trained(policy_curves(groups)) == {
        **{"loss": [0.0], "reward": [0.4], "spread": [0.2], "flat_groups": [0.25], "kl": [0.001]},
        **{"length": [100.0], "cut_off": [0.1]},
    }


@pytest.mark.parametrize(
    ("head", "method"),
    [
        ("Starting DPO Training", "dpo"),
        ("Starting GRPO Training (loss_type=grpo)", "grpo"),
        ("ORPOTrainer initialized:", "orpo"),
        ("SimPOTrainer initialized:", "simpo"),
        ("[INFO] Training mode: RLHF_REINFORCE", "rlhf_reinforce"),
    ],
)
def test_a_method_that_only_the_head_names(logs: LogWriter, head: str, method: str) -> None:
    # mlx-tune prints a loss alone, and for GRPO a reward.
    log = logs.text(head, "  Step 10/100 | Loss: 0.6931 | batch_size: 2")
    assert log.is_preference
    assert policy_curves(log).method == method
    assert not logs.text("Training Mode: SFT", "Iter 1: Train loss 2.0").is_preference


def test_a_margin_is_made_of_its_terms(logs: LogWriter) -> None:
    log = logs.text("Iter 1: Train loss 0.69, Chosen reward 0.5, Rejected reward 0.2, It/sec 1.0")
    assert trained(policy_curves(log))["margin"] == [pytest.approx(0.3)]


def test_rank_correlation_is_of_common_reports() -> None:
    one = Series(np.arange(6), np.array([1.0, 2.0, 3.0, 4.0, 5.0, 60.0]))
    other = Series(np.arange(1, 7), np.array([9.0, 8.0, 7.0, 6.0, 5.0, 0.0]))
    assert correlation(one, other) == pytest.approx(-1.0)
    assert correlation(one, Series(np.arange(4), np.ones(4))) is None
    assert correlation(one, Series(np.arange(6), np.ones(6))) is None
