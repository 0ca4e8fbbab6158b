"""A loss that begins above a blind guess and settles where the input does not help.

What it finds. A training loss that starts far above what a guess among all tokens has, falls
within the first reports, and then stays flat at a level that no language model has.

Why it matters. It looks like a broken base model, and it is not one: a model that is sure of
other tokens than the targets, and then learns no more than how often each token is a target, is
a sound one with targets that do not follow from the input. They are permuted, shifted or another
row's.

How it is measured. The first training loss against ln V of the base model, or of 300,000 tokens;
the medians of the third and the last quarter of the reports against each other; and the level at
a third of the run against that at its end.

When it is wrong. A step that destroys the model before the first report may end as flat; then
the rate is far above the usual. With few reports nothing is said.

What to do. Print one row's inputs and targets side by side: each target is the token after its
input, and the row's own.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from mlxdoctor.check import Inconclusive, NotApplicable, check, limit
from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.training_log import TrainingLog
from mlxdoctor.finding import Sign, Symptom
from mlxdoctor.judge.model_facts import GuessLimits

_MEASURED = "0 of 22 logs of users, sound and faulty"


@dataclass(frozen=True)
class Limits(GuessLimits):
    """When a loss has settled without its input."""

    above: float = limit(
        1.5,
        unit="nats above a uniform guess, at the start",
        source="as loss-level; 6 where the targets of each row were permuted",
        false_alarms=_MEASURED,
    )
    reports: int = limit(12, unit="reports", source="three in each quarter")
    flat: float = limit(
        0.05,
        unit="share by which the loss falls from the third to the last quarter",
        source="0.00 to 0.02 where targets were permuted; a broken base's goes on falling",
        false_alarms=_MEASURED,
    )
    settled: float = limit(
        0.15, unit="share by which it falls after a third of the run", source="as above: 0.03"
    )
    fallen: float = limit(0.75, unit="of the first loss, at the end", source="as above: 0.31")
    level: float = limit(
        3.5,
        unit="nats at the end",
        source="sound models of any size end below on any text; 5.8 where targets were permuted",
        false_alarms=_MEASURED,
    )


@check(
    codes={
        "without-the-input": Symptom.error(
            "the loss settles where the targets do not follow from the input",
            expected="a start below a blind guess, and a loss that goes on falling",
            fix="Print one row's inputs and targets side by side: each target is the token after "
            "its input.",
        )
    },
    limits=Limits(),
    rerun_symptom=True,
)
def loss_plateau(log: TrainingLog, base: BaseModel | None, limits: Limits) -> Iterator[Sign]:
    """Look for a high start and a flat, high end."""
    segment = log.main
    losses = segment.get("train_loss")
    if log.is_preference:
        raise NotApplicable("the loss of preference training has no known level")
    if losses is None or not segment.shows_start:
        raise Inconclusive("the log does not show the training losses of the run's start")
    values = losses.finite.values
    if not np.isfinite(losses.values[0]):
        raise Inconclusive("the first training loss is not finite")
    if len(values) < limits.reports:
        raise Inconclusive(f"{len(values)} training losses; {limits.reports} are needed")
    uniform = limits.blind_guess(base.vocab_size if base else None)
    first, before = float(values[0]), segment.base_val_loss
    is_high = first > uniform + limits.above
    # A validation that was sound before training: a step destroyed what was there.
    if not is_high or (before is not None and before < uniform):
        return
    quarter = len(values) // 4
    third, last = (
        float(np.median(one)) for one in (values[-2 * quarter : -quarter], values[-quarter:])
    )
    at_third = float(np.median(values[len(values) // 3 :][:quarter]))
    is_flat = last > (1 - limits.flat) * third and last > (1 - limits.settled) * at_third
    if not is_flat or not limits.level < last < min(limits.fallen * first, uniform):
        return
    yield Sign(
        "without-the-input",
        f"The loss begins at {first:.2f}, above the {uniform:.2f} of a blind guess, and stays at "
        f"{last:.2f} from a third of the run on ({at_third:.2f} there): the model was sure of "
        "other tokens than the targets, and learned only how frequent they are. Labels or data "
        "are at fault, and not the base model.",
        {
            "first_loss": first,
            "uniform_guess": uniform,
            "after_a_third": at_third,
            "third_quarter": third,
            "last_quarter": last,
        },
        onset=int(losses.iterations[0]),
    )
