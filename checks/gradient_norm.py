"""The logged gradient norms are zero or not finite, or batches were skipped.

What it finds. Gradient norms that are exactly zero in most reports, NaN or infinite, or hundreds
of times what they are otherwise; and batches that the trainer skipped because their loss or
gradient was not finite.

Why it matters. A gradient of exactly zero trains nothing while the loss still varies with the
batches and looks alive. A norm that is not finite reaches the weights with the next update
unless the trainer skips it.

How it is measured. From the log, where the trainer writes the norm (mlx-lm itself does not).
Zero means zero, not small: a small gradient still trains. A norm explodes where it is many times
the median; the first two reports are left out, where sound runs begin high.

When it is wrong. Half-precision training with a loss scaler overflows now and then by design,
so norms that are not finite in few reports are a warning. A trainer that clips survives a lone
huge norm. In group-relative preference
training a batch whose rewards are all equal has no gradient; a single zero is not reported.

What to do. For zeros, see whether the adapter's parameters are in the graph of the loss. For
norms that are not finite, train in bfloat16 or float32, clip, and find the batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from mlxdoctor.check import NotApplicable, check, limit
from mlxdoctor.evidence.training_log import Segment, Series, TrainingLog
from mlxdoctor.finding import Measurement, Severity, Sign, Symptom, Unsought


@dataclass(frozen=True)
class Limits:
    """When gradient norms say that training does not work."""

    zero_share: float = limit(
        0.5, unit="share of reports", source="a gradient that is exactly zero is never ordinary"
    )
    zeros: int = limit(2, unit="reports", source="one batch may have nothing to learn from")
    broken_share: float = limit(
        0.2, unit="share of reports", source="loss scalers overflow in a few percent of steps"
    )
    to_the_end: int = limit(
        5, unit="last reports, all not finite", source="a loss scaler recovers in one or two"
    )
    exploded: float = limit(
        100.0,
        unit="times the median norm",
        source="sound runs reach 30 times it; weights that are thrown out reach thousands",
        false_alarms="not measured: few sound logs at hand print norms",
    )
    exploded_level: float = limit(
        100.0, unit="norm", source="what is small stays harmless, however many times the median"
    )
    settling: int = limit(2, unit="first reports", source="sound runs begin high")
    enough: int = limit(8, unit="finite norms", source="a median that a few can't move")
    skipped_share: float = limit(
        0.05, unit="skipped batches an iteration", source="more than a batch in twenty is lost"
    )
    skipped_most: float = limit(
        0.5, unit="skipped batches an iteration", source="most of the data was never trained on"
    )


@check(
    codes={
        "zero": Symptom.error(
            "the gradient is exactly zero in most reports",
            expected="gradient norms above 0",
            fix="Run the whole forward pass inside the function that nn.value_and_grad is given.",
        ),
        "non-finite": Symptom.warning(
            "gradient norms are NaN or infinite",
            expected="finite gradient norms",
            fix="Train in bfloat16 or float32, clip the gradient, and look at the rows of that "
            "batch.",
        ),
        "non-finite-throughout": Symptom.error(
            "the gradient norm is not finite in any report",
            expected="finite gradient norms",
            fix="Compute loss and gradient of one batch in float32, and see whether each row has a "
            "token to learn from.",
        ),
        "exploded": Symptom.warning(
            "a gradient norm is hundreds of times the usual one",
            expected="gradient norms of one order of magnitude",
            fix="Clip the gradient (max_grad_norm 1), lower the learning rate, and look at the "
            "rows of that batch.",
        ),
        "skipped-batches": Symptom.info(
            "the trainer skipped batches that were not finite",
            expected="no batch skipped",
            fix="Look at the rows of those batches; the model did not learn from them.",
        ),
    },
    limits=Limits(),
    rerun_symptom=True,
)
def gradient_norm(log: TrainingLog, limits: Limits) -> Iterator[Sign | Unsought]:
    """Judge the gradient norms of the log's main segment."""
    segment = log.main
    norms = segment.get("grad_norm")
    skips = [segment.get(name) for name in ("skipped", "skipped_batch_loss")]
    if norms is None and not any(skips):
        raise NotApplicable("the log has no gradient norms")
    if norms is not None:
        yield from _zero(norms, log.is_preference, limits)
        yield from _broken(norms, segment.unit, limits)
        yield from _exploded(norms, segment.unit, limits)
    else:
        yield Unsought(
            ("zero", "non-finite", "non-finite-throughout", "exploded"),
            "the log has no gradient norms",
        )
    yield from _skipped(segment, limits)


def _zero(norms: Series, preference: bool, limits: Limits) -> Iterator[Sign]:
    zero = norms.values == 0.0
    count, reports = int(zero.sum()), len(norms)
    if count >= limits.zeros and count >= limits.zero_share * reports:
        yield Sign(
            "zero",
            f"The gradient is exactly zero in {count} of {reports} reports: nothing is trained "
            "there.",
            {"zero_reports": count, "reports": reports},
            onset=int(norms.iterations[np.argmax(zero)]),
            severity=Severity.WARNING if preference and count < reports else None,
        )


def _broken(norms: Series, unit: str, limits: Limits) -> Iterator[Sign]:
    broken = ~np.isfinite(norms.values)
    count, reports = int(broken.sum()), len(norms)
    if not count:
        return
    onset = int(norms.iterations[np.argmax(broken)])
    measured: dict[str, Measurement] = {"non_finite_reports": count, "reports": reports}
    if count == reports and reports > 1:
        message = f"The gradient norm is not finite in any of the {reports} reports."
        yield Sign("non-finite-throughout", message, measured, onset=onset)
        return
    at_the_end = reports - int(np.flatnonzero(~broken)[-1]) - 1 if count < reports else 1
    lasting = at_the_end >= limits.to_the_end or (
        bool(broken[-1]) and count > max(1, limits.broken_share * reports)
    )
    message = f"The gradient norm is not finite in {count} of {reports} reports"
    if at_the_end > 1:
        since = int(norms.iterations[reports - at_the_end])
        message += f", the last {at_the_end} of them (from {unit} {since} on) included"
        measured["last_reports"] = at_the_end
    severity = Severity.ERROR if lasting else None
    yield Sign("non-finite", f"{message}.", measured, onset=onset, severity=severity)


def _exploded(norms: Series, unit: str, limits: Limits) -> Iterator[Sign]:
    values, iterations = norms.finite.values, norms.finite.iterations
    if len(values) < limits.enough:
        return
    usual = float(np.median(values))
    huge = (values > limits.exploded * usual) & (values > limits.exploded_level)
    huge[: limits.settling] = False
    if usual <= 0.0 or not huge.any():
        return
    highest = int(np.argmax(np.where(huge, values, -np.inf)))
    yield Sign(
        "exploded",
        f"{int(huge.sum())} of {len(values)} finite gradient norms are over {limits.exploded:g} "
        f"times the median of {usual:.3g}; the highest is {values[highest]:.4g} at {unit} "
        f"{int(iterations[highest])}.",
        {"exploded": int(huge.sum()), "highest": float(values[highest]), "median": usual},
        onset=int(iterations[np.argmax(huge)]),
    )


def _skipped(segment: Segment, limits: Limits) -> Iterator[Sign]:
    reported, events = segment.get("skipped"), segment.get("skipped_batch_loss")
    counts = [len(events)] if events is not None else []
    places = [int(events.iterations[0])] if events is not None else []
    if reported is not None and (finite := reported.finite.values).any():
        # Some trainers count up, some count the batches of each report.
        rising = bool(np.all(np.diff(finite) >= 0))
        counts.append(int(finite.max() if rising else finite.sum()))
        places.append(int(reported.iterations[np.argmax(reported.values > 0)]))
    if not counts or max(counts) == 0:
        return
    last = max(int(one.iterations[-1]) for one in segment.series.values())
    share = max(counts) / max(last, 1)
    severity = Severity.WARNING if share > limits.skipped_share else None
    if share > limits.skipped_most:
        severity = Severity.ERROR
    yield Sign(
        "skipped-batches",
        f"The trainer skipped {max(counts)} batches in {last} {segment.unit}s because they were "
        "not finite.",
        {"skipped": max(counts), "iterations": last, "share": share},
        onset=min(places),
        severity=severity,
    )
