"""A planned run small enough to be tried in a moment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mlxdoctor.preflight.prepared import PreparedRun
from mlxdoctor.train.token_rows import TokenRows
from tests.train.small import row, small_model, small_settings


def small_run(folder: Path, **values: Any) -> PreparedRun:
    """The small model with an adapter, as mlx-lm would train it, on rows with a frequency."""
    from mlxdoctor.preflight.prepared import own_loss
    from mlxdoctor.train.attach import prepare

    settings = small_settings(folder, **{"mlxdoctor": {"mode": "parity"}, **values})
    model = small_model()
    prepare(model, settings)
    train = tuple(row(10 + seed % 7, 0, seed) for seed in range(40))
    valid = tuple(row(12, 0, 100 + seed) for seed in range(16))
    return PreparedRun(settings, model, None, TokenRows(train, valid, ()), own_loss())
