"""A training step of a user's own trainer, made and measured; and the trainer's source."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.kind import NotThere, Progress, RunView
from mlxdoctor.evidence.source import Source
from mlxdoctor.measure.training_step.phases import Measured
from mlxdoctor.measure.training_step.trainer import EXPECTED, Trainer, load_trainer
from mlxdoctor.safety.stages import Kind, Stage, models_run
from mlxdoctor.safety.user_failure import kept_running, put_back

NO_TRAINER = "no trainer was named; name yours with --trainer FILE:FUNCTION"
#: Training steps that are made where no number is given: a loss that five of them do not move
#: does not depend on what they change.
STEPS = 5


@dataclass(frozen=True, kw_only=True)
class TrainingStep(Measured):
    """One training step of a user's own trainer, or of a planned run, measured.

    Attributes:
        sources: the file it was taken from; empty when probed from Python.
        seconds: that the probe took.
        planned: whether it is a step as `mlx_lm.lora` will make it from a configuration, and
            no trainer of the user's own.
    """

    kind: ClassVar[str] = "training step"

    sources: tuple[Source, ...] = ()
    seconds: float = 0.0
    planned: bool = False

    @classmethod
    def find(cls, run: RunView) -> TrainingStep:
        """A step of the trainer that the user named, which is run for it; see `Evidence`."""
        if run.options.trainer is None:
            raise NotThere(NO_TRAINER)
        trainer, sources = load_trainer(run.options.trainer)
        if trainer.expect is None:
            trainer = replace(trainer, expect=_expected(run.get(TrainingConfig)))
        return measure(trainer, sources=sources, progress=run.progress)


def _expected(config: TrainingConfig | None) -> str | None:
    """What a run's configuration says is trained; None where it does not say."""
    if config is None or (config.origin == "own" and "fine_tune_type" not in config.values):
        return None
    return config.fine_tune_type if config.fine_tune_type in EXPECTED else None


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
        if run.options.trainer is None:
            raise NotThere(NO_TRAINER)
        return cls(run.need(TrainingStep).sources)


def measure(
    trainer: Trainer,
    *,
    steps: int = STEPS,
    sources: Sequence[Source] = (),
    progress: Progress | None = None,
) -> TrainingStep:
    """Make a training step, measure it, and hand the model back as it was.

    Args:
        steps: training steps to make.
        sources: the files that the trainer was taken from.
        progress: called phase by phase.

    Raises:
        InputError: the model is no MLX module, the loss cannot be called with it, or code of
            the user's ends the program.
    """
    # They load MLX, which most diagnoses do without.
    from mlxdoctor.measure.training_step.calls import require_module
    from mlxdoctor.measure.training_step.phase_order import run_phases

    require_module(trainer.model)
    begun = time.perf_counter()
    models_run()
    stage = Stage("the training step", Kind.CODE)
    with stage, kept_running(stage.name), put_back():
        measured = run_phases(trainer, steps, progress or (lambda *_: None))
    seconds = time.perf_counter() - begun
    return TrainingStep(**vars(measured), sources=tuple(sources), seconds=seconds)
