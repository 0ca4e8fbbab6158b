"""One rerun as a value: what is different in it, and what it showed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from mlxdoctor.api import run_checks
from mlxdoctor.evidence.row_encoder import Role
from mlxdoctor.exhibits import SampleAnswer
from mlxdoctor.experiments.shared.symptoms import symptom_checks
from mlxdoctor.finding import Severity, Status
from mlxdoctor.models.generations import Generations
from mlxdoctor.models.losses import TokenLosses
from mlxdoctor.run import Run

if TYPE_CHECKING:
    from mlxdoctor.train.faults import Fault

#: Answers that are kept for the report, and their length in characters.
SAMPLES, SAMPLE_LENGTH = 3, 240

Kind = Literal[
    "as recorded", "trial", "another order", "change", "repair", "random rows", "injection"
]


@dataclass(frozen=True)
class Condition:
    """What is different in one rerun.

    Attributes:
        kind: as recorded; a trial, a few iterations of that, for the time they take; a placebo
            (another order of the rows, or rows left out at random); one change of the
            configuration; the data repaired; or a fault put into the trainer.
        label: what it does, for people.
        iterations: how many to make.
        values: the configuration to train with; None: as recorded.
        fault: what is put into the trainer or the rows; None: nothing.
        severity: its severity.
    """

    kind: Kind
    label: str
    iterations: int
    values: Mapping[str, Any] | None = None
    fault: Fault | None = None
    severity: Any = None


@dataclass(frozen=True)
class Observation:
    """What the doctor's own checks, and a measure of our own, say of a rerun.

    Attributes:
        findings: (code, severity) of what the checks found, notes left out.
        looked: names of the checks that could look.
        base_loss: mean loss of the base model on the answers of held-out rows, nats a
            token, masked correctly whatever the trainer did; None without such rows.
        loss: likewise of the rerun's model; NaN where it gives none.
        iterations: of each training loss.
        losses: as the trainer saw them, nats a token.
        samples: the first few answers, their texts cut off.
        seconds: training and examination together.
        step_seconds: of the median step of training.
    """

    findings: tuple[tuple[str, str], ...]
    looked: tuple[str, ...]
    base_loss: float | None
    loss: float | None
    iterations: tuple[int, ...] = ()
    losses: tuple[float, ...] = ()
    samples: tuple[SampleAnswer, ...] = ()
    seconds: float = 0.0
    step_seconds: float = 0.0

    @property
    def errors(self) -> tuple[str, ...]:
        """The codes that are errors."""
        return tuple(code for code, severity in self.findings if severity == "error")

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Observation:
        """What `asdict` gave, after a journey through JSON ("NaN" as a text included).

        Raises:
            KeyError, TypeError, ValueError: it is not that.
        """
        return cls(
            findings=tuple((str(code), str(severity)) for code, severity in values["findings"]),
            looked=tuple(map(str, values["looked"])),
            base_loss=_number(values["base_loss"]),
            loss=_number(values["loss"]),
            iterations=tuple(map(int, values["iterations"])),
            losses=tuple(map(float, values["losses"])),
            samples=tuple(SampleAnswer(**one) for one in values["samples"]),
            seconds=float(values["seconds"]),
            step_seconds=float(values["step_seconds"]),
        )


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


def examined(folder: Path, *, base: Path, data: Path) -> Observation:
    """What the checks and the held-out loss say of an adapter folder; no curve, no cost.

    Args:
        folder: what a rerun wrote.
        base: the base model's folder.
        data: the rows that the model is asked about.
    """
    run = Run.discover([folder], base=base, data=data)
    outcomes = run_checks(symptom_checks(), run)
    base_loss, loss = held_out(run.get(TokenLosses))
    return Observation(
        findings=tuple(
            (one.code, one.severity.value)
            for outcome in outcomes
            for one in outcome.findings
            if one.severity is not Severity.INFO
        ),
        looked=tuple(one.check for one in outcomes if one.status in (Status.PASSED, Status.FOUND)),
        base_loss=base_loss,
        loss=loss,
        samples=_samples(run.get(Generations)),
    )


def held_out(losses: TokenLosses | None) -> tuple[float | None, float | None]:
    """Mean loss of base and tuned model on the answers, nats a token; of the valid split if any."""
    if losses is None or not losses.rows:
        return None, None
    rows = losses.split("valid") or losses.rows
    base: list[Any] = []
    tuned: list[Any] = []
    for row in rows:
        roles = row.roles[1:]
        wanted = np.isin(roles, (Role.ANSWER, Role.END))
        wanted = wanted if wanted.any() else np.ones_like(wanted)
        base.append(row.base.next[wanted])
        if row.tuned is not None:
            tuned.append(row.tuned.next[wanted])
    return _mean(base), _mean(tuned)


def _mean(parts: Sequence[Any]) -> float | None:
    values = np.concatenate(parts) if parts else np.zeros(0)
    return float(values.astype(np.float64).mean()) if len(values) else None


def _samples(generations: Generations | None) -> tuple[SampleAnswer, ...]:
    items = generations.items[:SAMPLES] if generations is not None else ()
    return tuple(
        SampleAnswer(
            one.prompt[:SAMPLE_LENGTH],
            one.base[:SAMPLE_LENGTH] if one.base is not None else None,
            one.tuned[:SAMPLE_LENGTH],
        )
        for one in items
    )
