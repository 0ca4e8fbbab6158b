"""What its prompt is worth to an answer: its loss after another row's prompt, and after its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from typing import ClassVar

import numpy as np

from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.dataset import SPLITS, Dataset
from mlxdoctor.evidence.kind import NoSuchThing, NotThere, RunView
from mlxdoctor.evidence.source import Source
from mlxdoctor.evidence.supervision import Role, SupervisedRow, SupervisedRows, build
from mlxdoctor.evidence.tokenizer import Tokenizer
from mlxdoctor.models.load import LoadedBase, LoadedModels
from mlxdoctor.models.losses import LONGEST_ROW, Meter, RowLosses, TokenLosses

#: Tokens of an answer that are looked at: what it owes to its prompt shows early.
ANSWER_TOKENS = 64
#: Tokens of a prompt that are read; rows with longer ones are left out where others are enough.
PROMPT_TOKENS, LONGEST_PROMPT = 384, LONGEST_ROW - ANSWER_TOKENS
#: Rows of a split with short prompts that are enough to leave longer ones out.
ENOUGH_ROWS = 16
#: Rows among which one with another answer is looked for.
PARTNERS = 64

#: One answer, measured after its own prompt and after another row's.
Asked = tuple[RowLosses, RowLosses]
#: Split and index of a row -> its losses, measured before.
Known = Mapping[tuple[str, int], RowLosses]


@dataclass(frozen=True)
class PromptGains:
    """Answers after their own and after other rows' prompts, measured when asked for.

    Attributes:
        sources: the data files, the tokenizer's and the models'.
        rows: for each split that has any, how many rows can be measured.
        measure: (split, how many) -> that many rows, or all there are. Rows that were measured
            before come first and are not measured again.
        unmeasured: split -> what the time budget did not allow, as a clause.
    """

    kind: ClassVar[str] = "answers after other prompts"
    needs_models: ClassVar[bool] = True

    sources: tuple[Source, ...]
    rows: Mapping[str, int]
    measure: Callable[[str, int], tuple[Asked, ...]]
    unmeasured: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def find(cls, run: RunView) -> PromptGains:
        """The run's rows, with both models or the base alone; see `Evidence`."""
        dataset, tokenizer = run.need(Dataset), run.need(Tokenizer)
        if run.get(SupervisedRows) is None and run.cannot_have(SupervisedRows):
            raise NoSuchThing(run.why_missing(SupervisedRows))
        # The base alone where nothing was trained yet.
        is_trained = run.files.tuned is not None or run.files.adapter is not None
        models = run.need(LoadedModels if is_trained else LoadedBase)
        config = run.get(TrainingConfig)
        splits = [name for name in SPLITS if name in dataset.splits and dataset.splits[name].rows]
        measured = run.get(TokenLosses) if is_trained else None
        known = {(row.split, row.index): row for row in measured.rows} if measured else {}
        built = (build(dataset, tokenizer, config, split=name) for name in splits)
        pairs = {rows.split: _pairs(rows, known) for rows in built}
        pairs = {name: pair for name, pair in pairs.items() if pair[0].rows}
        if not pairs:
            raise NotThere("no row has a prompt and an answer of its own")
        sources = [
            *models.sources,
            *(source for own, _ in pairs.values() for source in own.sources),
        ]
        unmeasured: dict[str, str] = {}
        return cls(
            tuple(dict.fromkeys(sources)),
            {name: len(own.rows) for name, (own, _) in pairs.items()},
            _Measure(Meter(models, tokenizer, run.progress, run.budget), pairs, known, unmeasured),
            unmeasured,
        )

    @property
    def left_out(self) -> str:
        """What the time budget did not allow, as a clause; empty where it allowed all."""
        return "; ".join(filter(None, self.unmeasured.values()))


@dataclass(frozen=True)
class _Measure:
    """Measures pairs of rows, answers after their own prompts and after others', by split."""

    meter: Meter
    pairs: Mapping[str, tuple[SupervisedRows, SupervisedRows]]
    known: Known
    unmeasured: dict[str, str]
    done: dict[str, tuple[Asked, ...]] = field(default_factory=dict)

    def __call__(self, split: str, count: int) -> tuple[Asked, ...]:
        done = self.done.get(split, ())
        kept = {row.index for row, _ in done}
        own, other = (
            replace(rows, rows=tuple(row for row in rows.rows[:count] if row.index not in kept))
            for rows in self.pairs[split]
        )
        wanted, is_cut_short = len(done) + len(own.rows), bool(own.rows)
        if own.rows and self.meter.budget.left:
            # Of what was measured whole, the part that is looked at.
            before = {
                row.index: replace(self.known[split, row.index], tokens=row.tokens, roles=row.roles)
                for row in own.rows
                if (split, row.index) in self.known
            }
            new = tuple(row for row in own.rows if row.index not in before)
            losses = self.meter.all_of(
                replace(own, rows=new, split="own"), replace(other, split="other")
            )
            owns = before | {row.index: row for row in losses.split("own")}
            others = {row.index: row for row in losses.split("other")}
            both = [row.index for row in own.rows if row.index in owns and row.index in others]
            done += tuple((owns[index], others[index]) for index in both)
            is_cut_short = bool(losses.left_out)
        what = f"{split} rows were given another row's prompt"
        said = self.meter.budget.said(len(done), wanted, what)
        self.unmeasured[split] = said if is_cut_short else ""
        self.done[split] = done
        return done[:count]


def _pairs(rows: SupervisedRows, known: Known) -> tuple[SupervisedRows, SupervisedRows]:
    """The rows that can be asked, each beside its answer after another's prompt.

    Those measured before come first, the others at random.
    """
    usable = _usable(rows.rows)
    shuffled = [usable[i] for i in np.random.default_rng(0).permutation(len(usable))]
    shuffled.sort(key=lambda row: (rows.split, row.index) not in known)
    found = [
        (row, _after(partner, row))
        for place, row in enumerate(shuffled)
        if (partner := _partner(row, chain(shuffled[place + 1 :], shuffled[:place]))) is not None
    ]
    own, other = (tuple(pair[side] for pair in found) for side in (0, 1))
    return replace(rows, rows=own), replace(rows, rows=other)


def _usable(rows: Sequence[SupervisedRow]) -> list[SupervisedRow]:
    """The rows with a prompt and an answer; those with the shorter prompts where they suffice."""
    having = [
        cut
        for row in rows
        if 0 < row.prompt_length <= LONGEST_PROMPT
        and row.prefix_matches
        and (cut := _cut(row)).length > row.prompt_length
    ]
    short = [row for row in having if row.prompt_length <= PROMPT_TOKENS]
    return short if len(short) >= min(ENOUGH_ROWS, len(having)) else having


def _cut(row: SupervisedRow) -> SupervisedRow:
    """A row up to the first tokens of its answer, without its end token."""
    end = min(row.length, row.prompt_length + ANSWER_TOKENS)
    over = np.flatnonzero(row.roles[row.prompt_length : end] != Role.ANSWER)
    end = row.prompt_length + int(over[0]) if len(over) else end
    return replace(row, tokens=row.tokens[:end], roles=row.roles[:end], length=end, full_length=end)


def _after(partner: SupervisedRow, row: SupervisedRow) -> SupervisedRow:
    """A row's answer after the partner's prompt."""
    start = partner.prompt_length
    tokens, roles = (
        np.concatenate([values[:start], own[row.prompt_length :]])
        for values, own in ((partner.tokens, row.tokens), (partner.roles, row.roles))
    )
    length = len(tokens)
    return replace(
        row, tokens=tokens, roles=roles, prompt_length=start, length=length, full_length=length
    )


def _partner(row: SupervisedRow, others: Iterable[SupervisedRow]) -> SupervisedRow | None:
    """Another row with another prompt; and another answer, where one of the next has that."""

    def parts(row: SupervisedRow) -> tuple[bytes, bytes]:
        return row.tokens[: row.prompt_length].tobytes(), row.tokens[row.prompt_length :].tobytes()

    prompt, answer = parts(row)
    different = list(islice((other for other in others if parts(other)[0] != prompt), PARTNERS))
    unlike = (other for other in different if parts(other)[1] != answer)
    return next(unlike, different[0] if different else None)
