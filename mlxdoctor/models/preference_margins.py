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
from mlxdoctor.models.load import LoadedModels
from mlxdoctor.models.losses import ROWS, Meter, RowLosses

#: The key of the answer of a pair that is not the better one.
REJECTED = "rejected"


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
        likelier = []
        for key in (data.features.chosen, REJECTED):
            splits = {
                name: replace(split, features=replace(split.features, chosen=key))
                for name, split in data.splits.items()
            }
            asked = replace(data, splits=splits)
            losses = meter.measure([build(asked, tokenizer, config, name) for name in names], ROWS)
            likelier.append({(row.split, row.index): _gain(row) for row in losses.compared})
        chosen, rejected = likelier
        gains: dict[str, list[float]] = {name: [] for name in names}
        for (name, index), gain in chosen.items():
            if (name, index) in rejected:
                gains[name].append(gain - rejected[name, index])
        return cls(models.sources, {name: np.array(values) for name, values in gains.items()})


def _gain(row: RowLosses) -> float:
    """Nats by which an answer is likelier to the tuned model than to the base."""
    base, tuned = row.of("base").next, row.of("tuned").next
    is_answer = row.roles[1 : 1 + len(base)] == Role.ANSWER
    return float(base[is_answer].sum(dtype=np.float64) - tuned[is_answer].sum(dtype=np.float64))
