"""Whether the answers depend on their prompts, in the rows and in what was learned.

What it finds. Training answers that their prompts do not make any likelier, while prompts do
that on the validation rows: answers that were shuffled, or that belong to something else. And a
tuned model to which the prompt matters much less than to the base model, or not at all.

Why it matters. Shuffled answers are sound sentences: the loss falls, and the model learns to say
what is said in general, whatever it is asked. The base model alone tells before training.

How it is measured. Each answer is read after its own prompt and after the prompt of another row,
one with another answer. The second loss less the first is what the prompt is worth, in nats a
token, over the first 64 tokens of 16 to 48 rows, with its standard error over rows. The training
rows are compared with the validation rows, or the test rows where prompts matter more there, and
the tuned model with the base: by the means, and by ranks.

When it is wrong. Where the base model gains nothing from the prompts of the validation rows
either, because the answers are style, or in signs that it does not know, the rows can't be
judged with it; with all splits shuffled in the same way neither. Validation rows of another
task than the training rows are no measure for them.

What to do. Read a few training rows: is the answer that of the prompt? Join prompts and answers
by a key, never by their place in two lists.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mlxdoctor.check import Cost, Inconclusive, check, limit
from mlxdoctor.finding import Measurement, Seen, Severity, Sign, Symptom, Unsought
from mlxdoctor.measure.text.statistics import lower_ranks
from mlxdoctor.models.load import Which
from mlxdoctor.models.prompt_gains import PromptGains, RowGain

#: What the splits' rows are called.
SPLITS = {"train": "training", "valid": "validation", "test": "test"}

_CALIBRATION = "0 of 4 sound runs of the fixtures, 0 of 10 tasks of a real model"
_FIX = "join prompts and answers by a key, not by their place in two lists, and train again"


#: Why too few rows were asked although there are more; and what to do.
SPENT = "the time for running models was over; raise it with --budget"


@dataclass(frozen=True)
class Limits:
    """When answers depend on their prompts, and when they do not."""

    first: int = limit(16, unit="rows", source="as learned-targets; mostly measured there")
    most: int = limit(48, unit="rows", source="standard errors are then 0.003 to 0.09 nats")
    rows: int = limit(8, unit="rows", source="as learned-targets")
    errors: float = limit(
        3.0, unit="standard errors", source="one of 700 by chance", false_alarms=_CALIBRATION
    )
    clear: float = limit(
        0.1,
        unit="nats a token that a prompt is worth",
        source="sound tasks of a real model have 0.21 to 1.95",
    )
    none: float = limit(
        0.25,
        unit="of what the validation rows' prompts are worth, which is said to be next to nothing",
        source="a real model: 0.01 where answers were shuffled, 0.9 to 1.1 where not",
    )
    half: float = limit(
        0.5,
        unit="of what the validation rows' prompts are worth, where less than 0.7 is certain",
        source="a real model: 0.40 where 70% were shuffled, 0.70 to 1.3 where none were",
        false_alarms=_CALIBRATION,
    )
    less: float = limit(
        0.7,
        unit="of what the validation rows' prompts are worth",
        source="a third of the answers elsewhere",
        false_alarms=_CALIBRATION,
    )
    chance: float = limit(
        0.00135, unit="of chance", source="as three standard errors, of ranks: rows differ widely"
    )
    ignored: float = limit(
        0.5,
        unit="of what the prompts are worth to the base model, where less than 0.7 is certain",
        source="a real model: 0.26 at most after shuffled answers, 0.9 at least after sound ones",
        false_alarms=_CALIBRATION,
    )
    nothing: float = limit(
        0.05,
        unit="nats a token that a prompt is worth to the tuned model",
        source="0.02 at most after shuffled answers",
        false_alarms=_CALIBRATION,
    )
    learned: float = limit(
        0.3,
        unit="nats by which the loss fell",
        source="as learned-targets: there was some to learn",
    )
    distinct: float = limit(
        0.5, unit="share of the answers that are different", source="labels repeat, texts do not"
    )
    harmed: float = limit(
        0.1, unit="nats by which the loss rose", source="as learned-targets: another fault's doing"
    )


@check(
    codes={
        "unrelated-answers": Symptom.error(
            "the training answers are not those to their prompts",
            expected="prompts that make the training answers likelier, as in sound rows",
            fix=_FIX,
        ),
        "some-unrelated-answers": Symptom.warning(
            "the training answers depend less on their prompts than those for validation",
            expected="prompts that make the training answers as much likelier as in validation",
            fix=_FIX,
        ),
        "prompts-ignored": Symptom.warning(
            "the prompt matters much less to the tuned model than to the base model",
            expected="prompts that matter at least as much as before training",
            fix="Read a few training rows: is the answer that of the prompt? If so, train more "
            "gently.",
        ),
        "prompts-never-mattered": Symptom.warning(
            "the tuned model learned answers that do not depend on the prompts at all",
            expected="answers that their own prompt makes likelier than another row's",
            fix="Read a few training rows: is the answer that of the prompt?",
        ),
    },
    cost=Cost.FORWARD,
    limits=Limits(),
    rerun_symptom=True,
)
def prompt_dependence(gains: PromptGains, limits: Limits) -> Iterator[Sign | Seen | Unsought]:
    """Compare answers after their own prompts with the same after other rows' prompts."""
    found = _Figures.of(gains, limits.first, limits)
    if not found.decided(limits):
        found = _Figures.of(gains, limits.most, limits)
    if max(map(len, found.rows.values())) < limits.rows:
        is_short = max(gains.rows.values()) < limits.rows
        few = f"fewer than {limits.rows} rows have a prompt and an answer"
        raise Inconclusive(few if is_short else SPENT)
    said = [*_rows(found, gains, limits), *_tuned(found, gains, limits)]
    yield from said
    if not any(isinstance(one, Sign) for one in said):
        yield Seen(found.sentence, found.measured)


@dataclass(frozen=True)
class _Gain:
    """What prompts are worth to one model on some rows: a mean and its error, nats a token."""

    mean: float
    error: float
    own: float
    rows: int

    @classmethod
    def of(cls, rows: Sequence[RowGain], which: Which) -> _Gain | None:
        pairs = [row.base if which == "base" else row.tuned for row in rows]
        values = np.array([one for one in pairs if one is not None], np.float64).reshape(-1, 2)
        values = values[np.isfinite(values).all(axis=1)]
        if len(values) < 2:
            return None
        gains = values[:, 1] - values[:, 0]
        error = float(gains.std(ddof=1)) / math.sqrt(len(gains))
        return cls(float(gains.mean()), error, float(values[:, 0].mean()), len(gains))

    def is_clear(self, limits: Limits) -> bool:
        return self.rows >= limits.rows and self.mean - limits.errors * self.error > limits.clear


def _is_lost(rows: Sequence[RowGain], limits: Limits) -> bool:
    """Whether prompts are certainly worth less to the tuned model, and by half at least."""
    pairs = [(row.base, row.tuned) for row in rows if row.tuned is not None]
    values = np.array(pairs, np.float64).reshape(-1, 2, 2)
    base, tuned = (values[:, model, 1] - values[:, model, 0] for model in (0, 1))
    less = tuned - limits.less * base
    error = float(less.std(ddof=1)) / math.sqrt(len(less))
    is_certain = float(less.mean()) + limits.errors * error < 0.0
    return is_certain and float(tuned.mean()) < limits.ignored * float(base.mean())


def _below(one: _Gain, other: _Gain, share: float, limits: Limits) -> bool:
    """Whether a gain is certainly less than that share of another."""
    error = math.hypot(one.error, share * other.error)
    return one.mean + limits.errors * error < share * other.mean


@dataclass(frozen=True)
class _Figures:
    """The rows of both splits, and what their prompts are worth to both models."""

    rows: Mapping[str, tuple[RowGain, ...]]

    @classmethod
    def of(cls, gains: PromptGains, count: int, limits: Limits) -> _Figures:
        """What is measured: test rows only where validation rows are not clear."""
        rows = {name: gains.measure(name, count) for name in gains.rows if name != "test"}
        found = cls(rows)
        held_out = found.gain("valid", "base")
        if "test" in gains.rows and not (held_out is not None and held_out.is_clear(limits)):
            return cls({**rows, "test": gains.measure("test", count)})
        return found

    def gain(self, split: str, which: Which) -> _Gain | None:
        return _Gain.of(self.rows.get(split, ()), which)

    @property
    def reference(self) -> str:
        """The split that the training rows are compared with."""
        known = {split: self.gain(split, "base") for split in ("valid", "test")}
        means = {split: one.mean for split, one in known.items() if one is not None}
        return max(means, key=lambda split: means[split], default="valid")

    @property
    def measured(self) -> dict[str, Measurement]:
        figures: dict[str, Measurement] = {}
        models: tuple[Which, ...] = ("base", "tuned")
        for split in self.rows:
            for which in models:
                if (one := self.gain(split, which)) is not None:
                    name = f"{split}_{which}"
                    figures[f"{split}_rows"] = one.rows
                    figures[f"{name}_gain"] = round(one.mean, 4)
                    figures[f"{name}_error"] = round(one.error, 4)
                    figures[f"{name}_loss"] = round(one.own, 4)
        return figures

    @property
    def sentence(self) -> str:
        """What was measured, for a run of which nothing is found."""
        parts = []
        for split in self.rows:
            base, tuned = self.gain(split, "base"), self.gain(split, "tuned")
            if base is not None:
                after = f" and {tuned.mean:.2f} to the tuned one" if tuned is not None else ""
                parts.append(
                    f"{base.mean:.2f} nats a token to the base model{after} ({base.rows} "
                    f"{SPLITS[split]} rows)"
                )
        return f"That a prompt is the answer's own is worth {', '.join(parts)}."

    def decided(self, limits: Limits) -> bool:
        """Whether more rows would not change what is said: the prompts clearly matter, or not."""
        for split in self.rows:
            base, tuned = self.gain(split, "base"), self.gain(split, "tuned")
            if base is None or not base.is_clear(limits):
                return False
            if tuned is not None and _below(tuned, base, 1.0, limits):
                return False
        train, valid = self.gain("train", "base"), self.gain(self.reference, "base")
        if train is None or valid is None:
            return True
        # Of a few rows, an answer that its prompt makes no likelier is one too many.
        odd = sum(not own < other for own, other in (one.base for one in self.rows["train"]))
        return odd <= 1 and not _below(train, valid, 1.0, limits)

    def is_less(self, limits: Limits) -> bool:
        """Whether the base's prompts are certainly worth less in the training rows."""
        train, valid = self.gain("train", "base"), self.gain(self.reference, "base")
        if train is None or valid is None or train.mean >= limits.less * valid.mean:
            return False
        if _below(train, valid, limits.less, limits):
            return True
        ours, theirs = (
            np.array([other - own for own, other in (one.base for one in self.rows[split])])
            for split in ("train", self.reference)
        )
        ours, theirs = ours[np.isfinite(ours)], limits.less * theirs[np.isfinite(theirs)]
        return bool(lower_ranks(ours, theirs) < limits.chance)


def _rows(found: _Figures, gains: PromptGains, limits: Limits) -> Iterator[Sign | Unsought]:
    """What the base model says of the rows, whatever was trained on them."""
    train, valid = found.gain("train", "base"), found.gain(found.reference, "base")
    both = ("unrelated-answers", "some-unrelated-answers")
    if train is None or train.rows < limits.rows:
        is_short = gains.rows.get("train", 0) < limits.rows
        why = "too few training rows have a prompt and an answer of their own"
        yield Unsought(both, why if is_short else SPENT)
        return
    if train.is_clear(limits) and not found.is_less(limits):
        return
    if valid is None or not valid.is_clear(limits):
        yield Unsought(
            both,
            "the prompts matter too little to the base model to tell whose answers these are",
        )
        return
    if not found.is_less(limits):
        return
    # Rows of another kind, that the base model does not understand, and the tuned one does.
    tuned = [found.gain(split, "tuned") for split in ("train", found.reference)]
    if all(one is not None and one.mean >= limits.less * valid.mean for one in tuned):
        return
    share = train.mean / valid.mean
    symptom = both[0 if share < limits.half else 1]
    how = "next to nothing" if share < limits.none else "less"
    which = "most" if share < limits.none else "many" if share < limits.half else "some"
    yield Sign(
        symptom,
        f"To the base model the prompts of the training rows are worth {how}: an answer's loss is "
        f"{train.mean:+.2f} nats a token higher after another row's prompt (standard error "
        f"{train.error:.2f}), against {valid.mean:+.2f} on the {SPLITS[found.reference]} rows "
        f"({train.rows} and {valid.rows} rows): {which} of these answers are "
        "not those to their prompts.",
        found.measured,
    )


def _tuned(found: _Figures, gains: PromptGains, limits: Limits) -> Iterator[Sign | Unsought]:
    """What the tuned model makes of the prompts."""
    split = found.reference if found.gain(found.reference, "tuned") is not None else "train"
    base, tuned = found.gain(split, "base"), found.gain(split, "tuned")
    both = ("prompts-ignored", "prompts-never-mattered")
    if base is None or tuned is None or tuned.rows < limits.rows:
        was_asked = base is not None and tuned is not None
        yield Unsought(both, SPENT if was_asked else "there is no tuned model that could be asked")
        return
    if tuned.own > base.own + limits.harmed:
        yield Unsought(both, "the tuned model is worse at the answers altogether")
        return
    if base.is_clear(limits) and _is_lost(found.rows[split], limits):
        yield Sign(
            "prompts-ignored",
            f"After another row's prompt an answer's loss is only {tuned.mean:+.2f} nats a token "
            f"higher to the tuned model (standard error {tuned.error:.2f}), to the base model "
            f"{base.mean:+.2f} ({tuned.rows} {SPLITS[split]} "
            "rows): it learned to answer whatever it is asked.",
            found.measured,
        )
        return
    if tuned.is_clear(limits):
        return
    upper = tuned.mean + limits.errors * tuned.error
    # Where they mattered a little to the base, the tuned model lost that, whatever the rows.
    learned = base.own - tuned.own >= limits.learned and base.mean < limits.errors * base.error
    if abs(tuned.mean) < limits.nothing and upper < 2 * limits.nothing and learned:
        is_text = gains.distinct_answers[split] >= limits.distinct
        yield Sign(
            "prompts-never-mattered",
            f"The tuned model learned the answers (loss {base.own:.2f} to {tuned.own:.2f}), and "
            f"their prompts are worth {tuned.mean:+.3f} nats a token to it (standard error "
            f"{tuned.error:.3f}, {tuned.rows} rows), and to the base model "
            f"{base.mean:+.3f}: neither sees anything of an answer in its prompt.",
            found.measured,
            # A base that is worse than guessing can't read the rows, nor say what they owe.
            severity=None if is_text and base.own < gains.uniform_loss else Severity.INFO,
        )
        return
    yield Unsought(both, "the prompts matter too little, to either model, to compare them")
