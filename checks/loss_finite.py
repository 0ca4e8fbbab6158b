"""The loss, or what it was computed from, is not a number.

What it finds. Training losses that are NaN or infinite; validation losses that are, while the
training losses are fine; losses of exactly zero, among them those that hide a NaN.

Why it matters. These are facts, not opinions. One update with a NaN gradient turns every
trained weight into NaN, and no later report brings them back: the model then prints token 0.

How it is measured. Every report is looked at; `loss_finite.toml` has the bounds. The validation
loss before the first update tells whether the model was sound until it was trained. A loss of
exactly zero counts where the report before was above 0.1; a loss that crept down to 0.000 was
rounded.

When it is wrong. A validation loss is NaN as well where there were no validation batches.
Training on preferences and rewards may have a loss of zero by construction: there it is a warning,
and no finding where rewards or margins other than zero are logged.

What to do. Go back to a checkpoint saved before the onset. NaN from the first report on points
to the backward pass or to rows without a target; NaN after many good reports to the step size
or to half precision.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from mlxdoctor.check import Inconclusive, check
from mlxdoctor.evidence.training_log import TrainingLog
from mlxdoctor.finding import Sign, Unsought
from mlxdoctor.judge.curve import loss_figures
from mlxdoctor.judge.series_table import Columns, SeriesTable

_TABLE = SeriesTable.read("loss_finite.toml")


@check(codes=_TABLE.symptoms, marks_onset=True, rerun_symptom=True)
def loss_finite(log: TrainingLog) -> Iterator[Sign | Unsought]:
    """Judge the values of the log's main segment, one by one."""
    segment = log.main
    columns = Columns(segment.series, partial(loss_figures, segment))
    yield from _TABLE.signs(columns, segment.unit)
    losses = segment.get("train_loss")
    if losses is None:
        raise Inconclusive("the log holds no training loss")
    # Where the very first training loss is not finite, the model may have been broken before.
    if segment.base_val_loss is None and np.isfinite(losses.values[0]):
        why = "the log has no validation from before the first update; let the run validate first"
        yield Unsought(("non-finite-before-training",), why)
