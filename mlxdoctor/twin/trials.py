"""Trials: some updates from a run's own start, what they did, and back to the start."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, TypeVar

import mlx.core as mx
from mlx.utils import tree_flatten, tree_map

from mlxdoctor.measure.training_step.state import restore_random
from mlxdoctor.twin.batches import Batch
from mlxdoctor.twin.loop import stepper
from mlxdoctor.twin.masked_loss import scalar
from mlxdoctor.twin.predict import TimedBatch
from mlxdoctor.twin.prepared import Prepared
from mlxdoctor.twin.records import StepRecord
from mlxdoctor.twin.step import build_optimizer

T = TypeVar("T")
#: Fixed batches of rows.
HELD = 8


@dataclass(frozen=True)
class Trials:
    """What trials are made with; see `trials_of`.

    Attributes:
        updates: the batches of each update.
        held: the fixed batches.
        trained, validated: what every training or fixed batch took, once its shape was compiled.
    """

    run: Prepared
    updates: Sequence[Sequence[Batch]]
    held: Sequence[Batch]
    optimizer: Any
    take: Callable[[Batch, bool], StepRecord]
    start: Any
    state: Any
    key: mx.array
    trained: list[TimedBatch] = field(default_factory=list)
    validated: list[TimedBatch] = field(default_factory=list)
    _compiled: set[tuple[int, ...]] = field(default_factory=set)

    def at(
        self,
        rate: float | None,
        updates: int,
        measure: Callable[[], T],
        *,
        is_late: Callable[[], bool] = lambda: False,
    ) -> tuple[list[float], T | None]:
        """Train at a rate from the start, measure, then go back to the start.

        Args:
            rate: of every update; None: the optimizer's own, with its schedule.
            measure: called where every loss was finite.
            is_late: asked after each update whether it is the last.

        Returns:
            The loss of each update's batches before it, to the first that is not finite, nats a
            token; and what was measured.
        """
        self.restore()
        if rate is not None:
            self.optimizer.learning_rate = rate
        self.run.model.train()
        losses: list[float] = []
        for batches in self.updates[:updates]:
            losses.append(self._update(batches))
            if not math.isfinite(losses[-1]) or is_late():
                break
        measured = measure() if math.isfinite(losses[-1]) else None
        self.restore()
        return losses, measured

    def held_means(self) -> list[float]:
        """The loss of each fixed batch, nats a token."""
        self.run.model.eval()
        means = []
        for batch in self.held:
            begun = time.perf_counter()
            arrays = mx.array(batch.tokens), mx.array(batch.spans)
            means.append(scalar(self.run.parts.loss(self.run.model, *arrays)[0]))
            self._note(batch, time.perf_counter() - begun, self.validated)
        return means

    def restore(self) -> None:
        """Put parameters, optimizer and random state back to the start."""
        self.run.model.update(self.start)
        # In place: the compiled step looks into these very containers.
        self.optimizer.state.clear()
        self.optimizer.state.update(_copied(self.state))
        restore_random(self.key)

    def longest(self) -> tuple[int, int, int]:
        """A step on the longest batch of a pass, undone: its rows, inputs a row, peak in bytes."""
        rows, size = self.run.rows.train, self.run.settings.batch_size
        batch = max(
            self.run.first_batches(max(len(rows) // size, 1)), key=lambda batch: batch.tokens.size
        )
        self.restore()
        self.optimizer.learning_rate = 0.0
        self.run.model.train()
        mx.clear_cache()
        mx.reset_peak_memory()
        self._update([batch])
        # The start is kept to go back to it, which a run does not do.
        kept = sum(array.nbytes for _, array in tree_flatten([self.start, self.state]))
        peak = mx.get_peak_memory() - kept
        self.restore()
        height, width = batch.tokens.shape
        return height, width - 1, peak

    def _update(self, batches: Sequence[Batch]) -> float:
        """The mean loss of an update's batches, nats a token."""
        total = 0.0
        for number, batch in enumerate(batches, 1):
            step = self.take(batch, number == len(batches))
            total += step.train_loss
            self._note(batch, step.seconds, self.trained)
        return total / len(batches)

    def _note(self, batch: Batch, seconds: float, timed: list[TimedBatch]) -> None:
        """Keep what a batch took, but for the first of its shape, which is compiled."""
        rows, width = batch.tokens.shape
        if (id(timed), rows, width) in self._compiled:
            timed.append(TimedBatch(rows, max(width - 1, 1), seconds))
        self._compiled.add((id(timed), rows, width))


def trials_of(run: Prepared, updates: int, held: int = HELD, optimizer: Any = None) -> Trials:
    """What trials are made with; after each the model is put back as it was.

    Args:
        updates: of one trial, at most.
        held: fixed batches to measure on: of validation rows, or where those make none, of the
            training rows that come after those of the updates.
        optimizer: not initialised; by default the run's without its schedule, which would win
            over the rates that are tried.
    """
    each = run.settings.grad_accumulation_steps
    optimizer = optimizer or build_optimizer(replace(run.settings, lr_schedule=None))
    optimizer.init(run.model.trainable_parameters())
    keys: Any = mx.random.state
    batches = iter(run.first_batches(updates * each + held))
    trained = [list(islice(batches, each)) for _ in range(updates)]
    return Trials(
        run,
        trained,
        run.held_out(held) or list(batches),
        optimizer,
        stepper(run, optimizer),
        _copied(run.model.trainable_parameters()),
        _copied(optimizer.state),
        mx.array(keys[0]),
    )


def _copied(tree: Any) -> Any:
    """The same arrays, which MLX never changes in place, in containers of their own."""
    return tree_map(lambda array: array, tree)
