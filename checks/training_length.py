"""Whether the run was long enough to learn anything.

What it finds. A run that ended after a few updates and a small part of one pass over its rows,
with a loss that hardly fell, or was still falling; and one that ended after a dozen at most.

Why it matters. Nothing is broken in such a run, and nothing was learned: the tuned model is the
base model. It is taken for a failed one, or, since nothing looks wrong, for a sound one.

How it is measured. The rows seen are the iterations times the batch size, those of the log where
there is one. They are held against the rows of the training split, or against a few batches
where the data are not at hand. A loss that fell, in training or validation, says that the
run learned all the same. After a dozen updates a sound run has a good part of its fall still before
it, whatever its first losses say.

When it is wrong. A large rate can learn from twenty rows; the loss then shows it, if there is a
log with two losses in it. A trainer that makes several updates of one batch sees fewer rows.

What to do. Train for at least one pass over the rows, and look at the validation loss again.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from mlxdoctor.check import Inconclusive, NotApplicable, check, limit
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.dataset import Dataset
from mlxdoctor.evidence.planned_run import PlannedRun
from mlxdoctor.evidence.training_log import Segment, TrainingLog
from mlxdoctor.finding import Sign, Symptom

_PASS = "at least one pass over the rows"
_LONGER = (
    "Train longer[: {advised_iters:,} iterations are one pass over the rows|: rows / batch_size "
    "iterations are one pass over the rows]."
)
_SAW = (
    "{iterations:* iteration} of batch size {batch_size} see {rows_seen:,} [of the {rows:,} ]rows"
    "[ in {file}]"
)


@dataclass(frozen=True)
class Limits:
    """When a run has hardly begun."""

    updates: int = limit(
        30,
        unit="updates",
        source="a sound run at a usual rate has fallen by a tenth and more by then",
        false_alarms="0 of 5 sound fixture and ward runs, which make 120 or more",
    )
    at_once: int = limit(
        12,
        unit="updates",
        source="after ten, 62 sound runs of real text have 0.15 and more of the fall of their loss "
        "before them, half of them 0.5 and more; after 20 some are done",
        false_alarms="0 of 62 sound runs of real text and 160 of the ward, which make 60 or more",
    )
    at_once_passes: float = limit(
        0.5, unit="passes over the rows, below", source="most rows were never seen"
    )
    done: float = limit(
        0.1,
        unit="nats, of the last loss",
        source="below, there is nothing left to learn from more of such rows",
    )
    passes: float = limit(0.25, unit="passes over the rows", source="most rows were never seen")
    rows: int = limit(64, unit="rows seen, where the data are unknown", source="16 batches of 4")
    fell: float = limit(
        0.1, unit="share of the first loss", source="a public run at 2e-5 lost 0.25 of it in 50"
    )


@check(
    codes={
        "barely-begun": Symptom.warning(
            "the run ended after a few updates on a part of the rows",
            _PASS,
            _LONGER,
            says=f"{_SAW}: the run has hardly begun.",
        ),
        "ended-at-once": Symptom.error(
            "the run ended after a dozen updates at most",
            _PASS,
            _LONGER,
            says=f"{_SAW}: {{updates:* update}} end before anything is learned for good.",
        ),
        "few-rows-seen": Symptom.warning(
            "the run ended while it learned, before it had seen most rows",
            _PASS,
            _LONGER,
            says=f"{_SAW}: most were never seen.",
        ),
    },
    limits=Limits(),
)
def training_length(
    config: TrainingConfig,
    *,
    dataset: Dataset | None,
    log: TrainingLog | None,
    planned: PlannedRun | None,
    limits: Limits,
) -> Iterator[Sign]:
    """Count the rows that were seen."""
    batch = config.batch_size
    if not config.describes_training or not batch:
        raise NotApplicable("the configuration does not say how the run was trained")
    segment = log.main if log is not None else None
    if log is not None and (log.failures or not _is_finite(log.main)):
        raise NotApplicable("the run broke, and that it was short says nothing more")
    iterations = _iterations(segment, config)
    if iterations is None:
        raise Inconclusive("nothing tells how many iterations were made")
    if config.iters and 2 * iterations < config.iters:
        raise Inconclusive("the log ends before the run was to end")
    updates = iterations // max(config.grad_accumulation_steps or 1, 1)
    split = dataset.splits.get("train") if dataset is not None else None
    rows, seen = len(split.rows) if split is not None else 0, iterations * batch
    names = ("train_loss", "val_loss") if segment is not None else ()
    curves = [segment.finite(name).values for name in names if segment is not None]
    is_low = any(len(values) and values[-1] < limits.done for values in curves)
    fell = any(
        len(values) >= 2 and values[0] > 0 and values[-1] <= (1.0 - limits.fell) * values[0]
        for values in curves
    )
    at_once = (
        segment is not None
        and updates <= limits.at_once
        and 0 < seen < limits.at_once_passes * rows
        and not is_low
    )
    few = seen < limits.passes * rows if rows else seen <= limits.rows
    if not at_once and (updates > limits.updates or not few):
        return
    # By itself a resumed run may be long enough; a short one does not end what went before.
    if config.resume_adapter_file or (log is not None and log.resumed):
        raise NotApplicable("the run went on from an earlier one")
    # Without the rows nobody knows that most were not seen.
    if fell and not rows:
        return
    # Of a plan no loss will tell that it learned all the same.
    is_certain = at_once or planned is not None
    yield Sign(
        "ended-at-once" if is_certain else "few-rows-seen" if fell else "barely-begun",
        {
            "iterations": iterations,
            "batch_size": batch,
            "rows_seen": seen,
            "rows": rows or None,
            "file": split.path.name if split is not None and rows else None,
            "passes": seen / rows if rows else None,
            "updates": updates,
            "advised_iters": -(-rows // batch) if rows else None,
        },
    )


def _is_finite(segment: Segment) -> bool:
    losses = (segment.get(name) for name in ("train_loss", "val_loss"))
    return all(bool(np.isfinite(series.values).all()) for series in losses if series is not None)


def _iterations(segment: Segment | None, config: TrainingConfig) -> int | None:
    """How many were made: those of the log, or else those that were planned."""
    if segment is not None and segment.axis in ("iteration", "step"):
        last = [int(series.iterations[-1]) for series in segment.series.values() if len(series)]
        if last:
            return max(last)
    return config.iters
