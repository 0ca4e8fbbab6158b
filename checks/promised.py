"""Whether the run kept what preflight promised.

What it finds. A peak of memory above the predicted one, iterations that take longer than the
steps that were timed before the run, and an early loss that is not the one that preflight found
when it made the same iterations.

Why it matters. What differs from the plan was not planned: longer rows than those that were looked
at, other programs on the machine, a setting that was changed in between.

How it is measured. `preflight` writes preflight.json beside its report. Named with the run, or put
into its folder, it is held against the log's highest peak of memory and the median of its
iterations a second; where a log has none, its tokens a second and the tokens trained tell it. With
`--steps` preflight makes the run's first 50 iterations, or as many as there is time for: the log's
report at the last of these is compared with it.
`watch` compares the same while a run trains.

When it is wrong. On another machine than the one that preflight ran on. Peaks are predicted within
15% (reports/preflight-memory.md), paces mostly within 20%. Losses agree to the last
digit printed where machine and versions are the same.

What to do. Run preflight again with the configuration as it is now, and compare.
"""

from collections.abc import Iterator

import numpy as np

from mlxdoctor.check import Inconclusive, check
from mlxdoctor.evidence.logs.series import Segment
from mlxdoctor.evidence.promise import Promise
from mlxdoctor.evidence.training_log import TrainingLog
from mlxdoctor.finding import Seen, Severity, Sign, Symptom
from mlxdoctor.judge.promise_kept import PromiseLimits, compared, seconds_an_iteration

_CODES = {"memory": "more-memory", "pace": "slower", "loss": "other-loss"}


@check(
    codes={
        "more-memory": Symptom.warning(
            "the run took more memory than preflight promised",
            expected="the predicted peak",
            fix="run preflight again with the configuration and the rows as they are now",
        ),
        "slower": Symptom.info(
            "the run was slower than the steps that preflight timed",
            expected="the pace of the timed steps",
        ),
        "other-loss": Symptom.info(
            "an early report has another loss than preflight found in the same iterations",
            expected="the loss of the iterations that preflight made",
        ),
    },
    limits=PromiseLimits(),
)
def promised(promise: Promise, log: TrainingLog, limits: PromiseLimits) -> Iterator[Sign | Seen]:
    """Hold peak, pace and an early loss against the promise."""
    speeds, rates = (_usable(log.main, f"{one}_per_second") for one in ("iterations", "tokens"))
    tokens = log.main.get("trained_tokens")
    counted: list[tuple[int, float]] = []
    if tokens is not None and log.main.axis == "iteration":
        counted = list(zip(tokens.iterations.tolist(), tokens.values.tolist(), strict=True))
    found = list(
        compared(
            promise,
            peak_gb=max(_usable(log.main, "peak_memory_gb"), default=None),
            seconds=seconds_an_iteration(speeds, rates, counted),
            reports=len(speeds or rates),
            loss=_loss_at(log.main, promise.loss[0]) if promise.loss is not None else None,
            limits=limits,
        )
    )
    for one in found:
        if one.is_kept:
            yield Seen(one.sentence, one.measured)
        else:
            is_guess = one.of == "memory" and promise.is_rough
            severity = Severity.INFO if is_guess else None
            yield Sign(_CODES[one.of], one.sentence, one.measured, severity=severity)
    if not found:
        raise Inconclusive("the log says nothing of what was promised, or too little")


def _usable(log: Segment, name: str) -> list[float]:
    """A series' values, as far as they are finite and above zero."""
    series = log.get(name)
    if series is None:
        return []
    values = np.asarray(series.values, np.float64)
    return [float(one) for one in values[np.isfinite(values) & (values > 0)]]


def _loss_at(log: Segment, iteration: int) -> float | None:
    """The training loss that was reported at an iteration; None where none was."""
    series = log.get("train_loss")
    if series is None or log.axis != "iteration":
        return None
    found = series.values[np.asarray(series.iterations) == iteration]
    return float(found[0]) if len(found) and np.isfinite(found[0]) else None
