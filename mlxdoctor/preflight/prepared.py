"""A run as it stands before its first step: model, adapter, rows and loss, as mlx-lm has them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.safety.errors import InputError
from mlxdoctor.train.attach import load_base, prepare
from mlxdoctor.train.batches import Batch, exact_batches, parity_batches
from mlxdoctor.train.masked_loss import LossFunction, exact_loss
from mlxdoctor.train.settings import TABLE, Settings
from mlxdoctor.train.token_rows import TokenRows, encode, encode_supervised


@dataclass(frozen=True)
class PreparedRun:
    """What a run begins with.

    Attributes:
        settings: the run's, in the mode in which it will be trained.
        model: with its adapter attached, at its start.
        tokenizer: as mlx-lm loads it.
        rows: the three splits, encoded by mlx-lm.
        loss: the installed mlx-lm's own, where mlx-lm is to train.
    """

    settings: Settings
    model: Any
    tokenizer: Any
    rows: TokenRows
    loss: LossFunction

    def batches(self, count: int) -> list[Batch]:
        """The first training batches of the run, in its own order.

        Raises:
            InputError: there are fewer rows than a batch has.
        """
        make = exact_batches if self.settings.is_exact else parity_batches
        return list(islice(make(self.settings).train(self.rows.train), count))

    def held_out(self, count: int) -> list[Batch]:
        """Batches of validation rows, always the same; none where the run has too few."""
        make = exact_batches if self.settings.is_exact else parity_batches
        if len(self.rows.valid) < self.settings.batch_size:
            return []
        return list(make(self.settings).evaluation(self.rows.valid, count))


def settings_of(config: TrainingConfig) -> Settings:
    """The settings of a configuration; without a table of ours, as `mlx_lm.lora` trains it.

    Raises:
        InputError: a key is unknown, or a value has the wrong type or is out of range.
    """
    settings = Settings.from_values(config.values, config.path)
    if TABLE in config.values:
        return settings
    return replace(settings, mode="parity")


def prepared_run(settings: Settings) -> PreparedRun:
    """Load the model, encode the rows, and attach the adapter as the run will.

    MLX's global random generator is seeded, as it is by the run.

    Raises:
        InputError: the model, the data or a setting is unusable, or there are no rows.
    """
    model, tokenizer = load_base(settings)
    is_exact = settings.is_exact
    rows = (encode_supervised if is_exact else encode)(settings, tokenizer)
    if not rows.train:
        raise InputError(Path(settings.data), "has no training rows")
    prepare(model, settings)
    return PreparedRun(settings, model, tokenizer, rows, exact_loss if is_exact else own_loss())


def own_loss() -> LossFunction:
    """The loss that the installed mlx-lm trains on."""
    from mlx_lm.tuner.trainer import default_loss

    loss: LossFunction = default_loss
    return loss
