"""What the bugs of trainers other than mlx-lm leave behind in a run's files."""

from __future__ import annotations

from mlxdoctor.bugs.sightings import Artifacts, Sighting
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.finding import Severity

#: `train_mode` of mlx-lm-lora, and its coefficient of the KL term where none is given.
_REINFORCE, _BETA = "rlhf_reinforce", 0.1


def is_reinforce(config: TrainingConfig) -> bool:
    """Whether mlx-lm-lora was told to train by REINFORCE."""
    return config.values.get("train_mode") == _REINFORCE


def reinforce_advantage(run: Artifacts) -> Sighting | None:
    """A configuration of mlx-lm-lora's REINFORCE whose KL term is not switched off."""
    if run.config is None or not is_reinforce(run.config):
        return None
    stated = run.config.values.get("beta", _BETA)
    beta = float(stated) if isinstance(stated, int | float) else _BETA
    if not beta:
        return None
    return Sighting(
        Severity.WARNING,
        f"mlx-lm-lora trained this in mode {_REINFORCE} with beta {beta:g}: its advantage keeps "
        "the gradient of the KL term, which makes answers likelier whatever their reward.",
        {"beta": beta},
        where="train_mode",
    )
