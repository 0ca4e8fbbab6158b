"""What its prompt is worth to an answer: its loss after another row's prompt, and after its own."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from typing import ClassVar, Self

import numpy as np

from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.dataset import SPLITS, Dataset
from mlxdoctor.evidence.kind import Missing, NotThere, RunView
from mlxdoctor.evidence.source import Source
from mlxdoctor.evidence.supervision import Role, SupervisedRow, SupervisedRows, build
from mlxdoctor.evidence.tokenizer import Tokenizer
from mlxdoctor.models.load import LoadedBase, LoadedModels
from mlxdoctor.models.losses import LONGEST_ROW, SHORTEST_ROW, Meter, RowLosses, TokenLosses

#: Tokens of an answer that are looked at: what it owes to its prompt shows early.
ANSWER_TOKENS = 64
#: Tokens of a prompt that are read; rows with longer ones are left out.
LONGEST_PROMPT = LONGEST_ROW - ANSWER_TOKENS
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
        rows: for each split that has any, how many rows can be measured.
        measure: (split, how many) -> that many rows, or all there are, measured ones first.
        unmeasured: split -> what the time budget did not allow, as a clause.
    """

    kind: ClassVar[str] = "answers after other prompts"
    needs_models: ClassVar[bool] = True

    sources: tuple[Source, ...]
    rows: Mapping[str, int]
    measure: Callable[[str, int], tuple[Asked, ...]]
    unmeasured: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def find(cls, run: RunView) -> Self:
        """The run's rows, with both models or the base alone."""
        dataset, tokenizer = run.need(Dataset), run.need(Tokenizer)
        run.need(SupervisedRows)
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
        sources = [source for own, _ in pairs.values() for source in own.sources]
        meter = Meter(models, tokenizer, run.progress, run.budget)
        unmeasured: dict[str, str] = {}

        def measure(split: str, count: int) -> tuple[Asked, ...]:
            own, other = (replace(rows, rows=rows.rows[:count]) for rows in pairs[split])
            # Of what was measured whole, the part that is looked at.
            owns = {
                row.index: replace(known[split, row.index], tokens=row.tokens, roles=row.roles)
                for row in own.rows
                if (split, row.index) in known
            }
            new = replace(own, rows=tuple(row for row in own.rows if row.index not in owns))
            others: dict[int, RowLosses] = {}
            with suppress(Missing):
                losses = meter.measure([replace(new, split="own"), replace(other, split="other")])
                owns |= {row.index: row for row in losses.split("own")}
                others = {row.index: row for row in losses.split("other")}
            both = tuple(
                (owns[row.index], others[row.index])
                for row in own.rows
                if row.index in owns and row.index in others
            )
            what = f"{split} rows were given another row's prompt"
            unmeasured[split] = run.budget.said(len(both), len(own.rows), what)
            return both

        sizes = {name: len(own.rows) for name, (own, _) in pairs.items()}
        return cls(tuple(dict.fromkeys([*models.sources, *sources])), sizes, measure, unmeasured)

    @property
    def left_out(self) -> str:
        """What the time budget did not allow, as a clause; empty where it allowed all."""
        return "; ".join(filter(None, self.unmeasured.values()))


def _pairs(rows: SupervisedRows, known: Known) -> tuple[SupervisedRows, SupervisedRows]:
    """The rows that can be asked, each beside its answer after another's prompt."""
    # Those measured before come first, the others at random.
    usable = [
        cut
        for row in rows.rows
        if 0 < row.prompt_length <= LONGEST_PROMPT
        and row.prefix_matches
        and (cut := _cut(row)).length >= max(row.prompt_length + 1, SHORTEST_ROW)
    ]
    shuffled = [usable[i] for i in np.random.default_rng(0).permutation(len(usable))]
    shuffled.sort(key=lambda row: (rows.split, row.index) not in known)
    pairs = [
        (row, _after(partner, row))
        for place, row in enumerate(shuffled)
        if (partner := _partner(row, chain(shuffled[place + 1 :], shuffled[:place]))) is not None
    ]
    own, other = (tuple(pair[side] for pair in pairs) for side in (0, 1))
    return replace(rows, rows=own), replace(rows, rows=other)


def _cut(row: SupervisedRow) -> SupervisedRow:
    """A row up to the first tokens of its answer, without its end token."""
    # Earlier answers of the dialogue, which may be trained on, belong to the prompt here.
    end = min(row.length, row.prompt_length + ANSWER_TOKENS)
    over = np.flatnonzero(row.roles[row.prompt_length : end] != Role.ANSWER)
    end = row.prompt_length + int(over[0]) if len(over) else end
    roles = row.roles[:end].copy()
    roles[: row.prompt_length] = Role.PROMPT
    return replace(row, tokens=row.tokens[:end], roles=roles, length=end)


def _after(partner: SupervisedRow, row: SupervisedRow) -> SupervisedRow:
    """A row's answer after the partner's prompt."""
    start = partner.prompt_length
    tokens, roles = (
        np.concatenate([values[:start], own[row.prompt_length :]])
        for values, own in ((partner.tokens, row.tokens), (partner.roles, row.roles))
    )
    return replace(row, tokens=tokens, roles=roles, length=len(tokens), prompt_length=start)


def _partner(row: SupervisedRow, others: Iterable[SupervisedRow]) -> SupervisedRow | None:
    """Another row with another prompt and another answer; None where none of the next has that."""

    def parts(row: SupervisedRow) -> tuple[bytes, bytes]:
        return row.tokens[: row.prompt_length].tobytes(), row.tokens[row.prompt_length :].tobytes()

    prompt, answer = parts(row)
    different = islice((other for other in others if parts(other)[0] != prompt), PARTNERS)
    return next((other for other in different if parts(other)[1] != answer), None)
