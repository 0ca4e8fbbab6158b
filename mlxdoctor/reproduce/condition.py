"""What is different in one rerun, as a value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal[
    "as recorded", "another order", "change", "repair", "random rows", "injection", "probe"
]


@dataclass(frozen=True)
class Condition:
    """What is different in one rerun.

    Attributes:
        kind: as recorded; a placebo (another order of the rows, or rows left out at random);
            one change of the configuration; the data repaired; a fault put into the trainer;
            or a part of what differs from a healthy configuration.
        label: what it does, for people.
        iterations: how many to make.
        values: the configuration to train with; None: as recorded.
        fault: the id of the fault to inject, or of the cause whose repair is made.
        severity: its severity.
    """

    kind: Kind
    label: str
    iterations: int
    values: Mapping[str, Any] | None = None
    fault: str | None = None
    severity: Any = None
