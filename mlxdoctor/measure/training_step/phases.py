"""What is measured of one training step, phase by phase: facts, no judgement."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

#: Offsets of a target from its position that are told apart.
OFFSETS = (-1, 0, 1, 2, 3)


@dataclass(frozen=True)
class State:
    """The model before the step.

    Attributes:
        trainable: component -> parameters that are trainable, layers taken together;
            quantized ones counted unpacked.
        frozen: the same for those that are not.
        adapters: names of the modules with LoRA or DoRA parameters.
        half_adapters: those whose A or B is frozen.
        outside: names of trainable parameters that belong to no adapter -> how many values.
        claims: attributes that say that there is an adapter, as `name=value`.
        overrides: methods of the model's class that replace MLX's own bookkeeping.
    """

    trainable: Mapping[str, int]
    frozen: Mapping[str, int]
    adapters: tuple[str, ...]
    half_adapters: tuple[str, ...]
    outside: Mapping[str, int]
    claims: tuple[str, ...]
    overrides: tuple[str, ...]

    @property
    def ratio(self) -> float:
        """Share of the parameters that is trainable, 0 to 1."""
        few, many = sum(self.trainable.values()), sum(self.frozen.values())
        return few / (few + many) if few + many else 0.0

    @property
    def outside_share(self) -> float:
        """Share of the parameters that is trainable and belongs to no adapter, 0 to 1."""
        every = sum(self.trainable.values()) + sum(self.frozen.values())
        return sum(self.outside.values()) / every if every else 0.0


@dataclass(frozen=True)
class Forward:
    """The loss of one forward pass.

    Attributes:
        loss: nats, as the loss function gives it.
        without_adapter: the same with every adapter switched off; None without one.
        uniform: ln of the vocabulary's size; None where no logits were seen.
        dtype: of the logits; None where none were seen.
        shape: of the logits, (rows, positions, vocabulary).
        finite_logits: whether all logits are finite.
        calls: how often the loss called the model.
    """

    loss: float
    without_adapter: float | None
    uniform: float | None
    dtype: str | None
    shape: tuple[int, ...] | None
    finite_logits: bool
    calls: int


@dataclass(frozen=True)
class Alignment:
    """Which positions are trained, and on which token, from the gradient of the logits.

    All arrays have one entry for each row and position of the model's input.

    Attributes:
        inputs: int32 (rows, positions), the tokens that the model was given.
        targets: int32 (rows, positions), the token each position is pushed towards; -1
            where it is not trained.
        weights: float32 (rows, positions), the weight of each position in the loss.
        hard: share of the trained positions whose gradient is that of the cross-entropy
            with one target: weight x (probability - one-hot).
        prompt_lengths: int32 (rows,), tokens before the last answer as the chat template
            marks it; -1 where that is unknown.
        row_lengths: int32 (rows,), tokens before the padding.
        pad_ids: tokens that are taken as padding.
        end_ids: tokens that end an answer; empty where no tokenizer was given.
    """

    inputs: NDArray[np.int32]
    targets: NDArray[np.int32]
    weights: NDArray[np.float32]
    hard: float
    prompt_lengths: NDArray[np.int32]
    row_lengths: NDArray[np.int32]
    pad_ids: tuple[int, ...] = ()
    end_ids: tuple[int, ...] = ()

    @property
    def trained(self) -> NDArray[np.bool_]:
        """bool (rows, positions): where the loss has a gradient."""
        return self.targets >= 0

    @property
    def offsets(self) -> tuple[dict[int, float], int]:
        """How often the target is the token at each offset, and at how many positions that tells.

        Positions count where the tokens at all offsets differ and lie in the row.
        """
        hits = dict.fromkeys(OFFSETS, 0)
        count = 0
        rows = zip(self.inputs, self.targets, self.row_lengths, strict=True)
        for tokens, targets, length in rows:
            for at in range(1, int(length) - max(OFFSETS)):
                around = [int(tokens[at + offset]) for offset in OFFSETS]
                if targets[at] < 0 or len(set(around)) < len(around):
                    continue
                count += 1
                for offset, token in zip(OFFSETS, around, strict=True):
                    hits[offset] += int(token == targets[at])
        return {offset: hit / max(count, 1) for offset, hit in hits.items()}, count


@dataclass(frozen=True)
class ParameterStep:
    """One trainable parameter through the step.

    Attributes:
        gradient_norm: L2, of the first step; None where it got no gradient.
        norm: L2 of the parameter before.
        change: L2 of what the steps changed.
    """

    name: str
    gradient_norm: float | None
    norm: float
    change: float


@dataclass(frozen=True)
class Update:
    """What real steps did.

    Attributes:
        steps: how many were made.
        own: whether they were the user's own step function's.
        optimizer: the optimizer's name; what was used where none was given.
        learning_rate: of the last step; None where the user's own step keeps it.
        parameters: the trainable parameters.
        frozen_changed: names of frozen parameters that are not bit-identical.
        losses: the loss on the same batch before the first and after each step, nats.
        error: why a step failed, or None.
    """

    steps: int
    own: bool
    optimizer: str
    learning_rate: float | None
    parameters: tuple[ParameterStep, ...]
    frozen_changed: tuple[str, ...]
    losses: tuple[float, ...]
    error: str | None = None
