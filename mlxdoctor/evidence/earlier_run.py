"""The run that another run was resumed from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from mlxdoctor.evidence.config import TrainingConfig
    from mlxdoctor.evidence.logs.series import Segment
    from mlxdoctor.evidence.source import Source


@dataclass(frozen=True)
class EarlierRun:
    """What the earlier run logged, from the folder of its adapter or from the same log.

    Attributes:
        sources: its log, where that is a file of its own, and its configuration.
        segment: what it logged.
        config: its configuration; None where that is not known.
        iteration: the checkpoint that was resumed from; None for the final file.
    """

    kind: ClassVar[str] = "run resumed from"

    sources: tuple[Source, ...]
    segment: Segment
    config: TrainingConfig | None
    iteration: int | None
