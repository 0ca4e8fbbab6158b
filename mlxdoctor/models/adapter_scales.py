"""What the tuned model would predict if its adapter were weaker or stronger."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

from mlxdoctor.evidence.kind import NotThere, RunView
from mlxdoctor.evidence.source import Source
from mlxdoctor.models.forward import Continuation, continuation_losses
from mlxdoctor.models.load import LoadedModels
from mlxdoctor.models.losses import RowLosses, TokenLosses


@dataclass(frozen=True)
class AdapterScales:
    """The adapter at other scales than its own.

    Attributes:
        sources: the models' files.
        losses: of both models as they are.
        measure: (rows, factor) -> the same rows with the next tokens' losses at so many times
            the scale. Losses at other shifts, of padding and of end tokens stay as they are.
    """

    kind: ClassVar[str] = "losses at other scales"
    needs_models: ClassVar[bool] = True

    sources: tuple[Source, ...]
    losses: TokenLosses
    measure: Callable[[Sequence[RowLosses], float], tuple[RowLosses, ...]]

    @classmethod
    def find(cls, run: RunView) -> AdapterScales:
        """The models, where the tuned one has an adapter; see `Evidence`."""
        models, losses = run.need(LoadedModels), run.need(TokenLosses)
        if not models.has_tuned or not any(_scaled(models.select("tuned"))):
            raise NotThere("there is no adapter on the base model whose scale could be changed")
        return cls(models.sources, losses, partial(_measured, models))

    def rows(self, split: str) -> tuple[RowLosses, ...]:
        """The rows of a split, as both models predict them, the shortest first."""
        return tuple(sorted(self.losses.split(split), key=lambda row: len(row.tokens)))


def _measured(
    models: LoadedModels, rows: Sequence[RowLosses], factor: float
) -> tuple[RowLosses, ...]:
    asked = [Continuation(row.tokens, 1) for row in rows]
    with _times(models.select("tuned"), factor) as model:
        losses = continuation_losses(model, asked)
    return tuple(
        replace(row, tuned=replace(row.tuned, next=one))
        for row, one in zip(rows, losses, strict=True)
        if row.tuned is not None
    )


def _scaled(model: Any) -> Iterator[Any]:
    for _, module in model.named_modules():
        if hasattr(module, "lora_a") and isinstance(getattr(module, "scale", None), int | float):
            yield module


@contextmanager
def _times(model: Any, factor: float) -> Iterator[Any]:
    """The model with its adapter that much stronger, for as long as the block lasts."""
    before = [(module, module.scale) for module in _scaled(model)]
    try:
        for module, scale in before:
            module.scale = factor * scale
        yield model
    finally:
        for module, scale in before:
            module.scale = scale
