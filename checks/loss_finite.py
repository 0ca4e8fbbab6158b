"""The loss, or what it was computed from, is not a number.

What it finds. Training losses that are NaN or infinite; validation losses that are NaN or infinite
although the training losses are finite; losses of exactly zero, some of which hide a NaN.

Why it matters. These are facts, not opinions. One update with a NaN gradient turns every
trained weight into NaN, and no later report brings them back: the model then prints token 0.

How it is measured. Every report is examined; `loss_finite.toml` has the bounds. The validation
loss before the first update tells whether the model was sound before training. A loss of exactly
zero counts if the report before was above 0.1; a loss that fell to 0.000 slowly was rounded.

When it is wrong. Without validation batches the validation loss is NaN, too. Training on
preferences and rewards may have a loss of zero by construction: it is a warning there, and no
finding if rewards or margins other than zero are logged.

What to do. Go back to a checkpoint saved before the onset. NaN from the first report on points
to the backward pass or to rows without a target; NaN after many good reports to the step size
or to half precision.
"""

from collections.abc import Iterator

import numpy as np

from mlxdoctor.check import Inconclusive, check
from mlxdoctor.evidence.training_log import TrainingLog
from mlxdoctor.finding import Sign, Unsought
from mlxdoctor.judge.curve import loss_figures
from mlxdoctor.judge.series_table import Columns, SeriesTable
from mlxdoctor.measure.policy_curves import policy_curves

_TABLE = SeriesTable.read("loss_finite.toml")


@check(codes=_TABLE.symptoms, marks_onset=True, rerun_symptom=True)
def loss_finite(log: TrainingLog) -> Iterator[Sign | Unsought]:
    segment = log.main
    # Without an advantage the loss of a policy is 0 by construction: only its rewards tell.
    is_unseen = policy_curves(log).rewards_unseen
    unknown = {"is_mean": False, "is_unrewarded": False} if is_unseen else {}
    columns = Columns(segment.series, lambda name: {**loss_figures(segment, name), **unknown})
    yield from _TABLE.signs(columns, segment.unit)
    losses = segment.get("train_loss")
    if losses is None:
        raise Inconclusive("the log holds no training loss")
    # If the first training loss is not finite, the model may have been broken before training.
    if segment.base_val_loss is None and np.isfinite(losses.values[0]):
        why = "the log has no validation from before the first update; let the run validate first"
        yield Unsought(("non-finite-before-training",), why)
