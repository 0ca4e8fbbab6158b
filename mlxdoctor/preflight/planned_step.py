"""The training step that a configuration plans: what is trained, and on which batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.preflight.model_shape import Layer, Matrix, ModelShape

Device = Literal["cpu", "metal", "cuda"]
#: mlx-lm pads a batch to one more than a multiple of this (tuner/trainer.py, iterate_batches).
PAD_TO = 32


@dataclass(frozen=True)
class PlannedStep:
    """What decides how much memory a step takes, besides the model.

    Attributes:
        batch_size: rows of a batch.
        tokens: inputs of the longest batch's rows, after padding and cutting.
        validation_tokens: the same of the longest batch of the validation; 0 without one.
        fine_tune_type: "lora", "dora" or "full".
        num_layers: layers trained, from the last; 0 or less for all.
        rank: of the adapters.
        keys: names of the modules that get adapters; None for all linear ones of a layer.
        dropout: of the adapters' inputs.
        optimizer: mlx-lm's name.
        grad_checkpoint: each layer's activations are computed again in the backward pass.
        grad_accumulation_steps: batches an update.
        device: where it runs: kernels differ.
    """

    batch_size: int
    tokens: int
    validation_tokens: int = 0
    fine_tune_type: str = "lora"
    num_layers: int = 16
    rank: int = 8
    keys: tuple[str, ...] | None = None
    dropout: float = 0.0
    optimizer: str = "adam"
    grad_checkpoint: bool = False
    grad_accumulation_steps: int = 1
    device: Device = "cpu"

    @classmethod
    def of(
        cls,
        config: TrainingConfig,
        lengths: Sequence[int],
        validation: Sequence[int] = (),
        device: Device = "cpu",
    ) -> PlannedStep | None:
        """The step of a configuration; None where it lacks what is needed.

        Args:
            config: as mlx-lm completes it.
            lengths: tokens of the training rows, uncut, in the order of `batches`.
            validation: likewise of the validation's rows.
            device: where it will run.
        """
        size, longest, layers = config.batch_size, config.max_seq_length, config.num_layers
        if not size or not longest or layers is None or len(lengths) < size:
            return None
        return cls(
            batch_size=size,
            tokens=longest_batch(lengths, size, longest),
            validation_tokens=longest_batch(validation, size, longest),
            fine_tune_type=config.fine_tune_type or "lora",
            num_layers=layers,
            rank=config.rank or 8,
            keys=config.keys,
            dropout=config.dropout or 0.0,
            optimizer=(config.optimizer or "adam").lower(),
            grad_checkpoint=config.values.get("grad_checkpoint") is True,
            grad_accumulation_steps=config.grad_accumulation_steps or 1,
            device=device,
        )

    def trained_layers(self, model: ModelShape) -> tuple[Layer, ...]:
        """The layers that are converted or unfrozen; `layers[-0:]` are all."""
        return model.layers[-max(self.num_layers, 0) :]

    def trains(self, matrix: Matrix) -> bool:
        """Whether a matrix of a trained layer gets an adapter, or is unfrozen."""
        if self.fine_tune_type == "full":
            # mlx-lm unfreezes whole layers; packed weights stay, as MLX trains none.
            return not matrix.quantised
        return self.keys is None or matrix.name in self.keys

    def adapted_outside(self, model: ModelShape) -> tuple[Matrix, ...]:
        """Matrices outside the layers that get adapters: only those that `keys` names."""
        if self.fine_tune_type == "full" or self.keys is None:
            return ()
        return tuple(one for one in model.outside if one.name in self.keys)


def batches(rows: Sequence[int], batch_size: int) -> list[list[int]]:
    """Which rows mlx-lm puts into a batch together, by their indices.

    It sorts by `CacheDataset.itemlen`, which is the number of a row's keys and not of its
    tokens (mlx-lm 0.32.2), so that rows of equal keys keep the file's order.

    Args:
        rows: the number of keys of each row, in the file's order.
        batch_size: rows of a batch; what is left over at the end is never trained on.
    """
    order = sorted(range(len(rows)), key=rows.__getitem__)
    return [order[i : i + batch_size] for i in range(0, len(order) - batch_size + 1, batch_size)]


def width(longest: int, max_seq_length: int) -> int:
    """Inputs of a batch whose longest row has that many tokens: padded, cut, less the target."""
    padded = 1 + PAD_TO * -(-longest // PAD_TO)
    return min(padded, max_seq_length) - 1


def widths(
    lengths: Sequence[int], batch_size: int, max_seq_length: int, keys: Sequence[int] = ()
) -> list[int]:
    """Inputs of every batch of an epoch, in the order of `batches`.

    Args:
        lengths: tokens of each row, in the file's order.
        batch_size: rows of a batch.
        max_seq_length: tokens after which a row is cut.
        keys: the number of keys of each row; where it is not said, all have as many.
    """
    together = batches(keys or [0] * len(lengths), batch_size)
    return [width(max(lengths[i] for i in batch), max_seq_length) for batch in together]


def longest_batch(
    lengths: Sequence[int], batch_size: int, max_seq_length: int, keys: Sequence[int] = ()
) -> int:
    """Inputs of the widest batch of an epoch; 0 where there are fewer rows than a batch."""
    return max(widths(lengths, batch_size, max_seq_length, keys), default=0)
