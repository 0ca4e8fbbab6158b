"""What is measured of one training step, as values: facts, no judgement. Imports no MLX."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

#: Offsets of a target from its position that are told apart.
OFFSETS = (-1, 0, 1, 2, 3)
#: Where fewer positions have a single target, the loss is one of whole distributions.
SINGLE = 0.5
#: A row is made less likely from this share of the largest row's weight on.
NO_ROUNDING = 1e-3
#: Tokens are held against each other where so much of the weight is below zero.
CONTRAST = 0.05


@dataclass(frozen=True)
class State:
    """The model before the step.

    Attributes:
        trainable, frozen: module -> parameters that are, as `count_parameters` has them.
        adapters: names of the modules with LoRA or DoRA parameters.
        half_adapters: those whose A or B is frozen.
        outside: names of trainable parameters that belong to no adapter -> how many values.
        claims: attributes that say that there is an adapter, as `name=value`.
        overrides: methods of the model's class that replace MLX's own bookkeeping.
        expect: what the trainer says is meant to be trained; None where it says nothing.
    """

    trainable: Mapping[str, int]
    frozen: Mapping[str, int]
    adapters: tuple[str, ...] = ()
    half_adapters: tuple[str, ...] = ()
    outside: Mapping[str, int] = field(default_factory=dict)
    claims: tuple[str, ...] = ()
    overrides: tuple[str, ...] = ()
    expect: str | None = None

    @property
    def parameters(self) -> int:
        return sum(self.trainable.values()) + sum(self.frozen.values())

    @property
    def ratio(self) -> float:
        """Share of the parameters that is trainable, 0 to 1."""
        return sum(self.trainable.values()) / max(self.parameters, 1)

    @property
    def outside_share(self) -> float:
        """Share of the parameters that is trainable and belongs to no adapter, 0 to 1."""
        return sum(self.outside.values()) / max(self.parameters, 1)

    @property
    def expected(self) -> str | None:
        """What is to be trained: `adapter`, `full`, or None where nothing speaks of it."""
        if self.expect is None:
            return "adapter" if self.adapters or self.claims else None
        return "full" if self.expect == "full" else "adapter"


@dataclass(frozen=True)
class Forward:
    """The loss of one forward pass, nats.

    Attributes:
        uniform: ln of the vocabulary's size; None where no logits were seen.
        dtype: of the logits; None where none were seen.
        resolution: the smallest share of the loss that its number format can show.
    """

    loss: float
    uniform: float | None = None
    dtype: str | None = None
    finite_logits: bool = True
    resolution: float = 0.0


@dataclass(frozen=True)
class Alignment:
    """Which positions are trained, and on which token, from the gradient of the logits.

    All arrays have one entry for each row and position of the model's input: of every forward
    pass that the loss has a gradient for, one after the other. Narrower ones are filled up.

    Attributes:
        inputs: int32 (rows, positions), the tokens that the model was given; -1 beyond the
            width of the row's own forward pass.
        targets: int32 (rows, positions), the token each position is pushed towards, or away
            from where its weight is negative; -1 where it is not trained.
        weights: float32 (rows, positions), the weight of each position in the loss; negative
            where the target is made less likely.
        hard: share of the trained positions whose gradient is that of the cross-entropy
            with one target: weight x (probability - one-hot); NaN where nothing is trained.
        prompt_lengths: int32 (rows,), tokens before the last answer as the chat template
            marks it; -1 where that is unknown.
        row_lengths: int32 (rows,), tokens before the padding.
        widths: int32 (rows,), positions of the row's own forward pass.
        forwards: int32 (rows,), which of the loss's calls of the model the row was in.
        end_ids: tokens that end an answer; empty where no tokenizer was given.
    """

    inputs: NDArray[np.int32]
    targets: NDArray[np.int32]
    weights: NDArray[np.float32]
    hard: float
    prompt_lengths: NDArray[np.int32]
    row_lengths: NDArray[np.int32]
    widths: NDArray[np.int32]
    forwards: NDArray[np.int32]
    end_ids: tuple[int, ...] = ()

    @property
    def trained(self) -> NDArray[np.bool_]:
        """bool (rows, positions): where the loss has a gradient."""
        return self.targets >= 0

    @property
    def contrasts(self) -> bool:
        """Whether some rows or tokens are made more likely and others less, not by rounding."""
        rows = self.weights.sum(axis=1, dtype=np.float64)
        less = float(-self.weights[self.weights < 0].sum(dtype=np.float64))
        every = float(np.abs(self.weights).sum(dtype=np.float64))
        has_row = bool((rows < -NO_ROUNDING * np.abs(rows).max(initial=0.0)).any())
        # Where targets are no single tokens, a sign says nothing.
        return self.hard >= SINGLE and bool(has_row or less > CONTRAST * every)

    def blank_prompts(self, least: int) -> NDArray[np.int64] | None:
        """How many tokens before the trained ones are one token repeated, int64 (rows,).

        None unless every row that is trained begins with so many, and is not padded on the left.
        """
        rows = np.flatnonzero(self.trained.any(axis=1))
        differs = self.inputs != self.inputs[:, :1]
        width = self.inputs.shape[1]
        runs = np.where(differs.any(axis=1), differs.argmax(axis=1), width).astype(np.int64)
        # The last token of a run is the first position that can be trained after it.
        late = self.trained.argmax(axis=1) - runs
        are_blank = ((runs >= least) & (late >= -1) & (late <= 0))[rows].all()
        are_left_padded = (self.row_lengths[rows] == self.widths[rows]).all()
        return runs if rows.size and are_blank and not are_left_padded else None

    @cached_property
    def offsets(self) -> tuple[dict[int, float], int]:
        """How often the target is the token at each offset, and at how many places that tells."""
        # Positions count where the tokens at all offsets differ and lie in the row.
        around = np.stack([np.roll(self.inputs, -offset, axis=1) for offset in OFFSETS])
        differ = (np.diff(np.sort(around, axis=0), axis=0) != 0).all(axis=0)
        places = np.arange(self.inputs.shape[1])
        is_inside = (places >= 1) & (places < self.row_lengths[:, None] - max(OFFSETS))
        tells = differ & is_inside & self.trained
        count = int(tells.sum())
        hits = (around == self.targets)[:, tells].sum(axis=1) / max(count, 1)
        return dict(zip(OFFSETS, hits.tolist(), strict=True)), count


@dataclass(frozen=True)
class Preferences:
    """Answers that a loss holds against each other, and how it pushes each.

    Attributes:
        names: what is called chosen and rejected, or the one name of the rewards.
        rewards: float64 (answers,): 1 for chosen, -1 for rejected, 0 where that is unknown; or
            what a policy is rewarded with, as it is where that does not go with the answers.
            Answers are in the order of the `Alignment`'s rows.
        pushes: float64 (answers,), how much each is made more likely.
        reversed: the same with every reward times -1; None for pairs, NaN where the loss is then
            another one.
        labels: whether the rewards are yes or no.
    """

    names: tuple[str, ...]
    rewards: NDArray[np.float64]
    pushes: NDArray[np.float64]
    reversed: NDArray[np.float64] | None = None
    labels: bool = False

    @property
    def all_same(self) -> bool:
        return self.rewards.size > 0 and bool((self.rewards == self.rewards.flat[0]).all())


@dataclass(frozen=True)
class ParameterStep:
    """One trainable parameter through the steps.

    Attributes:
        gradient_norm: L2, of the first step; None where it got no gradient.
        later_norm: the same after the steps.
        norm: L2 of the parameter before.
        change: L2 of what the steps changed.
        is_half: whether it is stored in 16 bits.
    """

    name: str
    gradient_norm: float | None
    norm: float
    change: float
    later_norm: float | None = None
    is_half: bool = False


@dataclass(frozen=True)
class Update:
    """What real steps did.

    Attributes:
        own: whether they were the user's own step function's.
        learning_rate: of the last step; None where the user's own step keeps it.
        frozen_changed: names of frozen parameters that are not bit-identical.
        losses: the loss on the same batch before the first and after each step, nats.
        predicted: by how much the first gradient says that the loss changes through all steps,
            nats; 0 where there is none.
        calls: of a step of the user's own, that one update takes; as far as that is known.
        shares: of each row of the batch (of each call, where an update takes several) its part of
            what the optimizer is given, over its part of the loss's gradient; NaN for a row that
            has none. Empty where that is unknown: `unshared` says why, as a clause.
        error: why the gradient could not be taken or a step failed, or None.
    """

    steps: int
    own: bool
    optimizer: str
    learning_rate: float | None
    parameters: tuple[ParameterStep, ...]
    frozen_changed: tuple[str, ...]
    losses: tuple[float, ...]
    predicted: float = 0.0
    calls: int = 1
    shares: tuple[float, ...] = ()
    unshared: str = ""
    error: str | None = None
