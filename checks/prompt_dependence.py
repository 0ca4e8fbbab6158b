"""Whether the answers depend on their prompts.

What it finds. Training answers that their prompts do not make any likelier, while prompts do
that on the validation rows: answers that were shuffled, or that belong to something else. And a
tuned model to which its rows' own prompts matter no more than those of other rows.

Why it matters. Shuffled answers are sound sentences: the loss falls, and the model learns to say
what is said in general, whatever it is asked. The base model alone shows it, before training.

How it is measured. Each answer is read after its own prompt and after the prompt of another row,
one with another answer. The second loss less the first is what the prompt is worth, in nats a
token, over the first 64 tokens of 16 to 48 rows, with its standard error over rows. The training
rows are compared with the validation rows (test rows where there are none), by the base model.

When it is wrong. Where the base model gains nothing from the prompts of the validation rows
either, because the answers are style, or in symbols that it does not know, the rows can't be
judged with it. Where all splits were shuffled alike, only the tuned model shows it: what it
learned has nothing to do with the prompts. Rows that have one prompt each and want any answer, as
jokes do, look the same. Validation rows of another task than the training rows are no measure.

What to do. Read a few training rows: is the answer that of the prompt? Join prompts and answers
by a key, never by their place in two lists.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import get_args

from mlxdoctor.check import Inconclusive, check
from mlxdoctor.evidence.supervision import Role
from mlxdoctor.finding import Measurement, Seen, Severity, Sign, Symptom, Unsought
from mlxdoctor.judge.learned import LossChange
from mlxdoctor.models.load import Which
from mlxdoctor.models.losses import ENOUGH_ROWS
from mlxdoctor.models.prompt_gains import Asked, PromptGains

#: Rows of each split that are measured first, and at most: standard errors are then 0.003 to 0.09
#: nats.
FIRST, MOST = 16, 48
#: Standard errors of a difference that is not chance: chance exceeds them once in 700 times.
ERRORS = 3.0
#: Nats a token above which a prompt clearly matters: 0.21 to 1.95 in sound tasks of a real model.
#: To the tuned model: 0.13 to 4.2 in 45 sound runs, 0.05 where all answers belong to other prompts,
#: 0.00 and 0.04 in two sound runs whose small models did not learn what was asked.
CLEAR = 0.1
#: Of the base model's loss, what one that learned has at the most: 0.1 to 0.4 where answers belong
#: to other prompts, 0.9 in a run that collapsed.
LEARNED = 0.5
#: What prompts are worth in the training rows, as a share of their worth in the validation rows:
#: below the first, many answers belong to other prompts (0.40 where 70% were shuffled); below the
#: second, some do (sound tasks of a real model had 0.70 to 1.3; none of 10, nor of 4 sound runs of
#: the fixtures, was below).
MANY_UNRELATED, SOME_UNRELATED = 0.5, 0.7
#: Share of an answer's loss after another prompt that its own takes away where it was learned: 0.9
#: in a sound run whose base knew the validation rows better, less than half where most answers
#: belong to other prompts, since these have a loss after any prompt.
ALL_OF = 0.8
#: What the splits' rows are called.
SPLITS = {"train": "training", "valid": "validation", "test": "test"}
#: Why fewer rows were measured than there are; and what to do.
SPENT = "the time for running models was over; raise it with --budget"


@check(
    codes={
        "unrelated-answers": Symptom.error(
            "the training answers are not those to their prompts",
            says="The training prompts help the base model less than the {reference} prompts. "
            "After another row's prompt, an answer's loss is {train_base_gain:+.2f} nats a token "
            "higher (standard error {train_base_error:.2f}, {train_rows} rows). On the {reference} "
            "rows it is {reference_gain:+.2f} higher ({reference_rows} rows). So {which} of the "
            "training answers do not belong to their prompts.",
            expected="prompts that make the training answers likelier, as in sound rows",
            fix="join prompts and answers by a key, not by their place in two lists, and train "
            "again",
        ),
        "prompts-unused": Symptom.warning(
            "what was learned has nothing to do with the prompts",
            says="The tuned model hardly uses the prompts it was trained on. After another row's "
            "prompt, an answer's loss is only {train_tuned_gain:+.2f} nats a token higher "
            "(standard error {train_tuned_error:.2f}, {train_rows} rows).",
            expected="0.1 nats and more",
            fix="Read a few training rows, and check that each answer belongs to its prompt.",
        ),
    },
    rerun_symptom=True,
)
def prompt_dependence(gains: PromptGains) -> Iterator[Sign | Seen | Unsought]:
    splits = [split for split in gains.rows if split != "test" or "valid" not in gains.rows]
    worth = {split: _worth(gains.measure(split, FIRST)) for split in splits}
    if not _is_decided(worth):
        worth = {split: _worth(gains.measure(split, MOST)) for split in splits}
    if max(len(each["base"].gains) for each in worth.values()) < ENOUGH_ROWS:
        is_short = max(gains.rows.values()) < ENOUGH_ROWS
        few = f"fewer than {ENOUGH_ROWS} rows have a prompt and an answer"
        raise Inconclusive(few if is_short else SPENT)
    if (finding := _of_the_rows(worth, gains.rows.get("train", 0))) is not None:
        yield finding
    if not isinstance(finding, Sign):
        yield Seen(*_described(worth))


#: Split -> model -> what prompts are worth to it. `LossChange` is borrowed: its `base` holds the
#: losses after another row's prompt, its `tuned` those after the answer's own.
Worth = Mapping[str, Mapping[Which, LossChange]]


def _worth(rows: Sequence[Asked]) -> Mapping[Which, LossChange]:
    return {
        which: LossChange.of(
            (other.mean(which, Role.ANSWER), own.mean(which, Role.ANSWER))
            for own, other in rows
            if which == "base" or own.tuned is not None
        )
        for which in get_args(Which)
    }


def _is_clear(gains: LossChange) -> bool:
    return gains.is_enough and gains.gain - ERRORS * gains.error > CLEAR


def _is_below(gains: LossChange, other: LossChange, share: float) -> bool:
    """Whether the gain is certainly less than that share of the other."""
    error = math.hypot(gains.error, share * other.error)
    return gains.gain + ERRORS * error < share * other.gain


def _held_out(worth: Worth) -> str:
    return next((split for split in ("valid", "test") if split in worth), "valid")


def _is_decided(worth: Worth) -> bool:
    """Whether more rows would not change what is said: the prompts clearly matter."""
    if not all(_is_clear(each["base"]) for each in worth.values()):
        return False
    if "train" not in worth or _held_out(worth) not in worth:
        return True
    train, held_out = (worth[split]["base"] for split in ("train", _held_out(worth)))
    # Two answers that their prompts make no likelier are reason to ask more rows.
    return int((train.gains <= 0).sum()) <= 1 and not _is_below(train, held_out, 1.0)


def _of_the_rows(worth: Worth, training_rows: int) -> Sign | Unsought | None:
    """What the base model says of the rows, whatever was trained on them."""
    symptom, reference = "unrelated-answers", _held_out(worth)
    if "train" not in worth or not worth["train"]["base"].is_enough:
        few = "too few training rows have a prompt and an answer of their own"
        return Unsought((symptom,), few if training_rows < ENOUGH_ROWS else SPENT)
    train = worth["train"]["base"]
    held_out = worth[reference]["base"] if reference in worth else LossChange.of(())
    is_less = _is_below(train, held_out, SOME_UNRELATED)
    if not _is_clear(held_out):
        if _is_clear(train) and not is_less:
            return None
        learned = worth["train"]["tuned"]
        # A model that is lost has no use for prompts either.
        has_learned = learned.is_enough and learned.tuned.mean() < LEARNED * train.tuned.mean()
        kept = worth[reference]["tuned"] if reference in worth else learned
        # Rows that were learned by heart have their own prompts.
        is_used = kept.is_enough and kept.gain > ERRORS * kept.error
        if has_learned and not is_used and learned.gain + ERRORS * learned.error < CLEAR:
            return Sign("prompts-unused", _described(worth)[1])
        why = "the prompts matter too little to the base model to tell whose answers these are"
        return Unsought((symptom,), why)
    # To the tuned model the prompts matter: the base model only did not understand these rows.
    tuned = [worth[split]["tuned"] for split in ("train", reference)]
    least = SOME_UNRELATED * held_out.gain
    is_learned = all(len(each.gains) > 1 and each.gain >= least for each in tuned)
    # Nor are answers of other prompts learned so that hardly a loss is left after their own.
    is_learned |= all(_is_clear(each) and each.gain >= ALL_OF * each.base.mean() for each in tuned)
    if not is_less or is_learned:
        return None
    is_many = train.gain < MANY_UNRELATED * held_out.gain
    which, severity = ("many", None) if is_many else ("some", Severity.WARNING)
    measured = _described(worth)[1] | {"reference": SPLITS[reference]}
    measured["reference_gain"] = round(held_out.gain, 4)
    measured |= {"reference_rows": len(held_out.gains), "which": which}
    return Sign(symptom, measured, severity=severity)


def _described(worth: Worth) -> tuple[str, dict[str, Measurement]]:
    """What prompts are worth to both models in each split, as a sentence and its figures."""
    parts: list[str] = []
    measured: dict[str, Measurement] = {}
    for split, models in worth.items():
        for which, gains in models.items():
            if len(gains.gains) > 1:
                measured[f"{split}_rows"] = len(gains.gains)
                measured[f"{split}_{which}_gain"] = round(gains.gain, 4)
                measured[f"{split}_{which}_error"] = round(gains.error, 4)
        if f"{split}_base_gain" in measured:
            to_tuned = f"[ and {{{split}_tuned_gain:.2f}} to the tuned one]"
            parts.append(
                f"{{{split}_base_gain:.2f}} nats a token to the base model{to_tuned} "
                f"({{{split}_rows}} {SPLITS[split]} rows)"
            )
    return f"An answer's own prompt is worth {', '.join(parts)}.", measured
