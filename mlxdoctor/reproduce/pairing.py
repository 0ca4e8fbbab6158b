"""Answers that belong to other prompts: each read after its own prompt and after another row's.

What a prompt is worth to its answer, in nats a token, is measured on the training rows and on the
validation rows, by a model that saw neither: the base. Where the base does not know the task
(what prompts are worth to it on the validation rows is next to nothing), it learns it first, on
one half of the validation and test rows, and is asked about the other half and the training rows;
then the halves change places. Rows of one kind gain alike; answers that were shuffled gain
nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mlxdoctor.check import limit
from mlxdoctor.evidence.dataset import Dataset, Row
from mlxdoctor.evidence.kind import Missing
from mlxdoctor.models.load import Which
from mlxdoctor.models.prompt_gains import PromptGains
from mlxdoctor.reproduce.repairs import write_rows
from mlxdoctor.reproduce.rerun import Laboratory
from mlxdoctor.reproduce.rules import Limits, Ruling, undecided
from mlxdoctor.run import Run
from mlxdoctor.safety.errors import InputError

#: Rows of each split that are asked at first, and where the first leave it open.
FIRST, MOST = 48, 192

_WANTED = "rows whose answers are known to be those to their prompts, as validation rows (--data)"


@dataclass(frozen=True)
class PairingLimits:
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
        values = np.array([gain for gain in gains if math.isfinite(gain)], np.float64)
        if len(values) < 2:
            return cls(math.nan, math.nan, len(values), 0)
        error = float(values.std(ddof=1)) / math.sqrt(len(values))
        return cls(float(values.mean()), error, len(values), int((values < 0).sum()))

    def __str__(self) -> str:
        return f"{self.mean:+.2f} nats a token (standard error {self.error:.2f}, {self.rows} rows)"


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
    ruling = None
    for count in (FIRST, MOST):
        train, valid = (
            Worth.of(list(_gains(gains, name, count, "base").values()))
            for name in ("train", "valid")
        )
        ruling = judge_pairs(train, valid, "the base, before any training")
        # What looks like less may be chance, and is looked at more closely.
        if ruling is None or _is_settled(ruling, train, valid):
            break
    return ruling or _by_a_taught_base(lab, run, folder)


def _gains(gains: PromptGains, split: str, count: int, which: Which) -> dict[int, float]:
    """Row -> what its prompt is worth to a model."""
    rows = [(row.index, getattr(row, which)) for row in gains.measure(split, count)]
    return {index: pair[1] - pair[0] for index, pair in rows if pair is not None}


def _is_settled(ruling: Ruling, train: Worth, valid: Worth) -> bool:
    return ruling.verdict != "undecided" or train.mean > PairingLimits().alike * valid.mean


def judge_pairs(train: Worth, valid: Worth, model: str) -> Ruling | None:
    """The verdict from what prompts are worth on rows of both splits; None: nobody can tell.

    Args:
        train, valid: of rows that the model was not trained on.
        model: which it is, in words.
    """
    limits = PairingLimits()
    if valid.rows < limits.rows or not valid.mean - limits.errors * valid.error > limits.clear:
        return None
    if train.rows < limits.rows:
        return undecided(f"{train.rows} training rows can be asked about", "more training rows")
    text = (
        f"to {model}, an answer's own prompt is worth {train} more than another row's on the "
        f"training rows, and {valid} on the validation rows"
    )
    error = math.hypot(train.error, limits.none * valid.error)
    if train.mean + limits.errors * error < limits.none * valid.mean:
        return Ruling(
            "confirmed", f"{text}: the training answers are not those to their prompts", 1.0
        )
    is_less = train.mean + limits.errors * math.hypot(train.error, valid.error) < valid.mean
    is_part = train.mean < limits.less * valid.mean
    if is_less and is_part and chance(train, valid) < limits.chance:
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


def chance(train: Worth, valid: Worth) -> float:
    """Fisher's exact test: how likely so many of the rows against their prompts are in train."""
    from scipy.stats import fisher_exact

    table = [[one.against, one.rows - one.against] for one in (train, valid)]
    return float(fisher_exact(table, alternative="greater")[1])


def _by_a_taught_base(lab: Laboratory, run: Run, folder: Path) -> Ruling:
    """The verdict of the base once it has learned the task from rows that were held out."""
    splits, limits = run.need(Dataset).splits, PairingLimits()
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
        written: dict[str, dict[str, Sequence[Row]]] = {
            "taught": {"train": taught, "valid": asked},
            "asked": {"train": splits["train"].rows, "valid": asked},
        }
        gains = _taught(lab, run, folder / f"half-{number}", written)
        for index, gain in _gains(gains, "train", MOST, "tuned").items():
            of_train.setdefault(index, []).append(gain)
        of_valid += _gains(gains, "valid", MOST, "tuned").values()
        train = Worth.of([float(np.mean(each)) for each in of_train.values()])
        valid = Worth.of(of_valid)
        model = "the base, trained on half of the validation and test rows"
        ruling = judge_pairs(train, valid, model)
        if ruling is not None and _is_settled(ruling, train, valid):
            break
    return ruling or undecided(
        "what prompts are worth on the validation rows is next to nothing, to the base and "
        "after training on half of them, so that nothing tells whose answers these are",
        _WANTED,
    )


def _taught(
    lab: Laboratory, run: Run, folder: Path, written: dict[str, dict[str, Sequence[Row]]]
) -> PromptGains:
    """Train on the rows of `taught` with the run's configuration, and ask about those of `asked`.

    Raises:
        InputError: they can't be trained on.
    """
    for name, splits in written.items():
        (folder / name).mkdir(parents=True)
        for split, rows in splits.items():
            write_rows(folder / name / f"{split}.jsonl", rows)
    recipe = lab.recipe
    smallest = min(len(rows) for rows in written["taught"].values())
    values = {
        **recipe.values,
        "data": str(folder / "taught"),
        "batch_size": min(int(recipe.values.get("batch_size") or 4), smallest),
        "resume_adapter_file": None,
    }
    iterations = min(recipe.iterations, Limits().usual)
    settings = recipe.settings(folder / "adapter", iterations, recipe.seed, values)
    lab.train(settings, "trained on half of the validation and test rows")
    asking = Run.discover(
        [folder / "adapter"], base=recipe.base, data=folder / "asked", progress=run.progress
    )
    try:
        return asking.need(PromptGains)
    except Missing as reason:
        raise InputError(folder, f"the rows can't be asked about ({reason})") from None
