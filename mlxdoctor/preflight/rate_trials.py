"""Short trainings from one and the same start, each at one rate."""

from __future__ import annotations

import math
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten, tree_map

from mlxdoctor.measure.rate_range import LongestStep, StepCost
from mlxdoctor.measure.training_step.state import handed_back, restore_random
from mlxdoctor.preflight.prepared import PreparedRun
from mlxdoctor.train.attach import recomputed_activations
from mlxdoctor.train.batches import Batch
from mlxdoctor.train.masked_loss import scalar
from mlxdoctor.train.step import Step, build_optimizer, compile_step

#: A trial is given up where, after so many updates, ...
WAITED = 10
#: ... the losses of the last of them are all above the untouched model's on the same batches.
RECENT = 6
#: Fixed batches that let a change be told from their differences, at least.
FEWEST_HELD = 3


@dataclass(frozen=True)
class Trial:
    """A short training at one rate.

    Attributes:
        rate: of every update.
        losses: of each update's batches before the update, nats a token.
        held: each fixed batch's loss after the last update, nats a token; empty where the
            last loss was not finite, or nothing was to be measured.
        seconds: that it took.
    """

    rate: float
    losses: tuple[float, ...]
    held: tuple[float, ...]
    seconds: float


@dataclass(frozen=True)
class Trials:
    """What trials are made with; see `trials_of`.

    Attributes:
        updates: the batches of each update.
        held: the fixed batches.
        of_validation: whether these are of validation rows, and not of training rows.
        costs: what every batch took so far.
        validated: what every fixed batch took, each time that it was measured.
    """

    run: PreparedRun
    updates: Sequence[Sequence[Batch]]
    held: Sequence[Batch]
    of_validation: bool
    optimizer: Any
    step: Step
    start: Any
    state: Any
    key: mx.array
    costs: list[StepCost] = field(default_factory=list)
    validated: list[StepCost] = field(default_factory=list)

    def at(
        self,
        rate: float,
        *,
        updates: int | None = None,
        untouched: Sequence[float] = (),
        reverse: bool = False,
        measure: bool = True,
    ) -> Trial:
        """Train at a rate from the start, then go back to it.

        Args:
            updates: how many; all there are where it is not said.
            untouched: the untouched model's losses of these updates' batches. Where they are
                given, no more updates are made once these are hopeless: see `is_hopeless`.
            reverse: take these updates' batches in reverse order.
            measure: whether to measure the fixed batches at the end.
        """
        begun = time.perf_counter()
        self.restore()
        self.optimizer.learning_rate = rate
        self.run.model.train()
        losses: list[float] = []
        order = list(range(updates or len(self.updates)))
        for at in reversed(order) if reverse else order:
            losses.append(self._update(self.updates[at]))
            before = untouched[::-1] if reverse else untouched
            if is_hopeless(losses, before[: len(losses)]):
                break
        is_measured = measure and math.isfinite(losses[-1])
        held = tuple(one for one, _ in self.held_losses()) if is_measured else ()
        self.restore()
        return Trial(rate, tuple(losses), held, time.perf_counter() - begun)

    def held_losses(self) -> Iterator[tuple[float, float]]:
        """The loss of each fixed batch, nats a token, and its supervised tokens."""
        self.run.model.eval()
        for batch in self.held:
            begun = time.perf_counter()
            mean, count = self.run.loss(
                self.run.model, mx.array(batch.tokens), mx.array(batch.spans)
            )
            mx.eval(mean, count)
            self.validated.append(_cost(batch, time.perf_counter() - begun, self.validated))
            yield scalar(mean), scalar(count)

    def restore(self) -> None:
        """Put parameters, optimizer and random state back to the start."""
        self.run.model.update(self.start)
        # In place: the compiled step looks into these very containers.
        self.optimizer.state.clear()
        self.optimizer.state.update(tree_map(lambda one: one, self.state))
        restore_random(self.key)

    def longest(self) -> LongestStep:
        """Make a step on the longest batch of a pass over the training rows, and undo it."""
        rows, size = self.run.rows.train, self.run.settings.batch_size
        batch = max(self.run.batches(max(len(rows) // size, 1)), key=lambda one: one.tokens.size)
        self.restore()
        self.optimizer.learning_rate = 0.0
        self.run.model.train()
        mx.clear_cache()
        mx.reset_peak_memory()
        begun = time.perf_counter()
        self._update([batch])
        seconds = time.perf_counter() - begun
        peak = mx.get_peak_memory()
        self.restore()
        height, width = batch.tokens.shape
        kept = sum(one.nbytes for _, one in tree_flatten([self.start, self.state]))
        return LongestStep(height, width, seconds, peak, kept)

    def _update(self, batches: Sequence[Batch]) -> float:
        accumulated, total = None, 0.0
        model = self.run.model
        for number, batch in enumerate(batches, 1):
            begun = time.perf_counter()
            is_update = number == len(batches)
            output = self.step(
                mx.array(batch.tokens), mx.array(batch.spans), accumulated, is_update
            )
            mx.eval(model.state, self.optimizer.state, mx.random.state, output)
            if mx.get_cache_memory() > self.run.settings.clear_cache_threshold:
                mx.clear_cache()
            accumulated = output.accumulated
            total += scalar(output.loss)
            self.costs.append(_cost(batch, time.perf_counter() - begun, self.costs))
        return total / len(batches)


def _cost(batch: Batch, seconds: float, before: Sequence[StepCost]) -> StepCost:
    rows, width = batch.tokens.shape
    is_first = all((one.rows, one.width) != (rows, width) for one in before)
    return StepCost(rows, width, int(batch.spans[:, 1].sum()), seconds, is_first)


def is_hopeless(losses: Sequence[float], untouched: Sequence[float]) -> bool:
    """Whether no more updates are needed to see that they do harm.

    Args:
        losses: of the updates so far.
        untouched: the untouched model's on the same batches; empty where nothing is given up.
    """
    if not math.isfinite(losses[-1]):
        return True
    if not untouched:
        return False
    worse = [one - before for one, before in zip(losses, untouched, strict=True)]
    return len(worse) >= WAITED and all(one > 0 for one in worse[-RECENT:])


@contextmanager
def trials_of(run: PreparedRun, updates: int, held: int) -> Iterator[Trials]:
    """What trials are made with; the model is put back as it was at the end.

    Args:
        updates: of one trial, at most.
        held: fixed batches to measure on: of validation rows, or where those make too few, of
            the training rows that come after those of the updates.
    """
    settings = run.settings
    each = settings.grad_accumulation_steps
    # A schedule's rate would win over the one that is tried.
    optimizer = build_optimizer(replace(settings, lr_schedule=None))
    with ExitStack() as stack:
        stack.enter_context(handed_back(run.model, None))
        if settings.grad_checkpoint:
            stack.enter_context(recomputed_activations(run.model.layers))
        optimizer.init(run.model.trainable_parameters())
        keys: Any = mx.random.state
        batches = run.batches(updates * each + held)
        validation = run.held_out(held)
        is_enough = len(validation) >= FEWEST_HELD
        trained, further = batches[: updates * each], batches[updates * each :]
        yield Trials(
            run,
            [trained[start : start + each] for start in range(0, len(trained), each)],
            validation if is_enough else further,
            is_enough,
            optimizer,
            compile_step(run.model, optimizer, run.loss, settings),
            tree_map(lambda one: one, run.model.trainable_parameters()),
            tree_map(lambda one: one, optimizer.state),
            mx.array(keys[0]),
        )


def fingerprint(model: Any) -> int:
    """A checksum over the name and the bytes of every parameter that is trained."""
    found = 0
    for name, one in sorted(tree_flatten(model.trainable_parameters())):
        # NumPy has no bfloat16; as float32 each of its values is another.
        whole = np.array(one.astype(mx.float32) if one.dtype == mx.bfloat16 else one)
        found = zlib.crc32(np.ascontiguousarray(whole).data, zlib.crc32(name.encode(), found))
    return found
