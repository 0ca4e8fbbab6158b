"""Experiments that need no training to speak of: load it rightly, evaluate it again, compare.

The randomness of training plays no part in these: each is made once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from mlxdoctor.evidence.source import hash_file
from mlxdoctor.experiments.evaluate_again import evaluate_again
from mlxdoctor.experiments.fusing import fuse_again
from mlxdoctor.experiments.other_base import another_base, another_tokenizer
from mlxdoctor.experiments.renaming import rename_tensors
from mlxdoctor.experiments.resumption import resume_again
from mlxdoctor.experiments.shapes import fresh_shapes
from mlxdoctor.experiments.validate_again import give_a_batch
from mlxdoctor.reproduce.laboratory import Laboratory, stamps
from mlxdoctor.reproduce.rules import Judgement
from mlxdoctor.run import Run
from mlxdoctor.safety.errors import InputError


@dataclass(frozen=True)
class Direct:
    """An experiment of this kind.

    Attributes:
        label: what is done, for people.
        make: does it, in a folder of its own.
        iterations: that it trains for.
    """

    label: str
    make: Callable[[Laboratory, Run, Path], Judgement]
    iterations: int = 0


@dataclass(frozen=True)
class Measured:
    """What such an experiment said, and what it cost."""

    label: str
    judgement: Judgement
    iterations: int
    seconds: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """The result as plain dictionaries."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Measured:
        """What `to_dict` gave.

        Raises:
            KeyError, TypeError, ValueError: it is not that.
        """
        judgement = Judgement(**values["judgement"])
        if judgement.verdict not in ("confirmed", "refuted", "undecided"):
            raise ValueError(judgement.verdict)
        seconds = float(values["seconds"])
        return cls(str(values["label"]), judgement, int(values["iterations"]), seconds)


#: Cause -> the experiment for it.
DIRECT: Mapping[str, Direct] = MappingProxyType(
    {
        "adapter-not-loaded": Direct("the tensors renamed to fit the base", rename_tensors),
        "evaluated-without-adapter": Direct(
            "evaluated again, without and with the adapter", evaluate_again
        ),
        "wrong-base-model": Direct("one step of training, for the shapes", fresh_shapes, 1),
        "resume-mismatch": Direct(
            "resumed again, and without what was not loaded", resume_again, 10
        ),
        "no-validation-data": Direct("validated on a whole batch", give_a_batch, 2),
        "fused-model-differs": Direct("fused again at full precision", fuse_again),
        "base-model-broken": Direct("the base evaluated before any training", another_base),
        "tokenizer-mismatch": Direct("the base evaluated with its tokenizer", another_tokenizer),
    }
)


def measured(lab: Laboratory, run: Run, cause: str) -> Measured:
    """Make the experiment for a cause, or recall it.

    Raises:
        BudgetSpent: there was not enough time for it.
        InputError: the folder can't be written.
    """
    experiment = DIRECT[cause]

    def make(folder: Path) -> Measured:
        try:
            judgement = experiment.make(lab, run, folder)
        except InputError as error:
            judgement = Judgement("undecided", f"it can't be tried: {error}")
        return Measured(experiment.label, judgement, experiment.iterations)

    return lab.remembered(
        f"direct-{cause}", _facts(lab, run, cause), experiment.label, make, Measured.from_dict
    )


def _facts(lab: Laboratory, run: Run, cause: str) -> dict[str, Any]:
    files = run.files
    single = [one for one in (files.adapter, files.config, *files.metrics, *files.logs) if one]
    folders = [lab.recipe.base, lab.recipe.data, *([files.tuned] if files.tuned else ())]
    return {
        "cause": cause,
        "values": lab.recipe.values,
        "seed": lab.recipe.seed,
        "files": [hash_file(one).sha256 or stamps(one.parent) for one in single],
        "folders": [stamps(one) for one in folders],
    }
