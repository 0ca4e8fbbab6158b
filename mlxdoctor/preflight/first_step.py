"""The first training step of a planned run, measured as the probe measures a user's trainer.

The parts are the run's own: its model with its adapter, its first batch of rows, the loss of the
mlx-lm that is installed, and its optimizer. What comes out is what `--trainer` gives, so that the
same checks judge it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import mlx.core as mx

from mlxdoctor.evidence.kind import Progress
from mlxdoctor.evidence.source import Source
from mlxdoctor.measure.training_step.measurement import STEPS, TrainingStep, measure
from mlxdoctor.measure.training_step.trainer import Trainer
from mlxdoctor.preflight.prepared import PreparedRun, prepared_run
from mlxdoctor.train.settings import Settings
from mlxdoctor.train.step import build_optimizer


def trainer_of(run: PreparedRun) -> Trainer:
    """The parts of a run's first step, as the probe takes them.

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


def first_step(
    settings: Settings | PreparedRun,
    *,
    steps: int = STEPS,
    sources: Sequence[Source] = (),
    progress: Progress | None = None,
) -> TrainingStep:
    """Make the first steps of a run and measure them; the model is put back as it was.

    Args:
        settings: the run's; or the run, prepared.
        steps: training steps to make, all on the run's first batch.
        sources: the files that the settings were taken from.
        progress: called phase by phase.

    Raises:
        InputError: the model, the data or a setting is unusable.
    """
    run = settings if isinstance(settings, PreparedRun) else prepared_run(settings)
    measured = measure(trainer_of(run), steps=steps, sources=sources, progress=progress)
    return replace(measured, planned=not run.settings.is_exact)
