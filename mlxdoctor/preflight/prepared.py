"""A run as it stands before its first step: model, adapter, rows and loss, as mlx-lm has them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import mlx.core as mx

from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.kind import Progress
from mlxdoctor.measure.training_step.measurement import TrainingStep, measure
from mlxdoctor.measure.training_step.trainer import Trainer
from mlxdoctor.safety.errors import InputError
from mlxdoctor.train.attach import load_base, prepare
from mlxdoctor.train.batches import Batch, exact_batches, parity_batches
from mlxdoctor.train.masked_loss import LossFunction, exact_loss
from mlxdoctor.train.settings import TABLE, Settings
from mlxdoctor.train.step import build_optimizer
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


def prepared_run(config: TrainingConfig) -> PreparedRun:
    """Load the model, encode the rows, and attach the adapter as the run will.

    Without a table of ours it is prepared as `mlx_lm.lora` trains it. MLX's global random
    generator is seeded, as it is by the run.

    Raises:
        InputError: the model, the data or a setting is unusable, or there are no rows.
    """
    settings = Settings.from_values(config.values, config.path)
    if TABLE not in config.values:
        settings = replace(settings, mode="parity")
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


def trainer_of(run: PreparedRun) -> Trainer:
    """The parts of a run's first step, as the probe takes a user's trainer.

    Raises:
        InputError: there are fewer rows than a batch has, or the schedule is unusable.
    """
    batch = run.batches(1)[0]
    return Trainer(
        run.model,
        run.loss,
        (mx.array(batch.tokens), mx.array(batch.spans)),
        build_optimizer(run.settings),
        run.tokenizer,
        expect=run.settings.fine_tune_type,
    )


def first_step(run: PreparedRun, progress: Progress | None = None) -> TrainingStep:
    """Make the first steps of a run and measure them; the model is put back as it was."""
    measured = measure(trainer_of(run), progress=progress)
    return replace(measured, planned=not run.settings.is_exact)
