"""Metrics of preference and reward training under the names that trainers give them."""

import pytest

from mlxdoctor.measure.policy_curves import policy_curves
from tests.checks.log_evidence import LogWriter

#: What trainers print; figures are made up. mlx-lm-lora 5 prints GRPO as a block, its colours are
#: left out.
PRINTED = {
    "mlx-lm-lora, GRPO": """\
[INFO] Training mode: GRPO
================
Iter 10:
----------------
Loss: 0.012
Total Rewards:  μ=0.400, σ=0.300
Group Rewards:  μ=0.400, σ=0.200
KL Divergence: 0.050000000000
KL saturation: 2.00%
Generation Stats:
  • Avg tokens: 31.5
  • Hit limit: 25.0%
Individual Reward Functions:
  • format: μ=0.100, σ=0.050, cov=100.00%
================""",
    "mlx-lm-lora, DPO": """\
Training Mode: DPO
Iter 1: Val loss 0.693, Val chosen reward 0.000, Val accuracy 0.500, Val margin 0.000, Val took 0.1s
Iter 5: loss 0.500, chosen_r 0.100, rejected_r -0.300, acc 0.800, margin 0.400, lr 1.000e-05""",
    "mlx-lm-lora, online DPO": """\
[INFO] Training mode: ONLINE_DPO
Iter 5: Train loss 0.600, Accuracy 0.750, Margin 0.200, It/sec 1.000, Peak mem 1.000 GB""",
    "mlx-lm-lora, KLPO": """\
Iter 5: KLPO loss=0.5000, reward=0.2500, KL=0.003000, tokens=10, route=token/mc""",
    "mlx-lm-lora, REINFORCE": """\
Iter 5: Val loss 0.1, Val rewards 0.300, Val KL penalty 0.010, Val took 0.1s
Iter 5: Train loss 0.100, Rewards 0.250, KL penalty 0.010, Learning Rate 1.000e-05""",
    "mlx-lm-lora, records of pairs": """\
{"iteration": 10, "train_loss": 0.5, "train_chosen_reward": 0.2, "train_rejected_reward": -0.1, \
"train_accuracies": 0.9, "train_margins": 0.3, "train_policy_chosen_logps": -1.5}""",
    "mlx-lm-lora, records of rewards": """\
{"iteration": 20, "train_loss": 0.1, "train_total_rewards_mean": 0.5, "train_kl": 0.02, \
"train_grouped_rewards_std": 0.25, "train_hit_max_tokens_ratio": 0.5, \
"train_average_generated_tokens": 40.0}""",
    "TRL, pairs": """\
{'loss': 0.69, 'rewards/chosen': 0.01, 'rewards/rejected': -0.02, 'rewards/accuracies': 0.6, \
'rewards/margins': 0.03, 'logps/chosen': -80.5, 'logits/chosen': -1.0, 'epoch': 0.1}
{'eval_loss': 0.68, 'eval_rewards/chosen': 0.02, 'eval_rewards/margins': 0.04, 'epoch': 0.1}""",
    "TRL, rewards": """\
{'loss': 0.0, 'reward': 0.4, 'reward_std': 0.2, 'frac_reward_zero_std': 0.25, 'kl': 0.001, \
'rewards/format/mean': 0.4, 'entropy': 0.9, 'completions/mean_length': 100.0, \
'completions/max_length': 256.0, 'completions/clipped_ratio': 0.1, 'epoch': 0.1}""",
    "mlx-examples, ORPO": """\
Iter 1: Train loss 0.69, Chosen reward 0.5, Rejected reward 0.2, It/sec 1.0""",
}


@pytest.mark.parametrize(
    ("name", "method", "roles"),
    [
        (
            "mlx-lm-lora, GRPO",
            "grpo",
            "loss 0.012, reward 0.4, spread 0.2, distance 0.05, length 31.5, cut_off 0.25",
        ),
        (
            "mlx-lm-lora, DPO",
            "dpo",
            "loss 0.5, chosen 0.1, rejected -0.3, margin 0.4, accuracy 0.8, held_out_loss 0.693, "
            "held_out_chosen 0, held_out_margin 0, held_out_accuracy 0.5",
        ),
        ("mlx-lm-lora, online DPO", "dpo", "loss 0.6, margin 0.2, accuracy 0.75"),
        ("mlx-lm-lora, KLPO", "", "reward 0.25, distance 0.003"),
        (
            "mlx-lm-lora, REINFORCE",
            "",
            "loss 0.1, reward 0.25, distance 0.01, held_out_loss 0.1, held_out_reward 0.3, "
            "held_out_distance 0.01",
        ),
        (
            "mlx-lm-lora, records of pairs",
            "",
            "loss 0.5, chosen 0.2, rejected -0.1, margin 0.3, accuracy 0.9",
        ),
        (
            "mlx-lm-lora, records of rewards",
            "",
            "loss 0.1, reward 0.5, spread 0.25, distance 0.02, length 40, cut_off 0.5",
        ),
        (
            "TRL, pairs",
            "",
            "loss 0.69, chosen 0.01, rejected -0.02, margin 0.03, accuracy 0.6, "
            "held_out_loss 0.68, held_out_chosen 0.02, held_out_margin 0.04",
        ),
        (
            "TRL, rewards",
            "",
            "loss 0, reward 0.4, spread 0.2, distance 0.001, flat_groups 0.25, length 100, "
            "cut_off 0.1",
        ),
        # A margin is made of its terms.
        ("mlx-examples, ORPO", "", "loss 0.69, chosen 0.5, rejected 0.2, margin 0.3"),
    ],
)
def test_what_trainers_print(logs: LogWriter, name: str, method: str, roles: str) -> None:
    curves = policy_curves(logs.text(PRINTED[name]))
    assert curves.method == method
    shown = [f"{role} {series.values[0]:.6g}" for role, series in curves.series.items()]
    assert ", ".join(shown).replace("-0,", "0,") == roles
    assert all(len(series) == 1 for series in curves.series.values())
    assert curves.samples == ("reward" in roles)


@pytest.mark.parametrize(
    ("head", "method"),
    [
        ("Starting DPO Training", "dpo"),
        ("Starting GRPO Training (loss_type=grpo)", "grpo"),
        ("ORPOTrainer initialized:", "orpo"),
        ("SimPOTrainer initialized:", "simpo"),
        ("[INFO] Training mode: RLHF_REINFORCE", "reinforce"),
    ],
)
def test_a_method_that_only_the_head_names(logs: LogWriter, head: str, method: str) -> None:
    # mlx-tune prints a loss alone, and for GRPO a reward.
    log = logs.text(head, "  Step 10/100 | Loss: 0.6931 | batch_size: 2")
    assert log.is_preference
    assert policy_curves(log).method == method
    assert not logs.text("Training Mode: SFT", "Iter 1: Train loss 2.0").is_preference
