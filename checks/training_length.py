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

import numpy as np

from mlxdoctor.check import Inconclusive, NotApplicable, check
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.dataset import Dataset
from mlxdoctor.evidence.other_runs import PlannedRun
from mlxdoctor.evidence.training_log import TrainingLog
from mlxdoctor.finding import Severity, Sign, Symptom

#: Updates and passes over the rows below which a run has hardly begun: a sound run at a usual rate
#: has lost a tenth of its loss by then. 0 of 5 sound fixture and ward runs, which make 120 or more.
FEW_UPDATES, FEW_PASSES = 30, 0.25
#: Updates and passes after which nothing is learned for good: after ten, 62 sound runs of real text
#: have 0.15 and more of the fall of their loss before them; after 20 some are done.
AT_ONCE, AT_ONCE_PASSES = 12, 0.5
#: Nats of the last loss below which there is nothing left to learn from such rows.
DONE = 0.1
#: Rows seen, where the data are unknown: 16 batches of 4.
FEW_ROWS = 64
#: Share of the first loss that shows learning: a public run at 2e-5 lost 0.25 of it in 50.
FELL = 0.1


@check(
    codes={
        "few-rows-seen": Symptom.warning(
            "the run ended after a few rows, or before it had seen most of them",
            says="{iterations:* iteration} of batch size {batch_size} see {rows_seen:,} [of the "
            "{rows:,} ]rows[ in {file}]: [{at_once:* update} end before anything is learned for "
            "good|most of the {unseen_of:,} were never seen|the run has hardly begun].",
            expected="at least one pass over the rows",
            fix="Train longer[: {advised_iters:,} iterations are one pass over the rows|: rows / "
            "batch_size iterations are one pass over the rows].",
        ),
    },
)
def training_length(
    config: TrainingConfig,
    dataset: Dataset | None,
    log: TrainingLog | None,
    planned: PlannedRun | None,
) -> Iterator[Sign]:
    batch = config.batch_size
    if not config.describes_training or not batch:
        raise NotApplicable("the configuration does not say how the run was trained")
    iterations, losses = config.iters, []
    if log is not None:
        names = log.main.series.keys() & {"train_loss", "val_loss"}
        losses = [log.main.series[name].values for name in names if len(log.main.series[name])]
        if log.notes.failures or not all(np.isfinite(values).all() for values in losses):
            raise NotApplicable("the run broke, and that it was short says nothing more")
        if log.main.is_counted:
            iterations = iterations if log.main.last is None else log.main.last
    if iterations is None:
        raise Inconclusive("nothing tells how many iterations were made")
    if config.iters and 2 * iterations < config.iters:
        raise Inconclusive("the log ends before the run was to end")
    updates = iterations // max(config.grad_accumulation_steps or 1, 1)
    split = dataset.splits.get("train") if dataset is not None else None
    rows, seen = len(split.rows) if split is not None else 0, iterations * batch
    fell = any(
        len(values) >= 2 and values[0] > 0 and values[-1] <= (1.0 - FELL) * values[0]
        for values in losses
    )
    is_open = log is not None and not any(values[-1] < DONE for values in losses)
    at_once = is_open and updates <= AT_ONCE and 0 < seen < AT_ONCE_PASSES * rows
    few = seen < FEW_PASSES * rows if rows else seen <= FEW_ROWS
    if not at_once and (updates > FEW_UPDATES or not few):
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
        "few-rows-seen",
        {
            "at_once": updates if is_certain else None,
            "unseen_of": rows if fell else None,
            "iterations": iterations,
            "batch_size": batch,
            "rows_seen": seen,
            "rows": rows or None,
            "file": split.path.name if split is not None and rows else None,
            "updates": updates,
            "advised_iters": -(-rows // batch) if rows else None,
        },
        severity=Severity.ERROR if is_certain else None,
    )
