"""A training step of a user's own trainer, made and measured; and the trainer's source."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.kind import Missing, NotThere, Progress, RunView
from mlxdoctor.evidence.source import Source
from mlxdoctor.measure.training_step.trainer import EXPECTED, Trainer, load_trainer
from mlxdoctor.measure.training_step.values import Alignment, Forward, Preferences, State, Update
from mlxdoctor.safety.errors import InputError
from mlxdoctor.safety.stages import Kind, Stage, models_run
from mlxdoctor.safety.user_failure import failure_of, kept_running

NO_TRAINER = "no trainer of your own was named (--trainer FILE:FUNCTION)"
#: Training steps that are made where no number is given: a loss that five of them do not move
#: does not depend on what they change.
STEPS = 5
_ELSEWHERE = (
    "the loss does not depend on the logits that the model gives: it may have another head, or "
    "compute its loss itself"
)
#: Told to `progress`: state, forward, gradient of the logits, steps.
_PHASES = 4


@dataclass(frozen=True, kw_only=True)
class TrainingStep:
    """One training step of a user's own trainer, or of a planned run, measured.

    Attributes:
        forward, update: None where the loss could not be computed; `failure` says why.
        alignment: None where it cannot be read; `unseen` says why.
        preferences: None where nothing in the batch is named as pairs or rewards.
        sees_ahead: share of the positions whose logits depend on the row's last token; None where
            that could not be asked.
        seconds: that the probe took.
        planned: it is a step as `mlx_lm.lora` will make it, and no trainer of the user's own.
    """

    kind: ClassVar[str] = "training step"

    state: State
    forward: Forward | None = None
    alignment: Alignment | None = None
    preferences: Preferences | None = None
    update: Update | None = None
    sees_ahead: float | None = None
    failure: str | None = None
    unseen: str | None = None
    sources: tuple[Source, ...] = ()
    seconds: float = 0.0
    planned: bool = False

    @property
    def is_contrast(self) -> bool:
        """Whether the loss is of answers held against each other, not of tokens."""
        contrasts = self.alignment is not None and self.alignment.contrasts
        return self.preferences is not None or contrasts

    @property
    def policy(self) -> Preferences | None:
        """The rewarded answers; None where there are pairs, or nothing is named."""
        is_policy = self.preferences is not None and self.preferences.reversed is not None
        return self.preferences if is_policy else None

    @property
    def unread(self) -> str:
        """Why there is no alignment, as a clause."""
        return self.unseen or f"the loss cannot be computed: {self.failure}"

    @classmethod
    def find(cls, run: RunView) -> "TrainingStep":
        """A step of the trainer that the user named, which is run for it."""
        if run.options.trainer is None:
            raise NotThere(NO_TRAINER)
        trainer, sources = load_trainer(run.options.trainer)
        if trainer.expect is None and (config := run.get(TrainingConfig)) is not None:
            kind = config.fine_tune_type
            trainer = replace(trainer, expect=kind if kind in EXPECTED else None)
        return measure(trainer, sources=sources, progress=run.progress)


def measure(
    trainer: Trainer,
    *,
    steps: int = STEPS,
    sources: Sequence[Source] = (),
    progress: Progress | None = None,
) -> TrainingStep:
    """Make training steps, measure them, and hand the model back as it was.

    Raises:
        InputError: the loss cannot be called with the model, or the user's code ends the program.
    """
    # It loads MLX, which most diagnoses do without.
    from mlxdoctor.measure.training_step.calls import require_module

    require_module(trainer.model)
    begun = time.perf_counter()
    models_run()
    stage = Stage("the training step", Kind.CODE)
    with stage, kept_running(stage.name):
        measured = _measured(trainer, steps, progress or (lambda *_: None))
    return replace(measured, sources=tuple(sources), seconds=time.perf_counter() - begun)


def _measured(trainer: Trainer, steps: int, tell: Progress) -> TrainingStep:
    from mlxdoctor.measure.training_step.calls import as_called
    from mlxdoctor.measure.training_step.logits import align, gradients_of, is_nonzero, sees_ahead
    from mlxdoctor.measure.training_step.preferences import pairs_in, policy_in
    from mlxdoctor.measure.training_step.state import handed_back, read_state
    from mlxdoctor.measure.training_step.steps import evaluating, forward_pass, make_steps

    model = trainer.model
    loss = as_called(trainer.loss_fn, trainer.batch)
    tell("reading the model", 0, _PHASES)
    step = TrainingStep(state=read_state(model, trainer.expect))
    with handed_back(model, trainer.optimizer):
        # Dropout off: what is measured is the loss, not the noise.
        with evaluating(model):
            tell("making a forward pass", 1, _PHASES)
            try:
                forward = forward_pass(loss, model)
            except InputError:
                raise
            except Exception as error:  # a user's code may raise anything
                return replace(step, failure=failure_of(error).sentence)
            tell("taking the gradient", 2, _PHASES)
            step, failed = replace(step, forward=forward), None
            gradients: Mapping[str, Any] = {}
            try:
                calls, gradients = gradients_of(loss, model)
                alignment = align(calls, trainer.tokenizer)
                if not alignment.trained.any() and any(map(is_nonzero, gradients.values())):
                    raise Missing(_ELSEWHERE)
                pairs = pairs_in(trainer, alignment)
                preferences = pairs or policy_in(trainer, calls, alignment)
                step = replace(step, alignment=alignment, preferences=preferences)
                step = replace(step, sees_ahead=sees_ahead(model, calls))
            except InputError:
                raise
            except Missing as error:
                step = replace(step, unseen=str(error))
            except Exception as error:  # a user's code may raise anything
                failed = failure_of(error)
                step = replace(step, unseen=f"the gradient cannot be taken: {failed.what}")
        tell("making training steps", 3, _PHASES)
        update = make_steps(trainer, steps, forward.loss, gradients, failed)
        return replace(step, update=update)
