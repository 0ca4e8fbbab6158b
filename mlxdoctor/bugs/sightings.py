"""What a known bug left behind: what is looked at, and what was seen."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from mlxdoctor.check import limit
from mlxdoctor.evidence.adapter import Adapter
from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.config import StatedConfig, TrainingConfig
from mlxdoctor.evidence.resumed import ResumedAdapter
from mlxdoctor.evidence.supervision import SupervisedRows
from mlxdoctor.evidence.tokenizer import Tokenizer
from mlxdoctor.evidence.training_log import TrainingLog
from mlxdoctor.finding import Measurement, Severity
from mlxdoctor.models.generations import Generations


@dataclass(frozen=True)
class BugLimits:
    """When a trace is one, and when it is more than a note."""

    most: float = limit(
        0.5,
        unit="share of answers",
        source="29 of 30 in a run of mlx_lm.lora whose rows end with no end token",
        false_alarms="0 of 131 sound runs of four base models, which reach 2 of 12",
    )
    answers: int = limit(8, unit="answers", source="as for every comparison of answers")
    left_over: float = limit(
        0.1,
        unit="share of the iterations",
        source="a run that loses a tenth of its batches learned from other data than it was given",
        false_alarms="0 of 131 sound runs, none of which loses any",
    )
    padding_saved: float = limit(
        0.05, unit="share of all positions", source="below that, sorting saves next to nothing"
    )
    decided: float = limit(
        math.log(1000.0),
        unit="log-likelihood ratio",
        source="1,000 to 1 that the batches were not sorted by length",
    )
    reports: int = limit(8, unit="reports", source="fewer do not show how much counts scatter")


@dataclass(frozen=True)
class Artifacts:
    """What a run left behind, as far as the signatures look at it, and the thresholds."""

    limits: BugLimits
    config: TrainingConfig | None = None
    stated: StatedConfig | None = None
    log: TrainingLog | None = None
    adapter: Adapter | None = None
    resumed: ResumedAdapter | None = None
    base: BaseModel | None = None
    rows: SupervisedRows | None = None
    tokenizer: Tokenizer | None = None
    generations: Generations | None = None


@dataclass(frozen=True)
class Sighting:
    """What a bug left behind.

    Attributes:
        severity: what that means for the run.
        message: one sentence with the figures in it.
        measured: the figures.
        where: the tensor or key it was seen in.
    """

    severity: Severity
    message: str
    measured: Mapping[str, Measurement] = field(default_factory=dict)
    where: str | None = None


@dataclass(frozen=True)
class Signature:
    """How a bug is recognised.

    Attributes:
        find: what it left behind, None where there is no trace of it. No function at all
            where it never leaves one.
        arises: whether a run can have met the bug, by what it was told to do.
        harmless: whether it never does more than deserve a note.
    """

    find: Callable[[Artifacts], Sighting | None] | None
    arises: Callable[[Artifacts], bool]
    harmless: bool = False
