"""How much likelier than the rejected answer of a pair the chosen one is to both models."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.dataset import Dataset
from mlxdoctor.evidence.kind import Missing, NoSuchThing, RunView
from mlxdoctor.evidence.source import Source
from mlxdoctor.evidence.supervision import Role, build
from mlxdoctor.evidence.tokenizer import Tokenizer
from mlxdoctor.models.load import LoadedModels, Which
from mlxdoctor.models.losses import ROWS, Meter, RowLosses

#: The keys of the two answers of a pair.
CHOSEN, REJECTED = "chosen", "rejected"


@dataclass(frozen=True)
class PreferenceMargins:
    """The margins of pairs, log p(chosen) - log p(rejected), of the tuned model and of its base.

    Attributes:
        gains: split -> float64 (pairs,): nats by which the tuned model's margin is larger. A run on
            pairs is to raise it, whatever its loss: beta times it is DPO's margin of rewards.
    """

    kind: ClassVar[str] = "margins of pairs"
    needs_models: ClassVar[bool] = True

    sources: tuple[Source, ...]
    gains: Mapping[str, NDArray[np.float64]]

    @classmethod
    def find(cls, run: RunView) -> "PreferenceMargins":
        """Measured on pairs of the training and of the validation split."""
        data = run.need(Dataset)
        names = [
            name
            for name in ("train", "valid")
            if (split := data.splits.get(name)) is not None
            and split.format == "pairs"
            and any(isinstance(row.get(REJECTED), str | list) for row in split.rows)
        ]
        if not names:
            raise NoSuchThing("the rows are no pairs of a chosen and a rejected answer")
        models, tokenizer = run.need(LoadedModels), run.need(Tokenizer)
        if models.load_failure:
            raise Missing(f"the adapter cannot be loaded on the base model: {models.load_failure}")
        meter = Meter(models, tokenizer, run.progress, run.budget)
        config = run.get(TrainingConfig)
        measured: dict[str, Mapping[tuple[str, int], RowLosses]] = {}
        for answer in (CHOSEN, REJECTED):
            key = data.features.chosen if answer == CHOSEN else REJECTED
            splits = {
                name: replace(split, features=replace(split.features, chosen=key))
                for name, split in data.splits.items()
            }
            asked = replace(data, splits=splits)
            losses = meter.measure([build(asked, tokenizer, config, name) for name in names], ROWS)
            measured[answer] = {(row.split, row.index): row for row in losses.compared}
        both = [place for place in measured[CHOSEN] if place in measured[REJECTED]]
        gains = {
            name: np.array(
                [
                    _gain(measured[CHOSEN][place]) - _gain(measured[REJECTED][place])
                    for place in both
                    if place[0] == name
                ]
            )
            for name in names
        }
        return cls(models.sources, gains)


def _gain(row: RowLosses) -> float:
    """Nats by which an answer is likelier to the tuned model than to the base."""
    return _loss(row, "base") - _loss(row, "tuned")


def _loss(row: RowLosses, which: Which) -> float:
    losses = row.of(which).next
    return float(losses[row.roles[1 : 1 + len(losses)] == Role.ANSWER].sum(dtype=np.float64))
