"""Short real runs for the tests of experiments."""

from pathlib import Path
from typing import Any

from fixtures.lab.cases.training import settings_of
from fixtures.lab.cases.workshop import SOUND
from mlxdoctor.twin import Settings, train

#: What is longer here than in the lab's sound settings.
LONGER: dict[str, Any] = {
    **{"batch_size": 4, "iters": 40, "steps_per_report": 10},
    **{"steps_per_eval": 40, "save_every": 40},
}


def settings(folder: Path, **changes: Any) -> Settings:
    """Settings of a run that writes into `folder`; keys of `lora_parameters` by their name."""
    lora = {key: changes.pop(key) for key in ("rank", "scale", "dropout", "keys") if key in changes}
    lora = {**SOUND["lora_parameters"], **lora}
    return settings_of(folder, **{**LONGER, "lora_parameters": lora, **changes})


def trained(folder: Path, **changes: Any) -> Path:
    """A run with these settings, trained now; its folder."""
    train(settings(folder, **changes))
    return folder
