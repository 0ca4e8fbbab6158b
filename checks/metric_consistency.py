"""The reported figures against the run's own losses.

What it finds. A reported perplexity or loss that is the untouched base model's, and one that is far
better than the model that was trained.

Why it matters. A perplexity of 7.66 made a collapsed model look fine: it was exp(2.036), the
loss of a model without the adapter.

How it is measured. The first validation loss of a log, before any update, is the base model's.
A reported figure, as a loss, that is close to it and far from the last validation loss was
measured without the adapter: within a tenth of a nat; or, where training took off a nat or more,
four times nearer to the first than to the last, since both are over a few batches. So are figures
from before and after training that are the same to the digit. Where both models can be run, their
losses on the validation rows, 64 of them at most, are the measure of a figure of these rows, with
or without a log.

When it is wrong. A log averages validation batches and drops the last partial one, so that
figures agree only roughly: the tolerance is stated, and a figure that is as close to the last
loss as to the first is never judged. A metric whose name says "base" is taken at its word.

What to do. Evaluate again with the adapter loaded, and compare the loss with the log's.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import get_args

from mlxdoctor.check import DoesNotArise, Inconclusive, check, limit
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.metrics import ReportedMetrics
from mlxdoctor.evidence.training_log import TrainingLog
from mlxdoctor.finding import Measurement, Seen, Severity, Sign, Symptom
from mlxdoctor.judge.learned import ENOUGH_ROWS
from mlxdoctor.models.load import Which
from mlxdoctor.models.readings import mean_loss, usual_readings
from mlxdoctor.models.validation import ValidationRows


@dataclass(frozen=True)
class Limits:
    """When two losses are the same, and when they are not."""

    same: float = limit(
        0.1,
        unit="nats",
        source="mlx-lm averages batches and drops the last: 0.05 apart on the fixtures",
    )
    apart: float = limit(
        0.3, unit="nats", source="three times the tolerance: the figure cannot be both"
    )
    fall: float = limit(
        1.0,
        unit="nats between the log's first and last validation loss",
        source="few batches: first losses of one base on one task lie up to 0.7 apart, where "
        "training took off 4.5, and last ones 0.2",
    )
    far: float = limit(
        1.0,
        unit="nats between a reported loss and the log's last",
        source="another split or another average moves it by tenths",
    )
    rows: int = limit(64, unit="validation rows", source="as loss-agreement measures")
    errors: float = limit(
        3.0, unit="standard errors of rows that were not measured", source="convention"
    )
    fallen: float = limit(
        0.5,
        unit="times the score before training",
        source="half of what the base model could do is lost: no sound run of ours loses a tenth",
    )
    closer: float = limit(4.0, unit="times", source="far nearer to one loss than to the other")


@check(
    codes={
        "base-reported": Symptom.error(
            "the reported figure is the base model's",
            "[a loss near {last_val_loss:.3f}, or a perplexity near {last_perplexity:.4g}|figures "
            "that change with the adapter]",
            "Load the adapter in the evaluation, and check that its result changes with it.",
            says="[{same_figures} figures are the same before and after training, {figure} is "
            "{reported:.4g} in both|The reported {figure} is {reported:.4g}, a loss of "
            "{reported_loss:.3f}: by {measured_by} the untouched base model has "
            "{first_val_loss:.3f}, the tuned model {last_val_loss:.3f}].",
        ),
        "not-this-model": Symptom.error(
            "the reported figure is far better than the model that was trained",
            "a loss near {last_val_loss:.3f}",
            "Load the adapter in the evaluation, and check that its result changes with it.",
            says="The reported {figure} is {reported:.4g}, a loss of {reported_loss:.3f}; the "
            "log's validation loss is {last_val_loss:.3f} at {unit} {iteration}: the figure is "
            "not the trained model's[, and it is near the base model's {near_base:.3f}].",
        ),
        "worse-than-before": Symptom.error(
            "the reported scores are far worse than before training",
            "scores at least as good as the base model's",
            "Ask the model a training prompt exactly as the trainer wrote it: if the answer is "
            "wrong, the adapter is not applied as it was trained; if right, the evaluation asks in "
            "another way.",
            says="By the run's own evaluation {figure} went from {before:.4g} to {after:.4g} with "
            "training, and {figures} of {compared:* score} fell to less than half.",
        ),
    },
    limits=Limits(),
    rerun_symptom=True,
)
def metric_consistency(
    metrics: ReportedMetrics | None,
    log: TrainingLog | None,
    *,
    validation: ValidationRows | None,
    config: TrainingConfig | None,
    limits: Limits,
) -> Iterator[Sign | Seen]:
    """Compare reported figures, logged losses and answers."""
    reported = _reported(metrics, log)
    if metrics is None and not reported:
        raise DoesNotArise("no figure was reported of the tuned model")
    if metrics is not None:
        yield from _before_and_after(metrics, limits)
    by_the_rows = _by_the_rows(reported, validation, config, limits)
    if by_the_rows is not None:
        yield by_the_rows
    elif log is not None and reported:
        yield from _against_the_log(reported, log, limits)


@dataclass(frozen=True)
class _Reported:
    """A figure that claims to be the tuned model's, and the loss that it stands for."""

    name: str
    value: float
    loss: float
    split: str | None


def _reported(metrics: ReportedMetrics | None, log: TrainingLog | None) -> list[_Reported]:
    figures = [
        _Reported(metric.name, metric.value, metric.loss, metric.split)
        for metric in (metrics.losses if metrics is not None else ())
        if metric.loss is not None and metric.split != "train"
    ]
    if log is not None and log.test_loss is not None and math.isfinite(log.test_loss):
        figures.append(_Reported("test loss", log.test_loss, log.test_loss, "test"))
    return figures


def _before_and_after(metrics: ReportedMetrics, limits: Limits) -> Iterator[Sign]:
    """What the run's owner measured of the base and of the tuned model."""
    pairs = [
        (before, after)
        for before, after in metrics.compared
        if math.isfinite(before.value) and math.isfinite(after.value)
    ]
    same = [after for before, after in pairs if before.value == after.value]
    # A score of 0 or 1 may well stay there.
    telling = [metric for metric in same if metric.value not in (0.0, 1.0)]
    if telling and len(same) == len(pairs):
        first = telling[0]
        figures: dict[str, Measurement] = {
            "same_figures": len(same),
            "figure": first.name,
            "reported": first.value,
        }
        yield Sign("base-reported", figures, where=first.source.path.name)
        return
    worse = [
        (before, after)
        for before, after in pairs
        if before.is_score and before.value > 0 and after.value < limits.fallen * before.value
    ]
    if worse and 2 * len(worse) > len(pairs):
        before, after = worse[0]
        figures = {"figure": after.name, "before": before.value, "after": after.value}
        counts = {"figures": len(worse), "compared": len(pairs)}
        yield Sign("worse-than-before", figures | counts, where=after.source.path.name)


def _by_the_rows(
    reported: Sequence[_Reported],
    validation: ValidationRows | None,
    config: TrainingConfig | None,
    limits: Limits,
) -> Sign | Seen | None:
    """Whose loss on the validation rows a figure of them is; None where it is neither's.

    A figure is a model's in one of the ways in which sound trainers count targets.
    """
    figure = next((one for one in reported if one.split in (None, "valid")), None)
    if validation is None or figure is None:
        return None
    rows = validation.measure(None, min(limits.rows, validation.total))
    if len(rows) < ENOUGH_ROWS or any(row.tuned is None for row in rows):
        return None
    of_the_base = None
    for reading in usual_readings(config):
        base, tuned = (mean_loss(rows, which, reading) for which in get_args(Which))
        off_base, off_tuned = (abs(figure.loss - mean.value) for mean in (base, tuned))
        error = max(mean.uncertainty(validation.total, validation.total) for mean in (base, tuned))
        tolerance = max(limits.same, limits.errors * error)
        measured: dict[str, Measurement] = {
            "figure": figure.name,
            "reported": figure.value,
            "reported_loss": figure.loss,
            "first_val_loss": base.value,
            "last_val_loss": tuned.value,
            "last_perplexity": math.exp(min(tuned.value, 700.0)),
            "measured_by": f"{len(rows)} validation rows",
            "rows": len(rows),
        }
        if off_tuned <= tolerance and off_tuned < off_base:
            said = "The reported {figure} is {reported:.4g}, a loss of {reported_loss:.3f}, as the "
            return Seen(f"{said}tuned model has it on {{rows}} validation rows.", measured)
        is_far = off_tuned >= limits.apart and off_base * limits.closer < off_tuned
        if off_base <= tolerance and is_far:
            of_the_base = Sign("base-reported", measured, where=figure.name)
    return of_the_base


def _against_the_log(
    reported: Sequence[_Reported], log: TrainingLog, limits: Limits
) -> Iterator[Sign]:
    """A figure of the untouched model, or one far below the level at which training ended."""
    series, base = log.main.get("val_loss"), log.main.base_val_loss
    if series is None or not len(series) or log.is_preference:
        raise Inconclusive("the log has no validation loss to compare with")
    after = float(series.values[-1])
    if base is not None and len(series) > 1:
        signs = (_of_the_base(figure, base, after, limits) for figure in reported)
        if (sign := next(filter(None, signs), None)) is not None:
            yield sign
            return
    # False for NaN.
    figure = next((figure for figure in reported if after - figure.loss > limits.far), None)
    if figure is not None:
        is_near = base is not None and abs(figure.loss - base) * limits.closer < after - figure.loss
        yield Sign(
            "not-this-model",
            {
                "figure": figure.name,
                "reported": figure.value,
                "reported_loss": figure.loss,
                "last_val_loss": after,
                "near_base": base if is_near else None,
                "unit": log.main.unit,
                "iteration": int(series.iterations[-1]),
            },
            where=figure.name,
        )
    elif base is None or len(series) < 2 or not math.isfinite(base):
        raise Inconclusive("the log has no finite validation loss from before the first update")


def _of_the_base(figure: _Reported, before: float, after: float, limits: Limits) -> Sign | None:
    """A figure that is near the loss before training, and far from the one after it."""
    fall = before - after if math.isfinite(after) else 0.0
    off_base = abs(figure.loss - before)
    off_tuned = abs(figure.loss - after) if math.isfinite(after) else math.inf
    is_same = off_base <= limits.same
    is_near = is_same or (fall >= limits.fall and off_base * limits.closer < fall)
    if not is_near or off_tuned < limits.apart or off_base * limits.closer >= off_tuned:
        return None
    return Sign(
        "base-reported",
        {
            "figure": figure.name,
            "reported": figure.value,
            "reported_loss": figure.loss,
            "first_val_loss": before,
            "last_val_loss": after,
            "last_perplexity": math.exp(min(after, 700.0)) if math.isfinite(after) else after,
            "measured_by": "the log, before the first update and at the end,",
        },
        where=figure.name,
        # Rows of another file may be as hard for the tuned model as these for the base.
        severity=None if is_same or figure.split == "valid" else Severity.WARNING,
    )
