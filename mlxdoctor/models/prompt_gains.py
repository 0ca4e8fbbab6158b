"""What its prompt is worth to an answer: its loss after another row's prompt, and after its own."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import ClassVar

import numpy as np

from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.dataset import SPLITS, Dataset
from mlxdoctor.evidence.kind import NoSuchThing, NotThere, Progress, RunView
from mlxdoctor.evidence.source import Source
from mlxdoctor.evidence.supervision import Role, SupervisedRow, SupervisedRows, build
from mlxdoctor.evidence.tokenizer import Tokenizer
from mlxdoctor.models.forward import Question, mean_losses
from mlxdoctor.models.load import LoadedBase, LoadedModels, Which
from mlxdoctor.models.losses import RowLosses, TokenLosses
from mlxdoctor.safety.time_budget import TimeBudget

#: Tokens of an answer that are looked at: what it owes to its prompt shows early.
ANSWER_TOKENS = 64
#: Tokens of a prompt that are read; rows with longer ones are left out where others are enough.
PROMPT_TOKENS, LONGEST_PROMPT = 384, 1024
#: Rows of a split with short prompts that are enough to leave longer ones out.
ENOUGH_ROWS = 16
#: Rows among which one with another answer is looked for.
PARTNERS = 64
#: Of the time that is left, what the rows of one split may take.
SHARE = 0.4

#: Mean losses of an answer, nats a token: after its own prompt, and after another row's.
Pair = tuple[float, float]


@dataclass(frozen=True)
class RowGain:
    """One row's answer after its own prompt and after that of another row.

    Attributes:
        index: the row's index in its split.
        base: the base model's two losses.
        tuned: the tuned model's; None where there is none.
    """

    index: int
    base: Pair
    tuned: Pair | None = None


@dataclass(frozen=True)
class PromptGains:
    """Answers after their own and after other rows' prompts, measured when asked for.

    Attributes:
        sources: the data files, the tokenizer's and the models'.
        rows: for each split that has any, how many rows can be measured.
        measure: (split, how many) -> that many rows, or all there are. Rows that were measured
            before come first and are not measured again.
    """

    kind: ClassVar[str] = "answers after other prompts"
    needs_models: ClassVar[bool] = True

    sources: tuple[Source, ...]
    rows: Mapping[str, int]
    measure: Callable[[str, int], tuple[RowGain, ...]]

    @classmethod
    def find(cls, run: RunView) -> PromptGains:
        """The run's rows, with both models or the base alone; see `Evidence`."""
        dataset, tokenizer = run.need(Dataset), run.need(Tokenizer)
        supervised = run.get(SupervisedRows)
        if supervised is None and run.cannot_have(SupervisedRows):
            raise NoSuchThing(run.why_missing(SupervisedRows))
        config = run.get(TrainingConfig)
        # The base alone where nothing was trained yet.
        is_trained = run.files.tuned is not None or run.files.adapter is not None
        models = run.need(LoadedModels if is_trained else LoadedBase)
        measured = run.get(TokenLosses) if is_trained else None
        samples, sources = {}, list(models.sources)
        for name in SPLITS:
            if name not in dataset.splits or not dataset.splits[name].rows:
                continue
            rows = (
                supervised
                if supervised is not None and supervised.split == name
                else build(dataset, tokenizer, config, split=name)
            )
            sample = _sample(rows.rows, measured.split(name) if measured is not None else ())
            if sample:
                samples[name] = sample
                sources.extend(rows.sources)
        if not samples:
            raise NotThere("no row has a prompt and an answer of its own")
        return cls(
            tuple(dict.fromkeys(sources)),
            {name: len(sample) for name, sample in samples.items()},
            _Measured(models, samples, run.progress, run.budget),
        )

    @property
    def left_out(self) -> str:
        """What the time budget did not allow, as a clause; empty where it allowed all."""
        return "; ".join(filter(None, getattr(self.measure, "left_out", {}).values()))


@dataclass(frozen=True)
class _Row:
    """A row's prompt and the first tokens of its answer."""

    index: int
    prompt: tuple[int, ...]
    answer: tuple[int, ...]


@dataclass(frozen=True)
class _Asked:
    """One answer, after its own prompt and after another's.

    `known` has its losses after its own prompt, where those were measured before.
    """

    index: int
    own: Question
    other: Question
    known: RowLosses | None = None

    @property
    def cost(self) -> float:
        """Tokens to be read."""
        return float(len(self.other.tokens) + (0 if self.known else len(self.own.tokens)))

    def known_loss(self, which: Which) -> float:
        """The mean loss after its own prompt, of what was measured before."""
        losses = self.known.of(which) if self.known is not None else None
        if losses is None:
            return math.nan
        last = len(self.own.tokens)
        answer = losses.next[last - len(self.own.targets) : last]
        return float(np.mean(answer, dtype=np.float64))


def _sample(rows: Sequence[SupervisedRow], measured: Sequence[RowLosses]) -> tuple[_Asked, ...]:
    """The rows of a split that can be asked: those measured before first, the others at random."""
    known = {row.index: row for row in measured}
    usable = _usable(rows)
    shuffled = [usable[i] for i in np.random.default_rng(0).permutation(len(usable))]
    shuffled.sort(key=lambda row: row.index not in known)
    asked = []
    for place, row in enumerate(shuffled):
        partner = _partner(row, chain(shuffled[place + 1 :], shuffled[:place]))
        if partner is not None:
            own = Question.after(row.prompt, row.answer)
            other = Question.after(partner.prompt, row.answer)
            before = known.get(row.index)
            is_known = before is not None and len(before.tokens) > len(own.tokens)
            asked.append(_Asked(row.index, own, other, before if is_known else None))
    return tuple(asked)


@dataclass(frozen=True)
class _Measured:
    """What was measured of each split, and how to measure more."""

    models: LoadedModels
    samples: Mapping[str, tuple[_Asked, ...]]
    progress: Progress | None
    budget: TimeBudget
    done: dict[str, tuple[RowGain, ...]] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)

    def __call__(self, split: str, count: int) -> tuple[RowGain, ...]:
        done = self.done.get(split, ())
        asked = self.samples[split][len(done) : count]
        wanted = len(done) + len(asked)
        costs = [row.cost for row in asked]
        for stage in self.budget.stages(costs, SHARE):
            some = asked[stage.start : stage.stop]
            base = self._pairs("base", some)
            tuned: Sequence[Pair | None] = [None] * len(some)
            if self.models.has_tuned:
                tuned = self._pairs("tuned", some)
            done += tuple(
                RowGain(row.index, of_base, of_tuned)
                for row, of_base, of_tuned in zip(some, base, tuned, strict=True)
            )
        self.done[split] = done
        self.left_out[split] = self.budget.said(
            min(len(done), wanted), wanted, f"{split} rows were given other rows' prompts"
        )
        return done[:count]

    def _pairs(self, which: Which, asked: Sequence[_Asked]) -> list[Pair]:
        texts = [row.other for row in asked]
        texts += [row.own for row in asked if row.known is None]
        doing = f"measuring answers after other prompts with the {which} model"
        means = mean_losses(self.models, which, texts, self.progress, doing)
        others, own = means[: len(asked)], iter(means[len(asked) :])
        return [
            (next(own) if row.known is None else row.known_loss(which), other)
            for row, other in zip(asked, others, strict=True)
        ]


def _usable(rows: Sequence[SupervisedRow]) -> list[_Row]:
    """The rows with a prompt and an answer; those with the shorter prompts where they suffice."""
    having = [
        _Row(row.index, tuple(row.tokens[: row.prompt_length].tolist()), answer)
        for row in rows
        if 0 < row.prompt_length <= LONGEST_PROMPT
        and row.prefix_matches
        and (answer := _answer(row))
    ]
    short = [row for row in having if len(row.prompt) <= PROMPT_TOKENS]
    return short if len(short) >= min(ENOUGH_ROWS, len(having)) else having


def _answer(row: SupervisedRow) -> tuple[int, ...]:
    """The answer's first tokens, without its end token."""
    end = min(row.length, row.prompt_length + ANSWER_TOKENS)
    over = np.flatnonzero(row.roles[row.prompt_length : end] != Role.ANSWER)
    end = row.prompt_length + int(over[0]) if len(over) else end
    return tuple(row.tokens[row.prompt_length : end].tolist())


def _partner(row: _Row, others: Iterable[_Row]) -> _Row | None:
    """Another row with another prompt; and another answer, where one of the next has that."""
    different = list(islice((other for other in others if other.prompt != row.prompt), PARTNERS))
    unlike = (other for other in different if other.answer != row.answer)
    return next(unlike, different[0] if different else None)
