"""Which rows `mlx_lm.lora` looked at in each of its validations.

It seeds NumPy's legacy generator once, with the run's `seed`, and draws from it the order of the
training batches at the start of each pass, and that of the validation batches at each
validation, of which it looks at the first `val_batches`. So configuration and data say which
rows a logged validation loss is over, to the row (mlx-lm, `tuner/trainer.py`: `iterate_batches`,
`evaluate`, `train`; the same in every release from 0.14 to 0.32).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mlxdoctor.evidence.config import TrainingConfig

#: Iterations of a run after which its draws are not made again: each pass costs a permutation.
MOST_ITERATIONS = 1_000_000


@dataclass(frozen=True)
class ValidationOrder:
    """What decides on the batches of every validation.

    Attributes:
        seed: of the run.
        batch_size: rows a batch.
        train_rows: rows of the training split.
        valid_rows: rows of the validation split.
        looked_at: batches of one validation; -1 for all.
        every: iterations from one validation to the next.
        iterations: of the whole run.
    """

    seed: int
    batch_size: int
    train_rows: int
    valid_rows: int
    looked_at: int
    every: int
    iterations: int

    @classmethod
    def of(
        cls, config: TrainingConfig | None, train_rows: int, valid_rows: int
    ) -> ValidationOrder | None:
        """That of a run; None where the configuration is not mlx-lm's, or does not say it."""
        if config is None or not config.describes_training:
            return None
        seed, size, looked_at = config.seed, config.batch_size, config.val_batches
        every, iterations = config.steps_per_eval, config.iters
        if seed is None or not 0 <= seed < 2**32 or looked_at is None or looked_at == 0:
            return None
        if not size or size < 1 or not every or every < 1 or not iterations:
            return None
        if min(train_rows, valid_rows) < size or iterations > MOST_ITERATIONS:
            return None
        return cls(seed, size, train_rows, valid_rows, looked_at, every, iterations)

    @property
    def _valid_batches(self) -> int:
        return self.valid_rows // self.batch_size

    @property
    def is_of_all(self) -> bool:
        """Whether every validation looks at all batches."""
        return not 0 <= self.looked_at < self._valid_batches

    def batches(self, iteration: int) -> tuple[int, ...]:
        """The validation batches that were looked at before the update of an iteration, in order.

        Numbers of batches in the order in which the split is cut into them; none where there was
        no validation.
        """
        if self.is_of_all:
            return tuple(range(self._valid_batches))
        generator = np.random.RandomState(self.seed)
        train_batches = self.train_rows // self.batch_size
        for now in range(1, min(iteration, self.iterations) + 1):
            if (now - 1) % train_batches == 0:
                generator.permutation(train_batches)
            if now == 1 or now % self.every == 0 or now == self.iterations:
                order = generator.permutation(self._valid_batches)
                if now == iteration:
                    return tuple(int(one) for one in order[: self.looked_at])
        return ()
