"""A training step of a user's own trainer, made and measured; and the trainer's source."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from mlxdoctor.evidence.kind import NotThere, Progress, RunView
from mlxdoctor.evidence.source import Source
from mlxdoctor.measure.training_step.phases import Alignment, Forward, State, Update
from mlxdoctor.measure.training_step.trainer import Trainer, load_trainer
from mlxdoctor.safety.errors import InputError
from mlxdoctor.safety.quoting import MAX_LINE, quoted

NO_TRAINER = "no trainer was named; name yours with --trainer FILE:FUNCTION"
#: Told to `progress`: state, forward, alignment, gradients, update.
PHASES = 5


@dataclass(frozen=True)
class TrainingStep:
    """One training step of a user's own trainer, measured.

    Attributes:
        sources: the file it was taken from; empty when probed from Python.
        forward: None where the loss could not be computed; `failure` says why.
        alignment: None where the loss never called the model on tokens; `unseen` says why.
        seconds: that the probe took.
    """

    kind: ClassVar[str] = "training step"

    sources: tuple[Source, ...]
    state: State
    forward: Forward | None
    alignment: Alignment | None
    update: Update | None
    failure: str | None = None
    unseen: str | None = None
    seconds: float = 0.0

    @classmethod
    def find(cls, run: RunView) -> TrainingStep:
        """A step of the trainer that the user named, which is run for it; see `Evidence`."""
        if run.trainer is None:
            raise NotThere(NO_TRAINER)
        trainer, sources = load_trainer(run.trainer)
        return measure(trainer, sources=sources, progress=run.progress)


@dataclass(frozen=True)
class TrainerSource:
    """The Python file that a trainer was named in.

    Attributes:
        sources: the file.
    """

    kind: ClassVar[str] = "trainer source"

    sources: tuple[Source, ...]

    @classmethod
    def find(cls, run: RunView) -> TrainerSource:
        """The file, where the trainer could be loaded from it; see `Evidence`."""
        if run.trainer is None:
            raise NotThere(NO_TRAINER)
        return cls(run.need(TrainingStep).sources)


def measure(
    trainer: Trainer,
    *,
    steps: int = 2,
    sources: Sequence[Source] = (),
    progress: Progress | None = None,
) -> TrainingStep:
    """Make a training step, measure it, and hand the model back as it was.

    Args:
        steps: training steps to make.
        sources: the files that the trainer was taken from.
        progress: called phase by phase.

    Raises:
        InputError: the model is no MLX module, or the loss cannot be called with it.
    """
    # They load MLX, which most diagnoses do without.
    from mlxdoctor.measure.training_step.alignment import align
    from mlxdoctor.measure.training_step.calls import as_called, bound, heard, require_module
    from mlxdoctor.measure.training_step.forward_pass import forward_pass, uncompiled
    from mlxdoctor.measure.training_step.state import handed_back, read_state
    from mlxdoctor.measure.training_step.steps import make_steps

    model, batch = trainer.model, trainer.batch
    require_module(model)
    begun = time.perf_counter()
    loss = as_called(trainer.loss_fn, model, batch)
    own = None if trainer.step is None else bound(trainer.step, model, batch)
    tell = progress or (lambda *_: None)
    tell("reading the model", 0, PHASES)
    result = TrainingStep(tuple(sources), read_state(model), None, None, None)
    with handed_back(model, trainer.optimizer):
        was_training = model.training
        # Dropout off: what is measured is the loss, not the noise.
        model.eval()
        try:
            with uncompiled(), heard(model) as calls:
                tell("making a forward pass", 1, PHASES)
                result = replace(result, forward=forward_pass(loss, model, calls))
                tell("reading the gradient of the logits", 2, PHASES)
                alignment, unseen = align(loss, model, calls, trainer.tokenizer)
        except InputError:
            raise
        except Exception as error:  # a user's code may raise anything
            failure = f"{type(error).__name__}: {quoted(str(error), MAX_LINE)}"
            return replace(result, failure=failure, seconds=time.perf_counter() - begun)
        result = replace(result, alignment=alignment, unseen=unseen)
        model.train(was_training)
        tell("making training steps", 3, PHASES)
        update = make_steps(
            loss, model, trainer.optimizer, None if own is None else lambda: own(model), steps
        )
    return replace(result, update=update, seconds=time.perf_counter() - begun)
