"""What a planned run's own steps show: the first one measured, and some timed. Imports MLX."""

import time
from dataclasses import replace

import mlx.core as mx

from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.kind import Progress
from mlxdoctor.measure.training_step.measurement import TrainingStep, measure
from mlxdoctor.measure.training_step.trainer import Trainer
from mlxdoctor.twin.predict import Timed
from mlxdoctor.twin.prepared import Prepared, prepared
from mlxdoctor.twin.settings import TABLE, Settings
from mlxdoctor.twin.step import build_optimizer
from mlxdoctor.twin.trials import trials_of

#: Updates that are timed, each twice: where a shape is new, it is compiled.
TIMED = 8


def prepared_run(config: TrainingConfig) -> Prepared:
    """A run as it stands before its first step: model, adapter, rows and loss.

    Without a table of ours it is prepared as `mlx_lm.lora` trains it, on the installed
    mlx-lm's own loss. MLX's global random generator is seeded, as it is by the run.
    """
    settings = Settings.from_values(config.values, config.path)
    if TABLE not in config.values:
        settings = replace(settings, mode="parity")
    return prepared(settings)


def first_step(run: Prepared, progress: Progress | None = None) -> TrainingStep:
    """Make the first steps of a run and measure them; the model is put back as it was."""
    batch = run.first_batches(1)[0]
    # As the probe takes a user's trainer.
    trainer = Trainer(
        run.model,
        run.parts.loss,
        (mx.array(batch.tokens), mx.array(batch.spans)),
        build_optimizer(run.settings),
        run.tokenizer,
        expect=run.settings.fine_tune_type,
    )
    return replace(measure(trainer, progress=progress), planned=not run.settings.is_exact)


def timed(run: Prepared, seconds: float) -> Timed:
    """Make updates that change nothing for about so many seconds; the model stays as it was."""
    until = time.perf_counter() + seconds

    def is_late() -> bool:
        return time.perf_counter() > until

    trials = trials_of(run, TIMED)
    for _ in range(2):
        trials.at(0.0, TIMED, trials.held_means, is_late=is_late)
    longest = None if is_late() else trials.longest()
    return Timed(tuple(trials.trained), tuple(trials.validated), longest)
