"""Whether the answers that are rewarded come to an end.

What it finds. Training on rewards in which most answers are cut off by the limit on their length.

Why it matters. An answer that is cut off has no end, often no result, and earns what its first
words earn: the model is trained on rewards for halves of answers.

How it is measured. The share of answers that reach the limit, as the trainer prints it.

When it is wrong. A base model that does not know the end token yet is cut off at first; only a
share that stays counts.

What to do. Raise max_completion_length, or ask for shorter answers in the prompt; see whether the
end token is one that generation stops at.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from mlxdoctor.check import DoesNotArise, Inconclusive, check, limit
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.training_log import TrainingLog
from mlxdoctor.finding import Measurement, Severity, Sign, Symptom
from mlxdoctor.measure.policy_curves import course, policy_curves


@dataclass(frozen=True)
class Limits:
    """When too many answers are cut off."""

    reports: int = limit(4, unit="reports", source="fewer show no course")
    most: float = limit(0.8, unit="share of answers", source="the answers that end are exceptions")
    nearly_all: float = limit(0.95, unit="share of answers", source="no answer ends, but by chance")


@check(
    codes={
        "cut-off": Symptom.warning(
            "most answers are cut off by the limit on their length",
            expected="answers that end by themselves",
            fix="Raise max_completion_length until nine of ten answers end by themselves.",
        ),
    },
    limits=Limits(),
    rerun_symptom=True,
)
def completion_length(
    log: TrainingLog, config: TrainingConfig | None, limits: Limits
) -> Iterator[Sign]:
    """Judge the share of answers that reach the limit."""
    if not log.is_preference:
        raise DoesNotArise("the run was not trained on rewards")
    curves = policy_curves(log, config)
    if not curves.samples:
        raise DoesNotArise("the run was trained on pairs, and not on answers of its own")
    series = curves.of("cut_off")
    if series is None:
        raise Inconclusive("the log does not say how many answers are cut off")
    if len(series) < limits.reports:
        raise Inconclusive(f"the log says only {len(series)} times how many answers are cut off")
    went, typical = course(series), float(np.median(series.values))
    if min(went.begun, went.first, went.last, typical) < limits.most:
        return
    length = curves.of("length")
    mean = ""
    measured: dict[str, Measurement] = {"cut_off": typical, "first_cut_off": went.first}
    if length is not None:
        tokens = course(length).last
        mean = f"; their mean length is {tokens:.0f} tokens at the end"
        measured["last_length"] = tokens
    yield Sign(
        "cut-off",
        f"{typical:.0%} of the answers are cut off by the limit on their length in the median "
        f"report, and {went.first:.0%} in the first ones{mean}.",
        measured,
        onset=int(series.iterations[0]),
        severity=Severity.ERROR if min(went.first, typical) >= limits.nearly_all else None,
    )
