"""Whether the answers depend on their prompts.

What it finds. Training answers that their prompts do not make any likelier, while prompts do
that on the validation rows: answers that were shuffled, or that belong to something else.

Why it matters. Shuffled answers are sound sentences: the loss falls, and the model learns to say
what is said in general, whatever it is asked. The base model alone tells before training.

How it is measured. Each answer is read after its own prompt and after the prompt of another row,
one with another answer. The second loss less the first is what the prompt is worth, in nats a
token, over the first 64 tokens of 16 to 48 rows, with its standard error over rows. The training
rows are compared with the validation rows (test rows where there are none), by the base model.

When it is wrong. Where the base model gains nothing from the prompts of the validation rows
either, because the answers are style, or in signs that it does not know, the rows can't be
judged with it; with all splits shuffled in the same way neither. Validation rows of another
task than the training rows are no measure for them.

What to do. Read a few training rows: is the answer that of the prompt? Join prompts and answers
by a key, never by their place in two lists.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from mlxdoctor.check import Inconclusive, check, limit
from mlxdoctor.finding import Measurement, Seen, Sign, Symptom, Unsought
from mlxdoctor.judge.learned import ENOUGH_ROWS
from mlxdoctor.models.load import Which
from mlxdoctor.models.prompt_gains import PromptGains, RowGain

#: Rows of each split that are asked first, and at most: standard errors are then 0.003 to 0.09
#: nats.
FIRST, MOST = 16, 48
#: What the splits' rows are called.
SPLITS = {"train": "training", "valid": "validation", "test": "test"}
#: Why too few rows were asked although there are more; and what to do.
SPENT = "the time for running models was over; raise it with --budget"

_CALIBRATION = "0 of 4 sound runs of the fixtures, 0 of 10 tasks of a real model"
_LESS = (
    "To the base model the prompts of the training rows are worth less: an answer's loss is "
    "{train_base_gain:+.2f} nats a token higher after another row's prompt (standard error "
    "{train_base_error:.2f}), against {reference_gain:+.2f} on the {reference} rows "
    "({train_rows} and {reference_rows} rows): {which} of these answers are not those to their "
    "prompts."
)
_FIX = "join prompts and answers by a key, not by their place in two lists, and train again"


@dataclass(frozen=True)
class Limits:
    """When answers depend on their prompts, and when they do not."""

    errors: float = limit(
        3.0, unit="standard errors", source="one of 700 by chance", false_alarms=_CALIBRATION
    )
    clear: float = limit(
        0.1,
        unit="nats a token that a prompt is worth",
        source="sound tasks of a real model have 0.21 to 1.95",
    )
    half: float = limit(
        0.5,
        unit="of what prompts are worth in the validation rows, where less than 0.7 is certain",
        source="a real model: 0.40 where 70% of the answers were shuffled, 0.70 to 1.3 where none "
        "were",
        false_alarms=_CALIBRATION,
    )
    less: float = limit(
        0.7,
        unit="of the same",
        source="a third of the answers elsewhere",
        false_alarms=_CALIBRATION,
    )


@check(
    codes={
        "unrelated-answers": Symptom.error(
            "the training answers are not those to their prompts",
            says=_LESS,
            expected="prompts that make the training answers likelier, as in sound rows",
            fix=_FIX,
        ),
        "some-unrelated-answers": Symptom.warning(
            "the training answers depend less on their prompts than those for validation",
            says=_LESS,
            expected="prompts that make the training answers as much likelier as in validation",
            fix=_FIX,
        ),
    },
    limits=Limits(),
    rerun_symptom=True,
)
def prompt_dependence(gains: PromptGains, limits: Limits) -> Iterator[Sign | Seen | Unsought]:
    """Compare answers after their own prompts with the same after other rows' prompts."""
    splits = [split for split in gains.rows if split != "test" or "valid" not in gains.rows]
    rows = {split: gains.measure(split, FIRST) for split in splits}
    if not _is_decided(rows, limits):
        rows = {split: gains.measure(split, MOST) for split in splits}
    if max(map(len, rows.values())) < ENOUGH_ROWS:
        is_short = max(gains.rows.values()) < ENOUGH_ROWS
        few = f"fewer than {ENOUGH_ROWS} rows have a prompt and an answer"
        raise Inconclusive(few if is_short else SPENT)
    finding = _of_the_rows(rows, gains, limits)
    if finding is not None:
        yield finding
    if not isinstance(finding, Sign):
        yield Seen(*_worth(rows))


#: Split -> the rows that were measured.
Rows = Mapping[str, tuple[RowGain, ...]]


@dataclass(frozen=True)
class _Gain:
    """What prompts are worth to one model on some rows, nats a token.

    Attributes:
        values: row by row, float64 (n,).
        own: the mean loss after the right prompt.
    """

    values: NDArray[np.float64]
    own: float

    @property
    def mean(self) -> float:
        return float(self.values.mean())

    @property
    def error(self) -> float:
        return float(self.values.std(ddof=1)) / math.sqrt(len(self.values))

    def is_clear(self, limits: Limits) -> bool:
        is_enough = len(self.values) >= ENOUGH_ROWS
        return is_enough and self.mean - limits.errors * self.error > limits.clear

    def is_below(self, other: _Gain, share: float, limits: Limits) -> bool:
        """Whether it is certainly less than that share of another."""
        error = math.hypot(self.error, share * other.error)
        return self.mean + limits.errors * error < share * other.mean


def _gain(rows: Rows, split: str, which: Which) -> _Gain | None:
    """What prompts are worth to a model in a split; None of fewer than two rows."""
    pairs = [row.base if which == "base" else row.tuned for row in rows.get(split, ())]
    losses = np.array([pair for pair in pairs if pair is not None], np.float64).reshape(-1, 2)
    losses = losses[np.isfinite(losses).all(axis=1)]
    if len(losses) < 2:
        return None
    return _Gain(losses[:, 1] - losses[:, 0], float(losses[:, 0].mean()))


def _held_out(rows: Rows) -> str:
    return next((split for split in ("valid", "test") if split in rows), "valid")


def _is_decided(rows: Rows, limits: Limits) -> bool:
    """Whether more rows would not change what is said: the prompts clearly matter."""
    bases = [_gain(rows, split, "base") for split in rows]
    if not all(base is not None and base.is_clear(limits) for base in bases):
        return False
    train, held_out = (_gain(rows, split, "base") for split in ("train", _held_out(rows)))
    if train is None or held_out is None:
        return True
    # Of a few rows, an answer that its prompt makes no likelier is one too many.
    return int((train.values <= 0).sum()) <= 1 and not train.is_below(held_out, 1.0, limits)


def _of_the_rows(rows: Rows, gains: PromptGains, limits: Limits) -> Sign | Unsought | None:
    """What the base model says of the rows, whatever was trained on them."""
    both = ("unrelated-answers", "some-unrelated-answers")
    reference = _held_out(rows)
    train, held_out = (_gain(rows, split, "base") for split in ("train", reference))
    if train is None or len(train.values) < ENOUGH_ROWS:
        is_short = gains.rows.get("train", 0) < ENOUGH_ROWS
        why = "too few training rows have a prompt and an answer of their own"
        return Unsought(both, why if is_short else SPENT)
    is_less = (
        held_out is not None
        and train.mean < limits.less * held_out.mean
        and train.is_below(held_out, limits.less, limits)
    )
    if held_out is None or not held_out.is_clear(limits):
        if train.is_clear(limits) and not is_less:
            return None
        why = "the prompts matter too little to the base model to tell whose answers these are"
        return Unsought(both, why)
    if not is_less:
        return None
    # Rows of another kind, that the base model does not understand, and the tuned one does.
    tuned = [_gain(rows, split, "tuned") for split in ("train", reference)]
    if all(gain is not None and gain.mean >= limits.less * held_out.mean for gain in tuned):
        return None
    is_most = train.mean < limits.half * held_out.mean
    measured: dict[str, Measurement] = {
        **_worth(rows)[1],
        "reference": SPLITS[reference],
        "reference_gain": round(held_out.mean, 4),
        "reference_rows": len(held_out.values),
        "which": "many" if is_most else "some",
    }
    return Sign(both[0 if is_most else 1], measured)


def _worth(rows: Rows) -> tuple[str, dict[str, Measurement]]:
    """What prompts are worth to both models in each split, as a sentence and its figures."""
    parts: list[str] = []
    measured: dict[str, Measurement] = {}
    for split in rows:
        for which in get_args(Which):
            gain = _gain(rows, split, which)
            if gain is not None:
                measured[f"{split}_rows"] = len(gain.values)
                measured[f"{split}_{which}_gain"] = round(gain.mean, 4)
                measured[f"{split}_{which}_error"] = round(gain.error, 4)
                measured[f"{split}_{which}_loss"] = round(gain.own, 4)
        if f"{split}_base_gain" in measured:
            to_tuned = f"[ and {{{split}_tuned_gain:.2f}} to the tuned one]"
            parts.append(
                f"{{{split}_base_gain:.2f}} nats a token to the base model{to_tuned} "
                f"({{{split}_rows}} {SPLITS[split]} rows)"
            )
    return f"An answer's own prompt is worth {', '.join(parts)}.", measured
