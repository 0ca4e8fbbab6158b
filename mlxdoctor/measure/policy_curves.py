"""What a log of preference or reward training measures, by its role, whatever it is called."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.logs.metric_names import ROLES, without_mean
from mlxdoctor.evidence.training_log import Series, TrainingLog

#: What is printed as a percentage, of what stands here as a share of one.
_PERCENT = frozenset({"hit_limit"})
_HELD_OUT = re.compile(r"^(?:val|valid|validation|eval|test)_(?=.)")
_SPLIT = re.compile(rf"{_HELD_OUT.pattern}|^train_(?=.)")
#: Methods that compare the pairs of a data set.
_OF_PAIRS = frozenset({"dpo", "kto", "ipo", "xpo", "bco", "orpo", "cpo", "simpo", "dsla", "ftpo"})
#: Methods that sample answers and reward them.
_OF_REWARDS = frozenset({"grpo", "rloo", "ppo", "reinforce", "klpo", "dapo"})


@dataclass(frozen=True)
class PolicyCurves:
    """The curves of a run that was trained on preferences or rewards.

    Attributes:
        method: "dpo", "orpo", "grpo", ...; empty where neither log nor configuration names it.
        series: role, after `held_out_` on held-out rows -> its finite values.
    """

    method: str
    series: Mapping[str, Series]

    @property
    def of_pairs(self) -> bool:
        """Whether the method, where it is known, compares the pairs of a data set."""
        return self.method in _OF_PAIRS

    @property
    def samples(self) -> bool:
        """Whether answers are generated and rewarded: GRPO, PPO and their like."""
        has_rewards = bool(self.series.keys() & {"reward", "spread"})
        return self.method in _OF_REWARDS or (has_rewards and not self.of_pairs)

    @property
    def rewards_unseen(self) -> bool:
        """Whether answers are rewarded, and the log does not say how much."""
        return self.samples and "reward" not in self.series


def policy_curves(log: TrainingLog | None, config: TrainingConfig | None = None) -> PolicyCurves:
    """The curves of the log's main segment."""
    printed: dict[str, dict[str, Series]] = {"": {}, "held_out_": {}}
    for name, series in log.main.series.items() if log is not None else ():
        split = "held_out_" if _HELD_OUT.match(name) else ""
        printed[split].setdefault(_SPLIT.sub("", name), series.finite)
    named = config.values.get("train_mode") if config is not None else None
    if not named and log is not None:
        named = log.notes.header.get("training")
    words = str(named).lower().replace("-", "_")
    if any("odds_ratio" in name for name in printed[""]):
        words += " orpo"
    return PolicyCurves(
        next((method for method in _OF_PAIRS | _OF_REWARDS if method in words), ""),
        {
            split + role: series
            for split, columns in printed.items()
            for role, series in _by_role(columns).items()
            if len(series)
        },
    )


def _by_role(printed: Mapping[str, Series]) -> dict[str, Series]:
    """Role -> its curve; the margin also where only its two terms are printed."""
    roles: dict[str, Series] = {}
    printed = {**{without_mean(name): series for name, series in printed.items()}, **printed}
    for role, names in ROLES.items():
        name = next((name for name in names if name in printed), None)
        if name is not None:
            scale = 100 if name in _PERCENT else 1
            roles[role] = Series(printed[name].iterations, printed[name].values / scale)
    chosen, rejected = roles.get("chosen"), roles.get("rejected")
    if "margin" in roles or chosen is None or rejected is None:
        return roles
    if np.array_equal(chosen.iterations, rejected.iterations):
        roles["margin"] = Series(chosen.iterations, chosen.values - rejected.values)
    return roles
