"""Planned runs: a sound one, and one small enough to be tried in a moment."""

from pathlib import Path
from typing import Any

import yaml

from mlxdoctor.twin.prepared import Prepared, prepared
from mlxdoctor.twin.token_rows import TokenRows
from tests.conftest import FIXTURES
from tests.twin.small import row, small_parts, small_settings

#: A sound plan on the fixture base; where its adapter goes is still to be said.
SOUND: dict[str, Any] = {
    "model": str(FIXTURES / "base"),
    "data": str(FIXTURES / "data" / "geography"),
    "num_layers": 4,
    "iters": 400,
    "learning_rate": 3e-4,
    "max_seq_length": 256,
}


def written(folder: Path, name: str = "lora", **changes: Any) -> Path:
    """The sound plan in a file, but for what is named; None takes a key away."""
    values = {**SOUND, "adapter_path": str(folder / "adapters"), **changes}
    text = yaml.safe_dump({key: value for key, value in values.items() if value is not None})
    path = folder / f"{name}.yaml"
    path.write_text(f"# ours\n{text}")
    return path


def small_run(folder: Path, **values: Any) -> Prepared:
    """The small model with an adapter, as mlx-lm would train it, on rows with a frequency."""
    from mlx_lm.tuner.trainer import default_loss

    settings = small_settings(folder, **{"mlxdoctor": {"mode": "parity"}, **values})
    train = tuple(row(10 + seed % 7, 0, seed) for seed in range(40))
    valid = tuple(row(12, 0, 100 + seed) for seed in range(16))
    rows = TokenRows(train, valid, ())
    return prepared(settings, small_parts(settings, rows=rows, loss=default_loss))
