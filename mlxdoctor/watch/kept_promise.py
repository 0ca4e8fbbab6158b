"""What preflight promised of a training, beside what its reports have said so far."""

from __future__ import annotations

import math

from mlxdoctor.evidence.promise import Promise
from mlxdoctor.judge.promise_kept import (
    Compared,
    PromiseLimits,
    compared,
    seconds_an_iteration,
)
from mlxdoctor.watch.reports import LogRow


class KeptSoFar:
    """Takes in the reports of one training.

    Args:
        promise: what was promised; None where nothing was.
    """

    def __init__(self, promise: Promise | None) -> None:
        self._promise, self._limits = promise, PromiseLimits()
        self._peak: float | None = None
        self._speeds: list[float] = []
        self._rates: list[float] = []
        self._tokens: list[tuple[int, float]] = []
        self._loss: float | None = None

    def see(self, report: LogRow) -> None:
        """Note what a report says of memory, pace and loss."""
        if self._promise is None:
            return
        values = {name: value for name, value in report.values.items() if 0 < value < math.inf}
        peak = values.get("peak_memory_gb")
        if peak is not None:
            self._peak = max(peak, self._peak or 0.0)
        for name, into in (
            ("iterations_per_second", self._speeds),
            ("tokens_per_second", self._rates),
        ):
            if name in values:
                into.append(values[name])
        if report.unit != "iteration":
            return
        if self._promise.loss is not None and report.step == self._promise.loss[0]:
            self._loss = values.get("train_loss", self._loss)
        if "trained_tokens" in values:
            # Of all but the first the last is what counts.
            self._tokens[1:] = [(report.step, values["trained_tokens"])]

    @property
    def compared(self) -> tuple[Compared, ...]:
        """What can be compared by now."""
        if self._promise is None:
            return ()
        return tuple(
            compared(
                self._promise,
                peak_gb=self._peak,
                seconds=seconds_an_iteration(self._speeds, self._rates, self._tokens),
                reports=len(self._speeds or self._rates),
                loss=self._loss,
                limits=self._limits,
            )
        )
