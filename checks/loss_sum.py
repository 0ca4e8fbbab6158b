"""A loss that is a sum, not a mean over targets.

What it finds. A training loss so high that no mean over targets can be, because the losses of
all targets, or of all rows of a batch, are added up.

Why it matters. Its gradient is as many times too large: a rate that is sound for a mean
destroys the model with plain gradient descent, and clipping cuts every step. Longer rows and
larger batches weigh more, and losses can't be compared with anything.

How it is measured. The first quarter of the training losses is held against four times the loss
of a blind guess among all tokens: shifted labels, broken base models and destroyed ones stay
below. The targets and the rows of a batch, as the log counts them or the data and the
configuration say, are tried as divisors: one that leaves a usual loss is what it was summed over.

When it is wrong. Adam's steps do not depend on the gradient's size: with it, and without
clipping, a sum does little harm but to what is reported. Where no divisor leaves a usual loss,
the loss may be of something else, and this is a warning.

What to do. Divide the loss by the number of its targets before the gradient is taken.
"""

from collections.abc import Iterator

from mlxdoctor.check import DoesNotArise, Inconclusive, check
from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.supervision import SupervisedRows
from mlxdoctor.evidence.training_log import TrainingLog
from mlxdoctor.finding import Severity, Sign, Symptom
from mlxdoctor.judge.summed_loss import Limits, summed_loss


@check(
    codes={
        "no-mean": Symptom.error(
            "the training loss is a sum over targets or rows",
            expected="a mean over targets: below the loss of a blind guess",
            fix="Divide the loss by the number of targets in the batch, before the gradient.",
        )
    },
    limits=Limits(),
    rerun_symptom=True,
)
def loss_sum(
    log: TrainingLog,
    base: BaseModel | None,
    config: TrainingConfig | None,
    rows: SupervisedRows | None,
    limits: Limits,
) -> Iterator[Sign]:
    """Hold the first training losses against what a mean can be."""
    if log.is_preference:
        raise DoesNotArise("the loss of preference training is no mean over targets")
    if log.main.get("train_loss") is None:
        raise Inconclusive("the log holds no training loss")
    found = summed_loss(log.main, config, rows, base.vocab_size if base else None, limits)
    if found is None:
        return
    said = (
        f"The first training loss is {found.first:,.1f}; a blind guess among all tokens has "
        f"{found.uniform:.1f}, and no mean over targets is so far above"
    )
    over = ""
    if found.divisor is not None and found.mean is not None:
        over = (
            f". Divided by the {found.divisor:,.0f} {found.what} it is a usual {found.mean:.2f}: "
            "losses are added up, not averaged"
        )
    yield Sign(
        "no-mean",
        f"{said}{over}.",
        {
            "first_loss": found.first,
            "uniform_guess": found.uniform,
            "divisor": found.divisor,
            "mean": found.mean,
        },
        severity=None if found.divisor is not None else Severity.WARNING,
        onset=int(log.main.series["train_loss"].iterations[0]),
    )
