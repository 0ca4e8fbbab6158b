"""The reported figures against the run's own losses.

What it finds. A reported perplexity or loss that is the untouched base model's, one that is far
better than the model that was trained, and a share of right answers that is next to nothing.

Why it matters. A perplexity of 7.66 made a collapsed model look fine: it was exp(2.036), the
loss of a model without the adapter.

How it is measured. The first validation loss of a log, before any update, is the base model's.
A reported figure, as a loss, that is close to it and far from the last validation loss was
measured without the adapter: within a tenth of a nat; or, where training took off a nat or more,
four times nearer to the first than to the last, since both are over a few batches. So are figures
from before and after training that are the same to the digit. Where both models can be run, their
losses on the validation rows, 16 of them at most, are the measure of a figure of these rows, with
or without a log.

When it is wrong. A log averages validation batches and drops the last partial one, so that
figures agree only roughly: the tolerance is stated, and a figure that is as close to the last
loss as to the first is never judged. A metric whose name says "base" is taken at its word.

What to do. Evaluate again with the adapter loaded, and compare the loss with the log's.
"""

import math
from collections.abc import Iterator, Sequence
from typing import get_args

import numpy as np

from mlxdoctor.check import DoesNotArise, Inconclusive, check
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.metrics import ReportedMetric, ReportedMetrics
from mlxdoctor.evidence.training_log import TrainingLog
from mlxdoctor.finding import Measurement, Seen, Severity, Sign, Symptom
from mlxdoctor.measure.text.outputs import as_read
from mlxdoctor.measure.text.statistics import wilson
from mlxdoctor.models.generations import RecordedGenerations
from mlxdoctor.models.load import Which
from mlxdoctor.models.losses import ENOUGH_ROWS, TokenLosses, mean_loss, usual_targets

#: Nats by which figures of one model differ, as mlx-lm averages batches and drops the last (0.05 on
#: the fixtures), and from which on two cannot be one model's.
SAME, APART = 0.1, 0.3
#: Nats that training took off from which on a figure of the base may be off by a part of them:
#: first losses of one base on one task lie up to 0.7 apart, where training took off 4.5.
FALL = 1.0
#: Times as near to one loss as to the other, for a figure to be that model's.
CLOSER = 4.0
#: Nats below the log's last loss that another split or another average does not explain.
FAR = 1.0
#: Standard errors by which the loss on the measured rows differs from that on all.
ERRORS = 3.0
#: Share of a score before training below which it is lost: no sound run of ours loses a tenth.
FALLEN = 0.5
#: Share of the expected answers that is hardly any, at the upper end of its interval, and words of
#: answers that are given exactly or not at all. In three runs whose tasks were not learned 0, 0 and
#: 4 of 40 are right, in sound ones nine of ten.
HARDLY, SHORT = 0.25, 12
#: Nats of which the perplexity is still a number.
LARGEST = 700.0


@check(
    codes={
        "base-reported": Symptom.error(
            "the reported figure is the base model's",
            "[a loss near {last_val_loss:.3f}, or a perplexity near {last_perplexity:.4g}|figures "
            "that change with the adapter]",
            "Load the adapter in the evaluation, and check that its result changes with it.",
            says="[{same_figures} figures are the same before and after training, {figure} is "
            "{reported:.4g} in both|The reported {figure} is {reported:.4g}, a loss of "
            "{reported_loss:.3f}. On {measured_by} the untouched base model has a loss of "
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
        "miscounted": Symptom.error(
            "the reported score is lower than the recorded answers allow",
            says="Of {answers:* recorded answer} {right} are the expected ones, letter for letter, "
            "and {where} has {figure} {reported:.1%}[: right answers are counted as wrong{sure}|, "
            "unless that is of other answers].",
            expected="{share:.1%} at least",
            fix="Print one answer and the expected one just before they are compared. Case, white "
            "space or a punctuation mark is changed on one side only.",
        ),
        "hardly-right": Symptom.error(
            "by its own evaluation the model gives hardly any expected answer",
            "most of the expected answers",
            "Read ten recorded answers beside the expected ones. Where the model is asked as its "
            "rows ask, compare the rows' answers with the expected ones, word by word.",
            says="By the run's own evaluation {figure} is {reported:.1%}, and of {answers:* "
            "recorded answer} {right} are the expected ones. Whatever the losses say, the answers "
            "are not those that are expected.",
        ),
        "worse-than-before": Symptom.error(
            "the reported scores are far worse than before training",
            "scores at least as good as the base model's",
            "Ask the model a training prompt exactly as the trainer wrote it. If the answer is "
            "wrong, the adapter is not applied as it was trained. If it is right, the evaluation "
            "writes its prompts differently.",
            says="By the run's own evaluation {figure} went from {before:.4g} to {after:.4g} with "
            "training, and {figures} of {compared:* score} fell to less than half.",
        ),
    },
    rerun_symptom=True,
)
def metric_consistency(
    metrics: ReportedMetrics | None,
    log: TrainingLog | None,
    rows: TokenLosses | None,
    config: TrainingConfig | None,
    answers: RecordedGenerations | None,
) -> Iterator[Sign | Seen]:
    reported = _reported(metrics, log)
    if metrics is None and not reported:
        raise DoesNotArise("no figure was reported of the tuned model")
    if metrics is not None:
        yield from _before_and_after(metrics)
        yield from _miscounted(metrics, answers)
    of_rows = next((figure for figure in reported if figure.split in (None, "valid")), None)
    if of_rows is not None and rows is not None:
        by = f"{len(rows.split('valid'))} validation rows"
        losses = list(_on_the_rows(rows, config))
        loss = of_rows.loss
        if any(
            abs(loss - tuned) <= tolerance and abs(loss - tuned) < abs(loss - base)
            for base, tuned, tolerance in losses
        ):
            said = "The reported {figure} is {reported:.4g}, a loss of {reported_loss:.3f}, as the "
            said += "tuned model has it on {measured_by}."
            yield Seen(said, _figures(of_rows) | {"measured_by": by})
            return
        signs = [sign for each in losses if (sign := _of_the_base(of_rows, *each, by)) is not None]
        if signs:
            yield signs[-1]
            return
    if log is not None and reported:
        yield from _against_the_log(reported, log)


def _reported(metrics: ReportedMetrics | None, log: TrainingLog | None) -> list[ReportedMetric]:
    """The figures that claim to be the tuned model's, and stand for a loss."""
    losses = metrics.losses if metrics is not None else ()
    figures = [metric for metric in losses if metric.split != "train"]
    if log is not None and (tests := log.notes.test_losses) and math.isfinite(tests[-1]):
        figures.append(ReportedMetric("test loss", tests[-1], "test", log.sources[0]))
    return figures


def _figures(metric: ReportedMetric) -> dict[str, Measurement]:
    return {"figure": metric.name, "reported": metric.value, "reported_loss": metric.loss}


def _before_and_after(metrics: ReportedMetrics) -> Iterator[Sign]:
    """What the run's owner measured of the base and of the tuned model."""
    pairs = [
        pair for pair in metrics.compared if all(math.isfinite(metric.value) for metric in pair)
    ]
    same = [after for before, after in pairs if before.value == after.value]
    # A score of 0 or 1 may well stay there.
    telling = [metric for metric in same if metric.value not in (0.0, 1.0)]
    if telling and len(same) == len(pairs):
        first = telling[0]
        figures: dict[str, Measurement] = {"figure": first.name, "reported": first.value}
        where = first.source.path.name
        yield Sign("base-reported", {"same_figures": len(same), **figures}, where=where)
        return
    worse = [
        (before, after)
        for before, after in pairs
        if before.is_score and before.value > 0 and after.value < FALLEN * before.value
    ]
    if worse and 2 * len(worse) > len(pairs):
        before, after = worse[0]
        figures = {"figure": after.name, "before": before.value, "after": after.value}
        figures |= {"figures": len(worse), "compared": len(pairs)}
        yield Sign("worse-than-before", figures, where=after.source.path.name)


def _miscounted(metrics: ReportedMetrics, answers: RecordedGenerations | None) -> Iterator[Sign]:
    """A share of right answers that is lower than the recorded one, or next to nothing with it."""
    known = [item for item in answers.items if item.expected] if answers is not None else []
    right = sum(item.tuned.strip() == (item.expected or "").strip() for item in known)
    # Of other rows it may be as low as it is.
    shares = [
        metric
        for metric in metrics.values
        if metric.counts_right
        and not (metric.claims_base or metric.split == "train")
        and metric.count in (None, len(known))
    ]
    best = max(shares, key=lambda metric: metric.value, default=None)
    if best is None or len(known) < ENOUGH_ROWS:
        return
    if best.value >= FALLEN * right / len(known):
        texts = [(as_read(item.tuned), as_read(item.expected or "")) for item in known]
        alike = sum(own == wanted for own, wanted in texts)
        is_short = float(np.median([len(wanted.split()) for _, wanted in texts])) <= SHORT
        if is_short and best.value <= HARDLY and wilson(alike, len(known)).high <= HARDLY:
            low: dict[str, Measurement] = {"answers": len(known), "right": alike}
            low |= {"figure": best.name, "reported": best.value}
            yield Sign("hardly-right", low, where=best.source.path.name)
        return
    figures: dict[str, Measurement] = {"answers": len(known), "right": right}
    figures |= {"figure": best.name, "reported": best.value, "share": right / len(known)}
    is_of_these = best.count == len(known) or best.value == 0.0
    severity = None if is_of_these else Severity.INFO
    figures["sure"] = "" if is_of_these else None
    yield Sign("miscounted", figures, where=best.source.path.name, severity=severity)


def _on_the_rows(
    measured: TokenLosses, config: TrainingConfig | None
) -> Iterator[tuple[float, float, float]]:
    """Both models' losses on validation rows, in each way in which sound trainers count targets.

    With each by how much a figure of the same model may be off.
    """
    rows = measured.split("valid")
    if len(rows) < ENOUGH_ROWS or any(row.tuned is None for row in rows):
        return
    total = measured.totals.get("valid", len(rows))
    for targets in usual_targets(config):
        base, tuned = (mean_loss(rows, which, targets) for which in get_args(Which))
        error = max(mean.uncertainty(total) for mean in (base, tuned))
        yield base.value, tuned.value, max(SAME, ERRORS * error)


def _against_the_log(reported: Sequence[ReportedMetric], log: TrainingLog) -> Iterator[Sign]:
    """A figure of the untouched model, or one far below the level at which training ended."""
    series, base = log.main.get("val_loss"), log.main.base_val_loss
    if series is None or not len(series) or log.is_preference:
        raise Inconclusive("the log has no validation loss to compare with")
    after = float(series.values[-1])
    if base is not None and len(series) > 1:
        fall = base - after if math.isfinite(after) else 0.0
        tolerance = max(SAME, fall / CLOSER) if fall >= FALL else SAME
        by = "the log, before the first update and at the end,"
        signs = (_of_the_base(figure, base, after, tolerance, by) for figure in reported)
        if (sign := next(filter(None, signs), None)) is not None:
            yield sign
            return
    # False for NaN.
    figure = next((figure for figure in reported if after - figure.loss > FAR), None)
    if figure is not None:
        is_near = base is not None and abs(figure.loss - base) * CLOSER < after - figure.loss
        measured = _figures(figure) | {
            "last_val_loss": after,
            "near_base": base if is_near else None,
            "unit": log.main.unit,
            "iteration": int(series.iterations[-1]),
        }
        yield Sign("not-this-model", measured, where=figure.name)
    elif base is None or len(series) < 2 or not math.isfinite(base):
        raise Inconclusive("the log has no finite validation loss from before the first update")


def _of_the_base(
    figure: ReportedMetric, base: float, after: float, tolerance: float, measured_by: str
) -> Sign | None:
    """A figure that is near the untouched model's loss, and far from the tuned model's."""
    off_base = abs(figure.loss - base)
    off_tuned = abs(figure.loss - after) if math.isfinite(after) else math.inf
    if off_base > tolerance or off_tuned < APART or off_base * CLOSER >= off_tuned:
        return None
    measured = _figures(figure) | {
        "first_val_loss": base,
        "last_val_loss": after,
        "last_perplexity": math.exp(min(after, LARGEST)) if math.isfinite(after) else after,
        "measured_by": measured_by,
    }
    # Rows of another file may be as hard for the tuned model as these for the base.
    is_sure = off_base <= SAME or figure.split == "valid"
    severity = None if is_sure else Severity.WARNING
    return Sign("base-reported", measured, where=figure.name, severity=severity)
