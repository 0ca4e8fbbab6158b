"""Whether there is anything to validate on.

What it finds. A missing or empty validation split, one with fewer rows than a batch, and a
setting that validates on no batch.

Why it matters. Without validation nobody sees overfitting: a training loss that falls is no sign
that anything but these rows was learned. With fewer rows than a batch mlx-lm
stops at the first validation, and on zero batches its validation loss is 0/0, a NaN that says
nothing about the model.

How it is measured. The rows of the validation file are counted and compared with the batch size
and `val_batches`. A missing split is a warning where the log shows that the run trained without
one, and only noted where there is no log, where the log has validation losses, and of training on
preferences and rewards.

When it is wrong. A trainer other than mlx-lm may use smaller batches; where the log has finite
validation losses, too few rows are only a warning. A run may have been judged in another way, by
its answers: then the warning is no more than that.

What to do. Keep a tenth of the rows, at least a batch of them, for validation.
"""

from collections.abc import Iterator

import numpy as np

from mlxdoctor.check import check
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.dataset import Dataset
from mlxdoctor.evidence.training_log import TrainingLog
from mlxdoctor.finding import Severity, Sign, Symptom


@check(
    codes={
        "no-split": Symptom.info(
            "there is no validation split, or it is empty",
            expected="a valid.jsonl with about a tenth of the rows",
            fix="move a tenth of the rows to valid.jsonl, and train again to see when the loss on "
            "them stops falling",
            in_a_plan=Severity.WARNING,
        ),
        "fewer-than-a-batch": Symptom.error("the validation split has fewer rows than a batch"),
        "no-batches": Symptom.warning(
            "val_batches is 0: the validation loss is 0/0",
            expected="a positive number, or -1 for all",
            fix="set val_batches to -1, or remove valid.jsonl",
            in_a_plan=Severity.ERROR,
        ),
    },
)
def validation_data(
    dataset: Dataset, config: TrainingConfig | None, log: TrainingLog | None
) -> Iterator[Sign]:
    """Report what keeps the validation loss from meaning something."""
    split = dataset.splits.get("valid")
    count = len(split.rows) if split is not None else 0
    batch_size = config.batch_size if config is not None else None
    loss = log.main.get("val_loss") if log is not None else None
    if count == 0:
        # A single file that was named says nothing about the rest of the folder.
        if dataset.path.is_dir():
            yield _without(log)
        return
    if batch_size is not None and count < batch_size:
        measured = loss is not None and bool(np.isfinite(loss.values).any())
        yield Sign(
            "fewer-than-a-batch",
            f"The validation split has {count} rows, fewer than a batch of {batch_size}: "
            f"mlx-lm stops at the first validation, or its loss is 0/0.",
            {"rows": count, "batch_size": batch_size},
            where="valid.jsonl",
            severity=Severity.WARNING if measured else None,
            expected=f"at least {batch_size} rows",
            fix=f"add rows to valid.jsonl, or set batch_size to {count}",
        )
    if config is not None and config.val_batches == 0:
        message = "val_batches is 0, so every validation loss is 0/0: NaN, whatever the model."
        yield Sign("no-batches", message, {"val_batches": 0})


def _without(log: TrainingLog | None) -> Sign:
    """What a folder without validation rows means for the run."""
    training = log.main.get("train_loss") if log is not None else None
    validation = log.main.get("val_loss") if log is not None else None
    reports = len(training) if training is not None else 0
    if validation is not None and len(validation):
        message = "There are no validation rows here; the log's validation losses are of others."
        return Sign("no-split", message, {"rows": 0}, where="valid.jsonl")
    if log is None or log.is_preference or not reports:
        message = "There is no validation data: overfitting would go unseen."
        return Sign("no-split", message, {"rows": 0}, where="valid.jsonl")
    return Sign(
        "no-split",
        f"There is no validation data, and the log's {reports} reports are of the training loss "
        "alone: none shows whether the model only learned its rows by heart.",
        {"rows": 0, "reports": reports},
        where="valid.jsonl",
        severity=Severity.WARNING,
    )
