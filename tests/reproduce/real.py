"""Short real runs for the tests of experiments."""

from pathlib import Path
from typing import Any

from mlxdoctor.twin import Settings, train
from tests.conftest import FIXTURES

BASE, DATA = FIXTURES / "base", FIXTURES / "data" / "geography"
#: Sound settings for the fixture base, with every key stated that a test changes.
SOUND: dict[str, Any] = {
    "model": str(BASE),
    "data": str(DATA),
    "num_layers": -1,
    "batch_size": 4,
    "iters": 40,
    "learning_rate": 3e-4,
    "lora_parameters": {"rank": 8, "dropout": 0.0, "scale": 20.0},
    "max_seq_length": 256,
    "val_batches": 2,
    "steps_per_report": 10,
    "steps_per_eval": 40,
    "save_every": 40,
    "mlxdoctor": {"mode": "parity"},
}


def settings(folder: Path, **changes: Any) -> Settings:
    """Settings of a run that writes into `folder`; keys of `lora_parameters` by their name."""
    lora = {key: changes.pop(key) for key in ("rank", "scale", "dropout") if key in changes}
    values = {**SOUND, **changes, "adapter_path": str(folder)}
    values["lora_parameters"] = {**SOUND["lora_parameters"], **lora}
    return Settings.from_values(values)


def trained(folder: Path, **changes: Any) -> Path:
    """A run with these settings, trained now; its folder."""
    train(settings(folder, **changes))
    return folder
