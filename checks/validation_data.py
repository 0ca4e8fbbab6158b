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

from mlxdoctor.check import check
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.dataset import Dataset
from mlxdoctor.evidence.training_log import TrainingLog
from mlxdoctor.finding import Severity, Sign, Symptom


@check(
    codes={
        "no-split": Symptom.info(
            "there is no validation split, or it is empty",
            "a valid.jsonl with about a tenth of the rows",
            "move a tenth of the rows to valid.jsonl, and train again to see when the loss on them "
            "stops falling",
            in_a_plan=Severity.WARNING,
            says="There is no validation data[, and the log's {reports} reports are of the "
            "training loss alone: none shows|; the log's {validations} validation losses are of "
            "other rows: these can't show|: nothing would show] whether the model only "
            "learned its rows by heart.",
        ),
        "fewer-than-a-batch": Symptom.error(
            "the validation split has fewer rows than a batch",
            "at least {batch_size} rows",
            "add rows to valid.jsonl, or set batch_size to {rows}",
            says="The validation split has {rows:* row}, fewer than a batch of {batch_size}: "
            "mlx-lm stops at the first validation, or its loss is 0/0.",
        ),
        "no-batches": Symptom.warning(
            "val_batches is 0: the validation loss is 0/0",
            "a positive number, or -1 for all",
            "set val_batches to -1, or remove valid.jsonl",
            in_a_plan=Severity.ERROR,
            says="val_batches is {val_batches}, so every validation loss is 0/0: NaN, whatever the "
            "model.",
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
    validations = log.main.finite("val_loss") if log is not None else ()
    training = log.main.get("train_loss") if log is not None else None
    if count == 0:
        # A single file that was named says nothing about the rest of the folder.
        if dataset.path.is_dir():
            is_blind = log is not None and not log.is_preference and training is not None
            unvalidated = log is not None and log.main.get("val_loss") is None
            is_seen = is_blind and unvalidated and training is not None
            yield Sign(
                "no-split",
                {
                    "reports": len(training) if training is not None and is_seen else None,
                    "validations": len(validations) or None,
                },
                where="valid.jsonl",
                severity=Severity.WARNING if is_seen else None,
            )
        return
    if batch_size is not None and count < batch_size:
        # A trainer other than mlx-lm may use smaller batches.
        yield Sign(
            "fewer-than-a-batch",
            {"rows": count, "batch_size": batch_size},
            where="valid.jsonl",
            severity=Severity.WARNING if len(validations) else None,
        )
    if config is not None and config.val_batches == 0:
        yield Sign("no-batches", {"val_batches": 0})
