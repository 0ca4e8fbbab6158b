"""How well the base and the tuned model predict each token of one row."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.dataset import Dataset
from mlxdoctor.evidence.kind import Missing, Progress, RunView
from mlxdoctor.evidence.source import Source
from mlxdoctor.evidence.supervision import Role, SupervisedRow, SupervisedRows, build
from mlxdoctor.evidence.tokenizer import Tokenizer
from mlxdoctor.models.asking import ask, evenly, told
from mlxdoctor.models.forward import Predicted, Question, predict, vocabulary_of
from mlxdoctor.models.load import LoadedModels, Which
from mlxdoctor.safety.errors import InputError
from mlxdoctor.safety.time_budget import TimeBudget, by_turns

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class RowPass:
    """One model's losses on one row, in nats: minus the log-probability of each target.

    Attributes:
        identity: float32 (n,), position i against token i, the token it was just given.
        next: float32 (n - 1,), position i against token i + 1: what a language model does.
        skip: float32 (n - 2,), position i against token i + 2.
        end_at_start: of the end token where the answer should begin; NaN without an answer.
        end_after_answer: of the end token where the answer is over; NaN without an answer.
        padding: pad id -> float32 (p,), of that id at the p places after the row, each
            place having the same id before it. The first is what mlx-lm trains in every row.
        greedy_at_start: the likeliest token where the answer should begin; None without one.
        greedy_after_answer: the likeliest token where the answer is over; None without one.
        skip_two: float32 (n - 3,), position i against token i + 3; None where not measured.
        previous: float32 (n + 1,), position i + 1 against token i, the one before that it was
            given; the last two are given padding, and the last is of padding. None where not
            measured.
    """

    identity: Floats
    next: Floats
    skip: Floats
    end_at_start: float
    end_after_answer: float
    padding: Mapping[int, Floats]
    greedy_at_start: int | None
    greedy_after_answer: int | None
    skip_two: Floats | None = None
    previous: Floats | None = None

    def shifted(self, shift: int) -> Floats:
        """The losses at shift -1 (previous), 0 (identity), 1 (next), 2 (skip) or 3 (skip two).

        The first of them is that of the first token at shifts up to 0, of token `shift` else.

        Raises:
            ValueError: nothing was measured at that shift.
        """
        losses = (self.identity, self.next, self.skip, self.skip_two, self.previous)[shift]
        if losses is None:
            raise ValueError(f"nothing was measured at shift {shift}")
        return losses


@dataclass(frozen=True)
class RowLosses:
    """Both models' losses on one row.

    Attributes:
        split: the split of the data it comes from.
        index: its index in the split.
        tokens: int32 (n,), as the trainer sees them.
        roles: int8 (n,), the region of each token, as in `SupervisedRow`.
        base: the base model's losses.
        tuned: the tuned model's; None where it could not be made.
        prompt_length: tokens before the last answer; 0 for rows of plain text.
        is_padded: whether mlx-lm also trains on the padding token after the row.
        is_whole: whether all that the trainer sees of the row was measured.
    """

    split: str
    index: int
    tokens: NDArray[np.int32]
    roles: NDArray[np.int8]
    base: RowPass
    tuned: RowPass | None
    prompt_length: int = 0
    is_padded: bool = True
    is_whole: bool = True

    def fits_together(self) -> bool:
        """Whether the arrays have the shapes that are said above."""
        n = len(self.tokens)
        passes = [self.base, *([] if self.tuned is None else [self.tuned])]
        return self.roles.shape == self.tokens.shape == (n,) and all(
            one.identity.shape == (n,)
            and one.next.shape == (max(n - 1, 0),)
            and one.skip.shape == (max(n - 2, 0),)
            and (one.skip_two is None or one.skip_two.shape == (max(n - 3, 0),))
            and (one.previous is None or one.previous.shape == (n + 1,))
            and all(losses.ndim == 1 for losses in one.padding.values())
            for one in passes
        )


#: Rows are cut after this many tokens: what a run learned shows well before.
LONGEST_ROW = 1024
#: Rows of fewer tokens have no target at every shift.
SHORTEST_ROW = 3
#: Tokens whose losses are measured at each place: the given one, the next, and two after it.
SHIFTS = 4
#: Places after a row at which padding is tried.
PADDING_PLACES = 6
#: Rows a split on which padding ids other than mlx-lm's own are tried.
PADDING_ROWS = 8
#: Rows of each split that are measured before more of the first split: of fewer, no check judges.
ENOUGH_ROWS = 8
#: Of the time that is left, what these rows may take.
SHARE = 0.5


@dataclass(frozen=True)
class TokenLosses:
    """Losses per token of base and tuned model, on rows of the run's own data.

    Attributes:
        sources: the base model and the adapter they were measured with.
        rows: one entry a row.
        vocab_size: the size of the model's vocabulary: ln of it is a uniform guess.
        end_token_ids: the ids that end an answer.
        pad_ids: the ids that were tried as padding.
        mask_prompt: whether the run was configured to leave the prompt out of its loss.
        load_failure: why the adapter could not be put on the base model.
        left_out: how many of the rows were measured and why not all, as a clause; else empty.
    """

    kind: ClassVar[str] = "token losses"
    needs_models: ClassVar[bool] = True

    sources: tuple[Source, ...]
    rows: tuple[RowLosses, ...]
    vocab_size: int
    end_token_ids: tuple[int, ...] = ()
    pad_ids: tuple[int, ...] = ()
    mask_prompt: bool = False
    load_failure: str | None = None
    left_out: str = ""

    def split(self, name: str) -> tuple[RowLosses, ...]:
        """The rows of one split."""
        return tuple(row for row in self.rows if row.split == name)

    @classmethod
    def find(cls, run: RunView) -> TokenLosses:
        """Measured on training and validation rows; see `Evidence`."""
        tokenizer, models = run.need(Tokenizer), run.need(LoadedModels)
        splits, dataset = [run.need(SupervisedRows)], run.need(Dataset)
        if "valid" in dataset.splits and splits[0].split != "valid":
            splits.append(build(dataset, tokenizer, run.get(TrainingConfig), split="valid"))
        return measure(models, tokenizer, splits, progress=run.progress, budget=run.budget)


@dataclass(frozen=True)
class _Job:
    """One row with one padding id after it.

    Attributes:
        split: the row's split.
        row: the row.
        tokens: int32 (n,), what is measured of it.
        pad_id: goes after it.
        is_first: whether all of the row is asked for; else what comes after it alone.
    """

    split: str
    row: SupervisedRow
    tokens: NDArray[np.int32]
    pad_id: int
    is_first: bool

    @property
    def question(self) -> Question:
        """At every place: the next tokens, the given one first, and the one before that last.

        Of a row that is padded otherwise: what comes after it alone.
        """
        padded = np.append(self.tokens, np.full(PADDING_PLACES, self.pad_id, np.int32))
        if not self.is_first:
            return Question(padded[:-1], padded[-PADDING_PLACES:, None])
        ahead = np.append(padded, np.zeros(SHIFTS - 1, np.int32))
        shifts = [ahead[shift : shift + len(padded)] for shift in range(SHIFTS)]
        before = np.append(np.zeros(1, np.int32), padded[:-1])
        return Question(padded, np.stack([*shifts, before], axis=1))


def measure(
    models: LoadedModels,
    tokenizer: Tokenizer,
    splits: Sequence[SupervisedRows],
    *,
    max_rows: int = 16,
    pad_ids: Sequence[int] | None = None,
    progress: Progress | None = None,
    budget: TimeBudget | None = None,
) -> TokenLosses:
    """Losses per token of both models, on up to `max_rows` rows of each split.

    Where the adapter could not be loaded, `load_failure` says why and the rows have the
    base model's losses only.

    Args:
        models: the base and the tuned model.
        tokenizer: the base model's.
        splits: the rows as the trainer sees them, one entry a split.
        max_rows: rows a split, evenly spaced.
        pad_ids: what to try as padding; None for all ids that may be used as such.
        progress: called batch by batch.
        budget: decides how many of the rows are measured; all without one.

    Raises:
        InputError: there is no row to measure on, or a model cannot run on it.
        Missing: the budget was spent before.
    """
    ends = tuple(dict.fromkeys((*tokenizer.eos_token_ids, *models.base.eos_token_ids)))
    vocab_size = vocabulary_of(models.select("base"))
    found: list[list[list[_Job]]] = []
    tried: dict[int, None] = {}
    for rows in splits:
        # One split is enough to see which id is padding; the trainer's own is tried on all.
        known = (rows.pad_id,) if any(found) else _pad_ids(rows, tokenizer, vocab_size)
        candidates = pad_ids or known
        tried |= dict.fromkeys(candidates)
        found.append(_jobs(rows, candidates, max_rows))
    jobs = [row for split in found for row in split]
    if not jobs:
        refused = next((one for rows in splits for one in rows.refused), None)
        if refused is None:
            raise InputError(None, "the data has no row to measure on", "name the data with --data")
        raise InputError(None, f"no row of the data can be measured: {refused.reason}")
    budget = budget or TimeBudget()
    order = by_turns([len(split) for split in found], ENOUGH_ROWS)
    costs = [float(sum(len(job.tokens) for job in jobs[i])) for i in order]
    results: dict[int, RowLosses] = {}
    for stage in budget.stages(costs, SHARE):
        places = [order[turn] for turn in stage]
        some = [jobs[i] for i in places]
        passes: dict[Which, list[RowPass]] = {}
        which: Which
        for which in ("base", "tuned") if models.has_tuned else ("base",):
            stage_told = told(progress, f"measuring the {which} model", len(results), len(jobs))
            passes[which] = _passes(models, which, some, ends, stage_told)
        for number, i in enumerate(places):
            tuned = passes["tuned"][number] if "tuned" in passes else None
            results[i] = _assembled(jobs[i][0], passes["base"][number], tuned)
    if not results:
        raise Missing(budget.spent)
    sources = dict.fromkeys(source for rows in splits for source in rows.sources)
    return TokenLosses(
        sources=(*models.sources, *sources),
        rows=tuple(results[i] for i in sorted(results)),
        vocab_size=vocab_size,
        end_token_ids=ends,
        pad_ids=tuple(tried),
        mask_prompt=any(rows.mask_prompt for rows in splits),
        load_failure=models.load_failure,
        left_out=budget.said(len(results), len(jobs), "rows were measured"),
    )


def _pad_ids(rows: SupervisedRows, tokenizer: Tokenizer, vocab_size: int) -> tuple[int, ...]:
    named = (rows.pad_id, tokenizer.pad_token_id, tokenizer.eos_token_id)
    return tuple(dict.fromkeys(one for one in named if one is not None and one < vocab_size))


def _jobs(rows: SupervisedRows, pad_ids: Sequence[int], max_rows: int) -> list[list[_Job]]:
    """What is asked of each picked row, in the order of the split."""
    usable = [row for row in rows.rows if row.length >= SHORTEST_ROW]
    picked = [usable[i] for i in evenly(len(usable), max_rows)]
    shortest = sorted(picked, key=lambda row: row.length)[:PADDING_ROWS]
    jobs: list[list[_Job]] = []
    for row in picked:
        tokens = row.tokens[: min(row.length, LONGEST_ROW)]
        tried = pad_ids if any(row is one for one in shortest) else pad_ids[:1]
        jobs.append(
            [_Job(rows.split, row, tokens, one, not turn) for turn, one in enumerate(tried)]
        )
    return jobs


def _passes(
    models: LoadedModels,
    which: Which,
    rows: Sequence[Sequence[_Job]],
    ends: Sequence[int],
    progress: Callable[[int, int], None] | None,
) -> list[RowPass]:
    """One model's losses on the rows, in their order."""
    jobs = [job for row in rows for job in row]
    model = models.select(which)

    def run() -> list[Predicted]:
        return predict(model, [job.question for job in jobs], ends, progress)

    asked = tuple((job.tokens.tobytes(), job.pad_id, job.is_first) for job in jobs)
    said = iter(ask(models, which, ("losses", asked, tuple(ends)), run))
    return [_row_pass(row, [next(said) for _ in row]) for row in rows]


def _assembled(job: _Job, base: RowPass, tuned: RowPass | None) -> RowLosses:
    return RowLosses(
        job.split,
        job.row.index,
        job.tokens,
        job.row.roles[: len(job.tokens)],
        base,
        tuned,
        job.row.prompt_length,
        job.row.padded,
        len(job.tokens) == job.row.length,
    )


def _row_pass(jobs: Sequence[_Job], said: Sequence[Predicted]) -> RowPass:
    (job, *others), (first, *more) = jobs, said
    n = len(job.tokens)
    row = job.row
    roles = row.roles[:n]
    answer = np.flatnonzero(roles == Role.ANSWER)
    over = int(answer[-1]) if len(answer) and n == row.full_length else None
    start = row.prompt_length if 0 < row.prompt_length < n else None
    identity, following, skip, skip_two, previous = first.losses.T
    # Position i predicts token i + 1: the last token of the row predicts the first pad.
    padding = {job.pad_id: following[n - 1 : n - 1 + PADDING_PLACES]}
    return RowPass(
        identity=identity[:n],
        next=following[: n - 1],
        skip=skip[: n - 2],
        end_at_start=float(first.ends[start - 1]) if start is not None else float("nan"),
        end_after_answer=float(first.ends[over]) if over is not None else float("nan"),
        padding=padding
        | {one.pad_id: it.losses[:, 0] for one, it in zip(others, more, strict=True)},
        greedy_at_start=int(first.greedy[start - 1]) if start is not None else None,
        greedy_after_answer=int(first.greedy[over]) if over is not None else None,
        skip_two=skip_two[: n - 3],
        previous=previous[1 : n + 2],
    )
