"""What the checks and the held-out loss say of an adapter that an experiment made."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mlxdoctor.api import run_checks
from mlxdoctor.evidence.row_encoder import Role
from mlxdoctor.finding import Severity, Status
from mlxdoctor.measure.generations import Generations
from mlxdoctor.measure.token_losses import TokenLosses
from mlxdoctor.reproduce.observation import Observation, Sample
from mlxdoctor.reproduce.symptoms import symptom_checks
from mlxdoctor.run import Run

#: Answers that are kept for the report, and their length in characters.
SAMPLES, SAMPLE_LENGTH = 3, 240


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
        iterations=(),
        losses=(),
        samples=_samples(run.get(Generations)),
        seconds=0.0,
        steps=0,
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


def _samples(generations: Generations | None) -> tuple[Sample, ...]:
    if generations is None:
        return ()
    return tuple(
        Sample(
            one.prompt[:SAMPLE_LENGTH],
            one.base[:SAMPLE_LENGTH] if one.base is not None else None,
            one.tuned[:SAMPLE_LENGTH],
        )
        for one in generations.items[:SAMPLES]
    )
