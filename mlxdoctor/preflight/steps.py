"""What a planned run's own steps show: the first one measured, and some timed. Imports MLX."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count

import mlx.core as mx

from mlxdoctor.evidence.kind import Progress
from mlxdoctor.measure.training_step.measurement import TrainingStep, measure
from mlxdoctor.measure.training_step.trainer import Trainer
from mlxdoctor.twin.batches import Batch
from mlxdoctor.twin.loop import stepper
from mlxdoctor.twin.masked_loss import losses_of
from mlxdoctor.twin.predict import Timed, TimedBatch
from mlxdoctor.twin.prepared import Prepared
from mlxdoctor.twin.step import build_optimizer

#: Updates, and batches of a validation, that are timed, each twice: a new shape is compiled.
TIMED, HELD = 8, 8


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
    """Make updates at a rate of 0 for about so many seconds: they leave the model as it was."""
    until = time.perf_counter() + seconds
    optimizer = build_optimizer(replace(run.settings, lr_schedule=None, learning_rate=0.0))
    optimizer.init(run.model.trainable_parameters())
    take, each, number = stepper(run, optimizer), run.settings.grad_accumulation_steps, count(1)

    def train(batch: Batch) -> None:
        take(batch, next(number) % each == 0)

    def validate(batch: Batch) -> None:
        losses_of(run.model, [batch], run.parts.loss)

    batches = run.first_batches(TIMED * each + HELD)
    # Of validation rows, or where those make none, of the training rows that come after.
    held, trained = batches[TIMED * each :], batches[: TIMED * each]
    if len(run.rows.valid) >= run.settings.batch_size:
        held = list(run.parts.batches(run.settings).evaluation(run.rows.valid, HELD))
    run.model.train()
    return Timed(_timed(train, trained, until), _timed(validate, held, until))


def _timed(
    compute: Callable[[Batch], None], batches: Sequence[Batch], until: float
) -> tuple[TimedBatch, ...]:
    """What each batch took, but for the first of its shape, which is compiled."""
    compiled, timed = set(), []
    for _ in range(2):
        for batch in batches:
            begun = time.perf_counter()
            compute(batch)
            now = time.perf_counter()
            rows, width = batch.tokens.shape
            if (rows, width) in compiled:
                timed.append(TimedBatch(rows, max(width - 1, 1), now - begun))
            compiled.add((rows, width))
            if now > until:
                break
    return tuple(timed)
