"""What a log of preference or reward training measures, by what it means.

Trainers have names of their own for one thing: a margin is `margin`, `rewards/margins` or
`eval_rewards/margins`. Here each has one, and training rows are told apart from held-out ones.
"""

import math
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

import numpy as np

from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.training_log import Series, TrainingLog

Role = Literal[
    "loss",
    "chosen",
    "rejected",
    "margin",
    "accuracy",
    "reward",
    "spread",
    "flat_groups",
    "kl",
    "kl_of_answer",
    "length",
    "cut_off",
]
#: What is printed as a percentage, of what stands here as a share of one.
_PERCENT = frozenset({"hit_limit"})
#: Role -> the names that trainers give it, best first.
NAMES: Mapping[Role, str] = {
    "loss": "loss",
    "chosen": "rewards_chosen chosen_reward chosen_rewards chosen_r reward_chosen",
    "rejected": "rewards_rejected rejected_reward rejected_rewards rejected_r reward_rejected",
    "margin": "rewards_margins margins margin rewards_margin reward_margin reward_margins",
    "accuracy": (
        "rewards_accuracies accuracies accuracy acc rewards_accuracy reward_accuracy "
        "preference_accuracy pair_accuracy chosen_win"
    ),
    "reward": (
        "reward total_rewards_mean rewards_mean reward_mean mean_reward rewards avg_reward "
        "average_reward mean_rewards objective_scores objective_rlhf_reward reward_avg "
        "group_rewards_mean grouped_rewards_mean"
    ),
    "spread": (
        "grouped_rewards_std group_rewards_std reward_std rewards_std std_reward total_rewards_std"
    ),
    "flat_groups": "frac_reward_zero_std flat_group_fraction",
    "kl": "kl kl_divergence kl_mean mean_kl kl_div",
    "kl_of_answer": "objective_kl",
    "length": (
        "completions_mean_length average_generated_tokens avg_tokens mean_length completion_length "
        "response_length avg_length average_length gen_len avg_completion_length "
        "mean_completion_length generated_tokens"
    ),
    "cut_off": (
        "completions_clipped_ratio hit_max_tokens_ratio hit_limit completions_truncated_fraction"
    ),
}
_HELD_OUT = re.compile(r"^(?:val|valid|validation|eval|test)_(?=.)")
_SPLIT = re.compile(rf"{_HELD_OUT.pattern}|^train_(?=.)")
#: A reward that is this near to 0 in a first report is one against a reference.
NEAR_ZERO = 0.05
#: Methods whose chosen and rejected rewards are measured against a reference.
_OF_REFERENCE = frozenset({"dpo", "kto", "ipo", "online_dpo", "xpo", "dpop", "bco"})
#: Methods that compare the pairs of a data set.
_OF_PAIRS = _OF_REFERENCE | {"orpo", "cpo", "simpo", "dsla", "ftpo"}
#: Methods whose rewards are of the mean log-likelihood of a token, and not of their sum.
OF_MEANS = frozenset({"orpo", "simpo"})
#: Methods that sample answers and reward them.
_OF_REWARDS = frozenset({"grpo", "rloo", "ppo", "rlhf_reinforce", "reinforce", "klpo", "dapo"})


@dataclass(frozen=True)
class PolicyCurves:
    """The curves of a run that was trained on preferences or rewards.

    Attributes:
        method: "dpo", "orpo", "grpo", ...; empty where neither log nor configuration names it.
        trained: role -> its curve on the rows that were trained on.
        held_out: role -> its curve on other rows.
        stated_beta: what log-likelihoods are multiplied by to be rewards, as it is stated.
        unit: what the log counts, as `Segment.unit`.
    """

    method: str
    trained: Mapping[Role, Series]
    held_out: Mapping[Role, Series]
    stated_beta: float | None = None
    unit: str = "iteration"

    @property
    def beta(self) -> float | None:
        """A usable beta; None where none is stated."""
        beta = self.stated_beta
        return beta if beta is not None and 0.0 < beta < math.inf else None

    @property
    def of_pairs(self) -> bool:
        """Whether the method, where it is known, compares the pairs of a data set."""
        return self.method in _OF_PAIRS

    @property
    def samples(self) -> bool:
        """Whether answers are generated and rewarded: GRPO, PPO and their like."""
        if self.method in _OF_PAIRS:
            return False
        return self.method in _OF_REWARDS or bool(self.trained.keys() & {"reward", "spread"})

    @property
    def has_reference(self) -> bool | None:
        """Whether the rewards of pairs are against a reference; None where that is not known."""
        if self.method:
            return self.method in _OF_REFERENCE
        chosen = self.trained.get("chosen") or self.held_out.get("chosen")
        if chosen is None or not len(chosen):
            return None
        # A log-likelihood itself is far from 0 before the first step, and a ratio of two is not.
        return True if abs(float(chosen.values[0])) < NEAR_ZERO else None

    def of(self, role: Role, *, held_out: bool = False) -> Series | None:
        """The finite values of a curve; None where the log has none."""
        series = (self.held_out if held_out else self.trained).get(role)
        finite = series.finite if series is not None else None
        return finite if finite is not None and len(finite) else None


def correlation(first: Series, second: Series) -> float | None:
    """The rank correlation of two curves where both report; None of fewer than five reports."""
    common, mine, theirs = np.intersect1d(first.iterations, second.iterations, return_indices=True)
    if len(common) < 5 or 0.0 in (np.ptp(first.values[mine]), np.ptp(second.values[theirs])):
        return None
    from scipy.stats import spearmanr

    return float(spearmanr(first.values[mine], second.values[theirs]).statistic)


def policy_curves(log: TrainingLog | None, config: TrainingConfig | None = None) -> PolicyCurves:
    """The curves of the log's main segment."""
    sides: tuple[dict[str, Series], dict[str, Series]] = ({}, {})
    for name, series in log.main.series.items() if log is not None else ():
        is_held_out = _HELD_OUT.match(name) is not None
        sides[is_held_out].setdefault(_SPLIT.sub("", name), series)
    trained, held_out = map(_by_role, sides)
    values = config.values if config is not None else {}
    beta: float | None = None
    # What is stated may be no number.
    with suppress(TypeError, ValueError):
        beta = float(values.get("beta", values.get("dpo_beta")))
    named = values.get("train_mode") or (
        log.notes.header.get("training", "") if log is not None else ""
    )
    words = str(named).lower().replace("-", "_")
    methods = sorted(_OF_PAIRS | _OF_REWARDS, key=len, reverse=True)
    method = next((method for method in methods if method in words), "")
    unit = log.main.unit if log is not None else "iteration"
    return PolicyCurves(method, trained, held_out, beta, unit)


def _by_role(named: Mapping[str, Series]) -> dict[Role, Series]:
    """Role -> its curve; the margin also where only its two terms are printed."""
    roles: dict[Role, Series] = {}
    for role, names in NAMES.items():
        name = next((name for name in names.split() if name in named), None)
        if name is not None:
            scale = 100 if name in _PERCENT else 1
            roles[role] = Series(named[name].iterations, named[name].values / scale)
    chosen, rejected = roles.get("chosen"), roles.get("rejected")
    if "margin" in roles or chosen is None or rejected is None:
        return roles
    if np.array_equal(chosen.iterations, rejected.iterations):
        roles["margin"] = Series(chosen.iterations, chosen.values - rejected.values)
    return roles
