"""Answers that belong to other prompts: each read after its own prompt and after another row's.

What a prompt is worth to its answer, in nats a token, is measured on the training rows and on the
validation rows, by a model that saw neither: the base. Where the base does not know the task
(what prompts are worth to it on the validation rows is next to nothing), it learns it first, on
one half of the validation and test rows, and is asked about the other half and the training rows;
then the halves change places. Rows of one kind gain alike; answers that were shuffled gain
nothing. Where they are shifted by a few rows the order they had is found by the same measure.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mlxdoctor.check import limit
from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.dataset import Dataset, Row
from mlxdoctor.evidence.kind import Missing
from mlxdoctor.evidence.supervision import Role, SupervisedRow, build
from mlxdoctor.evidence.tokenizer import Tokenizer
from mlxdoctor.experiments import direct
from mlxdoctor.experiments.shared.copies import write_rows
from mlxdoctor.experiments.shared.laboratory import Laboratory
from mlxdoctor.experiments.shared.rules import Limits as Lengths
from mlxdoctor.experiments.shared.rules import Ruling, undecided
from mlxdoctor.models.forward import Continuation, continuation_losses
from mlxdoctor.models.load import Which, load
from mlxdoctor.models.prompt_gains import ANSWER_TOKENS, PromptGains
from mlxdoctor.run import Run
from mlxdoctor.safety.errors import InputError

#: Rows by which answers may be shifted.
SHIFTS = (-1, 1, -2, 2, -3, 3)
#: Rows of each split that are asked at first, and where the first leave it open.
FIRST, MOST = 48, 192

_WANTED = "rows whose answers are known to be those to their prompts, as validation rows (--data)"


@dataclass(frozen=True)
class Limits:
    """When answers belong to other prompts, and when nobody can tell."""

    rows: int = limit(12, unit="rows of a split", source="a mean of fewer is led by one row")
    errors: float = limit(3.0, unit="standard errors", source="one of 700 by chance")
    clear: float = limit(
        0.05,
        unit="nats a token that a prompt is worth at least",
        source="a real model on sound tasks: 0.21 to 1.95; on one it does not know -0.13",
    )
    none: float = limit(
        0.25,
        unit="of what prompts are worth on the validation rows",
        source="a real model: 0.05 at most where answers were shuffled, 0.9 to 1.1 where not",
    )
    less: float = limit(
        0.8, unit="of what prompts are worth on the validation rows", source="a fifth elsewhere"
    )
    alike: float = limit(
        0.9,
        unit="of what prompts are worth on the validation rows",
        source="above, more rows would not make it less than the limit",
    )
    chance: float = limit(
        0.02,
        unit="p-value, of as many rows that another prompt suits better",
        source="one split may be harder than the other; its own prompts suit it all the same",
    )


@dataclass(frozen=True)
class Worth:
    """What prompts are worth to a model on some rows.

    Attributes:
        mean: nats a token.
        error: its standard error.
        rows: how many.
        against: rows whose answer is likelier after another row's prompt.
    """

    mean: float
    error: float
    rows: int
    against: int

    @classmethod
    def of(cls, gains: Sequence[float]) -> Worth:
        """From the gain of each row; those that are not finite are left out."""
        values = np.array([one for one in gains if math.isfinite(one)], np.float64)
        if len(values) < 2:
            return cls(math.nan, math.nan, len(values), 0)
        error = float(values.std(ddof=1)) / math.sqrt(len(values))
        return cls(float(values.mean()), error, len(values), int((values < 0).sum()))

    def __str__(self) -> str:
        return f"{self.mean:+.2f} nats a token (standard error {self.error:.2f}, {self.rows} rows)"


@direct("bad-data", "answers after their own and after other rows' prompts")
def change_prompts(lab: Laboratory, run: Run, folder: Path) -> Ruling:
    """Compare what prompts are worth on the training rows and on the validation rows."""
    gains = run.get(PromptGains)
    if gains is None:
        return undecided(
            f"answers can't be read after other prompts: {run.why_missing(PromptGains)}",
            "rows of a prompt and an answer, and the base (--data, --base)",
        )
    if not gains.rows.keys() >= {"train", "valid"}:
        return undecided("there are no training and validation rows to compare", _WANTED)
    ruling = _by_the_base(gains) or _by_a_taught_one(lab, run, folder)
    shift = _shift(run) if ruling.verdict == "confirmed" else ""
    return replace(ruling, reason=f"{ruling.reason}{shift}")


def _by_the_base(gains: PromptGains) -> Ruling | None:
    ruling = None
    for count in (FIRST, MOST):
        train, valid = (
            Worth.of(list(_gains(gains, name, count, "base").values()))
            for name in ("train", "valid")
        )
        ruling = judged(train, valid, "the base, before any training")
        # What looks like less may be chance, and is looked at more closely.
        if ruling is None or ruling.verdict != "undecided" or _is_alike(train, valid):
            break
    return ruling


def _gains(gains: PromptGains, split: str, count: int, which: Which) -> dict[int, float]:
    """Row -> what its prompt is worth to a model."""
    rows = [(row.index, getattr(row, which)) for row in gains.measure(split, count)]
    return {index: pair[1] - pair[0] for index, pair in rows if pair is not None}


def _is_alike(train: Worth, valid: Worth) -> bool:
    return train.mean > Limits().alike * valid.mean


def judged(train: Worth, valid: Worth, who: str) -> Ruling | None:
    """The verdict from what prompts are worth on rows of both splits; None: nobody can tell.

    Args:
        train, valid: of rows that the model was not trained on.
        who: the model, in words.
    """
    limits = Limits()
    if valid.rows < limits.rows or not valid.mean - limits.errors * valid.error > limits.clear:
        return None
    if train.rows < limits.rows:
        return undecided(f"{train.rows} training rows can be asked about", "more training rows")
    text = (
        f"to {who}, an answer's own prompt is worth {train} more than another row's on the "
        f"training rows, and {valid} on the validation rows"
    )
    error = math.hypot(train.error, limits.none * valid.error)
    if train.mean + limits.errors * error < limits.none * valid.mean:
        return Ruling(
            "confirmed", f"{text}: the training answers are not those to their prompts", 1.0
        )
    is_less = train.mean + limits.errors * math.hypot(train.error, valid.error) < valid.mean
    is_part = train.mean < limits.less * valid.mean
    if is_less and is_part and _chance(train, valid) < limits.chance:
        return Ruling(
            "confirmed",
            f"{text}; {train.against} of the former are likelier after another row's prompt, and "
            f"{valid.against} of the latter: a part of the training answers is not those to "
            "their prompts",
            min(1 - train.mean / valid.mean, 1.0),
        )
    if train.mean <= limits.alike * valid.mean:
        reason = f"{text}: less, but not so much that answers must have been moved"
        return undecided(reason, f"more {_WANTED}")
    return undecided(
        f"{text}: as far as that tells, the training answers are those to their prompts",
        "which rows are wrong, which only somebody who knows the answers can say",
    )


def _chance(train: Worth, valid: Worth) -> float:
    """Fisher's exact test: how likely so many of the rows against their prompts are in train."""
    total, against = train.rows + valid.rows, train.against + valid.against
    ways = math.comb(total, train.rows)
    highest = min(against, train.rows)
    found = (
        math.comb(against, count) * math.comb(total - against, train.rows - count)
        for count in range(train.against, highest + 1)
    )
    return sum(found) / ways


def _by_a_taught_one(lab: Laboratory, run: Run, folder: Path) -> Ruling:
    """The verdict of the base once it has learned the task from rows that were held out."""
    splits, limits = run.need(Dataset).splits, Limits()
    held_out = [row for name in ("valid", "test") if name in splits for row in splits[name].rows]
    halves = held_out[::2], held_out[1::2]
    if len(halves[1]) < limits.rows:
        return undecided(
            "the base does not know the task, and there are too few validation rows to teach it",
            f"at least {2 * limits.rows} {_WANTED}",
        )
    of_train: dict[int, list[float]] = {}
    of_valid: list[float] = []
    ruling = None
    for number, (taught, asked) in enumerate((halves, halves[::-1])):
        rows = _Rows(taught, asked, tuple(splits["train"].rows))
        gains = _taught(lab, run, folder / f"half-{number}", rows)
        for index, gain in _gains(gains, "train", MOST, "tuned").items():
            of_train.setdefault(index, []).append(gain)
        of_valid += _gains(gains, "valid", MOST, "tuned").values()
        train = Worth.of([float(np.mean(each)) for each in of_train.values()])
        valid = Worth.of(of_valid)
        ruling = judged(train, valid, "the base, trained on half of the validation and test rows")
        if ruling is not None and (ruling.verdict != "undecided" or _is_alike(train, valid)):
            break
    return ruling or undecided(
        "what prompts are worth on the validation rows is next to nothing, to the base and "
        "after training on half of them, so that nothing tells whose answers these are",
        _WANTED,
    )


@dataclass(frozen=True)
class _Rows:
    """Rows that were held out, to teach and to ask; and the run's own training rows."""

    taught: Sequence[Row]
    asked: Sequence[Row]
    train: Sequence[Row]


def _taught(lab: Laboratory, run: Run, folder: Path, rows: _Rows) -> PromptGains:
    """Train on some rows with the run's configuration, and ask about the others.

    Raises:
        InputError: they can't be trained on.
    """
    written = {
        "taught": {"train": rows.taught, "valid": rows.asked},
        "asked": {"train": rows.train, "valid": rows.asked},
    }
    for name, splits in written.items():
        (folder / name).mkdir(parents=True)
        for split, content in splits.items():
            write_rows(folder / name / f"{split}.jsonl", content)
    recipe = lab.recipe
    size = min(int(recipe.values.get("batch_size") or 4), len(rows.taught), len(rows.asked))
    values = {
        **recipe.values,
        "data": str(folder / "taught"),
        "batch_size": size,
        "resume_adapter_file": None,
    }
    iterations = min(recipe.iterations, Lengths().usual)
    settings = recipe.settings(folder / "adapter", iterations, recipe.seed, values)
    lab.train(settings, "trained on half of the validation and test rows")
    asking = Run.discover(
        [folder / "adapter"], base=recipe.base, data=folder / "asked", progress=run.progress
    )
    try:
        return asking.need(PromptGains)
    except Missing as reason:
        raise InputError(folder, f"the rows can't be asked about ({reason})") from None


def _shift(run: Run) -> str:
    """By how many rows the answers are shifted, as a clause; empty where no such order is known."""
    dataset, tokenizer, limits = run.need(Dataset), run.need(Tokenizer), Limits()
    rows = build(dataset, tokenizer, run.get(TrainingConfig), split="train").rows
    inner = range(max(SHIFTS), len(rows) - max(SHIFTS))
    near = [rows[at - max(SHIFTS) : at + max(SHIFTS) + 1] for at in inner]
    known = [at for at, some in zip(inner, near, strict=True) if all(map(_is_pair, some))][:FIRST]
    if len(known) < limits.rows:
        return ""
    model = load(run.need(BaseModel)).select("base")
    own = _losses(model, rows, known, 0)
    for shift in SHIFTS:
        worth = Worth.of((own - _losses(model, rows, known, shift)).tolist())
        if worth.mean - limits.errors * worth.error > limits.clear:
            count = "the row" if abs(shift) == 1 else f"{abs(shift)} rows"
            return (
                f"; after the prompt {count} {'after' if shift > 0 else 'before'} it an answer's "
                f"loss is lower by {worth}: the answers are shifted against the prompts"
            )
    return ""


def _losses(
    model: object, rows: Sequence[SupervisedRow], chosen: Sequence[int], shift: int
) -> NDArray[np.float64]:
    """Mean loss of each chosen row's answer after the prompt so many rows on, nats a token."""
    asked = [
        Continuation.of(_prompt(rows[at + shift]).tolist(), _answer(rows[at]).tolist())
        for at in chosen
    ]
    return np.array([np.mean(one, dtype=np.float64) for one in continuation_losses(model, asked)])


def _is_pair(row: SupervisedRow) -> bool:
    return len(_prompt(row)) > 0 and len(_answer(row)) > 0


def _prompt(row: SupervisedRow) -> NDArray[np.int32]:
    return row.tokens[: row.prompt_length]


def _answer(row: SupervisedRow) -> NDArray[np.int32]:
    answer = slice(row.prompt_length, min(row.length, row.prompt_length + ANSWER_TOKENS))
    tokens: NDArray[np.int32] = row.tokens[answer][row.roles[answer] == Role.ANSWER]
    return tokens
