"""The phases of a probe, one after the other, each in the model that the last one left."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import mlx.core as mx

from mlxdoctor.evidence.kind import Progress
from mlxdoctor.measure.training_step.alignment import Passes, align, passes_of
from mlxdoctor.measure.training_step.calls import Calls, as_called, bound, heard
from mlxdoctor.measure.training_step.forward_pass import forward_pass, uncompiled
from mlxdoctor.measure.training_step.packing import crosses_borders
from mlxdoctor.measure.training_step.phases import Measured
from mlxdoctor.measure.training_step.preferences import (
    read_pairs,
    read_policy,
    read_reference,
    scores_of,
    with_moves,
)
from mlxdoctor.measure.training_step.state import handed_back, read_state
from mlxdoctor.measure.training_step.steps import make_steps
from mlxdoctor.measure.training_step.trainer import Trainer
from mlxdoctor.safety.errors import InputError
from mlxdoctor.safety.user_failure import failure_of

#: Told to `progress`: state, forward, alignment, steps, and the end.
PHASES = 4

Loss = Callable[[Any], mx.array]


def run_phases(trainer: Trainer, steps: int, tell: Progress) -> Measured:
    """State, forward, gradient of the logits, training steps; then the model is put back.

    Args:
        steps: how many training steps to make.
        tell: called phase by phase.

    Raises:
        InputError: the loss cannot be called with the model.
    """
    model = trainer.model
    loss = as_called(trainer.loss_fn, model, trainer.batch)
    own = None if trainer.step is None else bound(trainer.step, model, trainer.batch)
    tell("reading the model", 0, PHASES)
    result = Measured(state=replace(read_state(model), expect=trainer.expect))
    with handed_back(model, trainer.optimizer):
        was_training = model.training
        # Dropout off: what is measured is the loss, not the noise.
        model.eval()
        try:
            with uncompiled(), heard(model) as calls:
                tell("making a forward pass", 1, PHASES)
                result = replace(result, forward=forward_pass(loss, model, calls))
                tell("reading the gradient of the logits", 2, PHASES)
                passes, before = Passes((), (), ()), scores_of(calls)
                try:
                    passes = passes_of(loss, model, calls)
                except Exception as error:  # a user's code may raise anything
                    # The steps say the same of the parameters' gradient.
                    unseen = f"the gradient cannot be taken: {failure_of(error).what}"
                    result = replace(result, unseen=unseen)
                else:
                    result = _read(result, trainer, loss, calls, passes)
                    result = replace(result, reference=read_reference(passes, before))
        except InputError:
            raise
        except Exception as error:  # a user's code may raise anything
            failure = failure_of(error)
            return replace(result, failure=failure.sentence, frames=failure.frames)
        model.train(was_training)
        tell("making training steps", 3, PHASES)
        step = None if own is None else partial(own, model)
        update = make_steps(loss, model, trainer.optimizer, step, steps)
        result = replace(result, update=update)
        if result.reference is not None and update.error is None:
            model.eval()
            with uncompiled(), heard(model) as calls:
                loss(model)
                moved = with_moves(result.reference, passes, before, scores_of(calls))
            result = replace(result, reference=moved)
    return result


def _read(result: Measured, trainer: Trainer, loss: Loss, calls: Calls, passes: Passes) -> Measured:
    """What the gradient of the logits tells of rows, pairs and rewards."""
    alignment, unseen = align(passes, trainer.tokenizer)
    result = replace(result, alignment=alignment, unseen=unseen)
    if alignment is None:
        return result
    model = trainer.model
    return replace(
        result,
        pairs=read_pairs(trainer, passes, alignment),
        policy=read_policy(trainer, model, calls, passes, alignment),
        crosses=crosses_borders(loss, model, calls, passes, alignment),
    )
