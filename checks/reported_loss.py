"""Whose validation loss was reported, measured.

What it finds. A reported loss or perplexity of the validation rows that the untouched base model
has on them, and the tuned model has not.

Why it matters. An evaluation that loads the model and not the adapter says nothing about the
fine-tune: a sound one looks useless, and a bad one fine.

How it is measured. Both models' losses on the validation rows, 64 of them at most, in each of the
ways in which sound trainers count targets. The figure is a model's if it differs from that model's
loss by no more than the tolerance, or than three standard errors where not every row was measured.
It is the base's if it is so in one of these ways, the tuned model's in none, and four times as
near to the one as to the other. A log alone often cannot tell: its validation losses are over a
few batches.

When it is wrong. A figure of other rows than those of the validation split is neither model's, as a
rule, and nothing is said of it; a figure whose name says "base", "train" or "test" is left alone.

What to do. Evaluate again with the adapter loaded, and see that the figure changes with it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mlxdoctor.check import Cost, DoesNotArise, Inconclusive, check, limit
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.metrics import ReportedMetric, ReportedMetrics
from mlxdoctor.finding import Measurement, Seen, Sign, Symptom
from mlxdoctor.models.readings import MeanLoss, mean_loss, usual_readings
from mlxdoctor.models.validation import ValidationRows


@dataclass(frozen=True)
class Limits:
    """When a reported loss is a model's."""

    rows: int = limit(64, unit="validation rows", source="as loss-agreement measures")
    enough: int = limit(8, unit="validation rows", source="as learned-targets")
    same: float = limit(
        0.05, unit="nats", source="half precision, and rows left over after the last batch"
    )
    errors: float = limit(
        3.0, unit="standard errors of rows that were not measured", source="convention"
    )
    apart: float = limit(
        0.2, unit="nats between a figure and a loss that is not its own", source="4 times `same`"
    )
    closer: float = limit(4.0, unit="times", source="as metric-consistency")


@check(
    codes={
        "of-the-base": Symptom.error(
            "the reported loss is the base model's, measured again",
            "a loss near {tuned_loss:.3f}",
            "Load the adapter in the evaluation, and check that its result changes with it.",
            says="The reported {figure} is {reported:.4g}, a loss of {reported_loss:.3f}: on "
            "{rows:* validation row} the untouched base model has {base_loss:.3f}, the tuned model "
            "{tuned_loss:.3f}.",
        )
    },
    cost=Cost.FORWARD,
    limits=Limits(),
)
def reported_loss(
    metrics: ReportedMetrics,
    validation: ValidationRows,
    *,
    config: TrainingConfig | None,
    limits: Limits,
) -> Iterator[Sign | Seen]:
    """Compare the reported validation loss with both models' own."""
    figures = [metric for metric in metrics.losses if metric.split in (None, "valid")]
    if not figures:
        raise DoesNotArise("no loss of the validation rows was reported")
    rows = validation.measure(None, min(limits.rows, validation.total))
    # Both models' losses under each way to count targets.
    pairs = [
        (mean_loss(rows, "base", reading), mean_loss(rows, "tuned", reading))
        for reading in usual_readings(config)
    ]
    pairs = [(base, tuned) for base, tuned in pairs if base.rows and tuned.rows]
    if len(rows) < limits.enough or not pairs:
        raise Inconclusive(f"{len(rows)} validation rows could be measured with both models")
    losses: dict[float, ReportedMetric] = {}
    for figure in figures:
        if figure.loss is not None:
            # A loss and its perplexity are one figure.
            losses.setdefault(round(figure.loss, 2), figure)
    results = [_whose(figure, pairs, validation.total, limits) for figure in losses.values()]
    if not any(results):
        raise Inconclusive("the reported loss is neither model's on the validation rows")
    yield from filter(None, results)


def _whose(
    figure: ReportedMetric,
    pairs: Sequence[tuple[MeanLoss, MeanLoss]],
    total: int,
    limits: Limits,
) -> Sign | Seen | None:
    """Whether a figure is the tuned model's in one way to count targets, or else the base's."""
    loss = figure.loss or 0.0

    def is_of(mean: MeanLoss) -> bool:
        uncertain = limits.errors * mean.uncertainty(total, total)
        return abs(loss - mean.value) <= max(limits.same, uncertain)

    def measured(base: MeanLoss, tuned: MeanLoss) -> dict[str, Measurement]:
        return {
            "figure": figure.name,
            "reported": figure.value,
            "reported_loss": loss,
            "base_loss": base.value,
            "tuned_loss": tuned.value,
            "rows": base.rows,
        }

    for base, tuned in pairs:
        if is_of(tuned):
            return Seen(
                "The reported {figure} is {reported:.4g}, a loss of {reported_loss:.3f}, as the "
                "tuned model has it on {rows:* validation row} ({tuned_loss:.3f}).",
                measured(base, tuned),
            )
    for base, tuned in pairs:
        off_base, off_tuned = abs(loss - base.value), abs(loss - tuned.value)
        is_far = off_tuned >= limits.apart and off_base * limits.closer < off_tuned
        if is_of(base) and is_far:
            return Sign("of-the-base", measured(base, tuned), where=figure.source.path.name)
    return None
