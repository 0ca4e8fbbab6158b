"""Whether the model knows the rows of each split as well as it should.

What it finds. Rows of test.jsonl that the model knows far worse than those of valid.jsonl, and
training rows that it knows no better than held-out ones although the log says so.

Why it matters. Rows that were damaged on their way are damaged in training and validation alike,
and their losses look well; test rows that took another way show it. A trainer that draws the same
few rows again and again reports a training loss next to zero; one that takes one kind of rows after
the other ends with the last kind, and has lost the others.

How it is measured. The tuned model reads rows of each split. The loss on the answers of the test
rows is compared with that of the validation rows, and their difference with the same of the base
model. The loss on training rows is compared with the last reports of the log, where the validation
loss of the log is that of the validation rows. Rows on which the loss is as low as the log ends,
and rows on which it is many times that, with next to none between, are told apart in both splits.

When it is wrong. Test rows may be harder on purpose, or of another kind: the base model does not
always tell. A trainer that divides its loss by something reports less throughout: where the two
losses of the log keep one ratio, nothing is said.

What to do. Read ten rows of each split side by side; print the numbers of the rows of ten batches.
"""

import math
from collections.abc import Iterator, Sequence

import numpy as np

from mlxdoctor.check import Inconclusive, check
from mlxdoctor.engines.series import median
from mlxdoctor.evidence.supervision import Role
from mlxdoctor.evidence.training_log import TrainingLog
from mlxdoctor.finding import Sign, Symptom
from mlxdoctor.judge.learned import LossChange, region
from mlxdoctor.measure.logged_levels import LAST_REPORTS
from mlxdoctor.models.losses import ENOUGH_ROWS, RowLosses, TokenLosses, mean_loss, usual_targets

#: Nats, times the loss of the validation rows, and standard errors by which the test rows are
#: known worse: 1.2, 7 and 6 in one run, 2.6 times at 3.8 in another, 0.1 and 1.2 at most in nine
#: sound ones.
APART, TIMES, ERRORS = 0.3, 2.0, 3.0
#: Share of the difference that the base model has, too, where the test rows are harder by kind.
OF_THE_BASE = 0.5
#: Nats by which held-out rows may be known worse than those trained on, and that were learned.
AS_WELL, LEARNED = 0.1, 1.0
#: Share by which the validation loss of the log may differ from that of the rows measured.
ALIKE = 0.2
#: Times the training loss of the log, of the held-out rows and of those trained on, and the share
#: of the first that the second is: 26, 26 and 0.9 in a run that trained on one batch.
BETTER, NO_BETTER = 3.0, 0.7
#: Nats of a low loss, times the loss that the log ends with of one that is far from it, and share
#: of the rows that are a kind: 0.08, 4.9 and 22% where three kinds were trained in turn.
LOW, FAR, A_KIND = 0.1, 10.0, 0.1
#: Share by which a ratio of two losses differs that is one and the same.
STEADY = 0.15


@check(
    codes={
        "test-differs": Symptom.warning(
            "test rows are known far worse than validation rows",
            says="The tuned model's loss on the answers is {test_loss:.3f} in test.jsonl and "
            "{valid_loss:.3f} in valid.jsonl ({rows:* row}); the base model's, {base_test:.2f} and "
            "{base_valid:.2f}. What was trained and validated on is not what is tested.",
            expected="about the same loss on all rows that were held out",
            fix="Read ten rows of both files side by side: a step that changes rows was applied to "
            "only one of them.",
        ),
        "held-out-known": Symptom.info(
            "rows that were held out are known as well as those trained on",
            says="The tuned model's loss on the answers is {trained_loss:.3f} on training rows and "
            "{valid_loss:.3f} on {rows} validation rows that are none of them: what was learned "
            "holds beyond the rows.",
            expected="about the same loss on all rows",
        ),
        "kinds-lost": Symptom.error(
            "some rows are known as well as the log says, and the others not at all",
            says="The log ends with a loss of {logged:.3g}. The saved model's loss is as low on "
            "only {known} of {rows} rows, training and validation rows together. On {lost} others "
            "it is {lost_loss:.2f} (median); {between} rows lie between. The model knows one kind "
            "of row; it lost the others or never learned them.",
            expected="about the same loss on all rows",
            fix="Draw every batch from all kinds of rows. Training on one kind after the other "
            "overwrites what was learned before.",
        ),
        "rows-unseen": Symptom.error(
            "training rows are known no better than held-out ones",
            says="The log's last training losses are {logged:.3g}, and the saved model has "
            "{trained_loss:.3f} on {rows} training rows, as on held-out ones ({valid_loss:.3f}): "
            "most of the rows were never trained on.",
            expected="about {logged:.3g} on the training rows",
            fix="Print which rows each batch holds. A generator that is created anew at each step "
            "draws the same rows. A slice by the batch number takes only the first few.",
        ),
    }
)
def split_losses(losses: TokenLosses, log: TrainingLog | None) -> Iterator[Sign]:
    valid, trained, test = (
        [row for row in rows if row.tuned is not None]
        for rows in (losses.split("valid"), losses.split("train"), losses.test)
    )
    known, learned, tested = (region(rows, Role.ANSWER) for rows in (valid, trained, test))
    if not known.is_enough:
        raise Inconclusive(f"{len(known.gains)} validation rows; {ENOUGH_ROWS} are needed")
    if tested.is_enough:
        yield from _beside_test(known, tested)
    if not learned.is_enough:
        return
    if log is not None and not log.is_preference:
        if kinds := list(_kinds(known, learned, log)):
            yield from kinds
            return
        yield from _beside_log(valid, trained, log)
    trained_loss, valid_loss = float(learned.tuned.mean()), float(known.tuned.mean())
    if valid_loss - trained_loss <= AS_WELL and known.gain >= LEARNED:
        figures = {"trained_loss": trained_loss, "valid_loss": valid_loss}
        yield Sign("held-out-known", {**figures, "rows": len(valid)})


def _beside_test(valid: LossChange, test: LossChange) -> Iterator[Sign]:
    known, tested = valid.tuned, test.tuned
    before, tested_before = float(valid.base.mean()), float(test.base.mean())
    apart = float(tested.mean() - known.mean())
    error = math.sqrt(known.var() / len(known) + tested.var() / len(tested))
    is_clear = apart >= max(APART, ERRORS * error) and tested.mean() >= TIMES * known.mean()
    if is_clear and tested_before - before <= OF_THE_BASE * apart:
        figures = {"test_loss": float(tested.mean()), "valid_loss": float(known.mean())}
        figures |= {"base_test": tested_before, "base_valid": before}
        yield Sign("test-differs", {**figures, "rows": len(tested)})


def _kinds(valid: LossChange, trained: LossChange, log: TrainingLog) -> Iterator[Sign]:
    """Rows that are known as the log ends, and others that are not, in either split."""
    reports, validations = (log.main.finite(name).values for name in ("train_loss", "val_loss"))
    ends = [median(part) for part in (reports[-LAST_REPORTS:], validations[-1:]) if len(part)]
    logged = max(ends, default=0.0)
    low, high = max(BETTER * logged, LOW), max(FAR * logged, LEARNED)
    splits = [split.tuned for split in (valid, trained)]
    if logged <= 0.0 or any(np.mean(losses <= low) < A_KIND for losses in splits):
        return
    losses = np.concatenate(splits)
    lost, between = losses[losses >= high], (losses > low) & (losses < high)
    if 2 * len(lost) >= len(losses) and between.mean() <= A_KIND / 2:
        figures = {"logged": logged, "rows": len(losses), "known": int((losses <= low).sum())}
        figures |= {"lost": len(lost), "lost_loss": median(lost), "between": int(between.sum())}
        yield Sign("kinds-lost", figures)


def _beside_log(
    valid: Sequence[RowLosses], trained: Sequence[RowLosses], log: TrainingLog
) -> Iterator[Sign]:
    reports, validations = (log.main.finite(name).values for name in ("train_loss", "val_loss"))
    if len(reports) <= LAST_REPORTS or len(validations) < 2:
        return
    logged, held_out = median(reports[-LAST_REPORTS:]), float(validations[-1])
    if logged <= 0.0 or held_out < BETTER * logged:
        return
    # A training loss that is divided by something keeps one ratio from early on.
    early, late = float(validations[1]) / float(reports[1]), held_out / logged
    if abs(late - early) <= STEADY * late:
        return
    # A trainer of one's own may mask prompts whatever its configuration says.
    for targets in usual_targets(None):
        held, seen = (mean_loss(rows, "tuned", targets) for rows in (valid, trained))
        error = ERRORS * held.spread / math.sqrt(max(held.rows, 1))
        is_same_kind = abs(held.value - held_out) <= max(ALIKE * held_out, error)
        if is_same_kind and seen.value >= max(BETTER * logged, NO_BETTER * held.value):
            figures = {"logged": logged, "trained_loss": seen.value, "valid_loss": held.value}
            yield Sign("rows-unseen", {**figures, "rows": len(trained)})
            return
