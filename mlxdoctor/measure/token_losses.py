"""What the base and the tuned model predict on the run's own rows, token by token."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.dataset import Dataset
from mlxdoctor.evidence.kind import Progress, RunView
from mlxdoctor.evidence.source import Source
from mlxdoctor.evidence.supervision import Role, SupervisedRow, SupervisedRows, build
from mlxdoctor.evidence.tokenizer import Tokenizer
from mlxdoctor.measure.base_memory import as_before
from mlxdoctor.measure.models import LoadedModels, Which
from mlxdoctor.measure.row_losses import Floats, RowLosses, RowPass
from mlxdoctor.safety.errors import InputError

#: Rows are cut after this many tokens: what a run learned shows well before.
LONGEST_ROW = 1024
#: Rows of fewer tokens have no target at every shift.
SHORTEST_ROW = 3
#: Places after a row at which padding is tried.
PADDING_PLACES = 6
#: Rows a split on which padding ids other than mlx-lm's own are tried.
PADDING_ROWS = 8
#: Logits of one batch take at most this much memory (bytes).
MAX_LOGIT_BYTES = 512 << 20


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
    """

    kind: ClassVar[str] = "token losses"

    sources: tuple[Source, ...]
    rows: tuple[RowLosses, ...]
    vocab_size: int
    end_token_ids: tuple[int, ...] = ()
    pad_ids: tuple[int, ...] = ()
    mask_prompt: bool = False
    load_failure: str | None = None

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
        return measure(models, tokenizer, splits, progress=run.progress)


@dataclass(frozen=True)
class _Job:
    """One row with one padding id after it."""

    split: str
    row: SupervisedRow
    tokens: NDArray[np.int32]
    pad_id: int

    @property
    def padded(self) -> NDArray[np.int32]:
        return np.append(self.tokens, np.full(PADDING_PLACES, self.pad_id, np.int32))


@dataclass(frozen=True)
class _Positions:
    """Losses at every position of a padded row, float32 (n + places,), nats.

    `greedy` is int32 (n + places,), the likeliest next token.
    """

    shifts: tuple[Floats, Floats, Floats, Floats]
    end: Floats
    greedy: NDArray[np.int32]


def measure(
    models: LoadedModels,
    tokenizer: Tokenizer,
    splits: Sequence[SupervisedRows],
    *,
    max_rows: int = 16,
    pad_ids: Sequence[int] | None = None,
    progress: Progress | None = None,
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

    Raises:
        InputError: there is no row to measure on, or a model cannot run on it.
    """
    ends = tuple(dict.fromkeys((*tokenizer.eos_token_ids, *models.base.eos_token_ids)))
    jobs: list[_Job] = []
    tried: dict[int, None] = {}
    for rows in splits:
        # One split is enough to see which id is padding; the trainer's own is tried on all.
        candidates = pad_ids or ((rows.pad_id,) if jobs else _pad_ids(rows, tokenizer))
        tried |= dict.fromkeys(candidates)
        jobs.extend(_jobs(rows, candidates, max_rows))
    if not jobs:
        raise InputError(None, "the data has no row to measure on", "name the data with --data")
    results: dict[Which, list[_Positions]] = {}
    vocab_size = 0
    which: Which
    for which in ("base", "tuned") if models.has_tuned else ("base",):
        model = models.select(which)
        try:
            run = partial(_run, model, jobs, ends, _named(progress, which))
            if which == "base":
                asked = tuple((job.tokens.tobytes(), job.pad_id) for job in jobs)
                results[which], vocab_size = as_before(models.base, ("losses", asked, ends), run)
            else:
                results[which], vocab_size = run()
        except (ValueError, TypeError, RuntimeError) as error:
            raise InputError(
                models.base.path,
                f"cannot be run on the data ({type(error).__name__}: {error})",
                "check that data and tokenizer belong to this model",
            ) from None
    sources = dict.fromkeys(source for rows in splits for source in rows.sources)
    return TokenLosses(
        sources=(*models.sources, *sources),
        rows=tuple(_assembled(jobs, results)),
        vocab_size=vocab_size,
        end_token_ids=ends,
        pad_ids=tuple(tried),
        mask_prompt=any(rows.mask_prompt for rows in splits),
        load_failure=models.load_failure,
    )


def _named(progress: Progress | None, which: str) -> Callable[[int, int], None] | None:
    if progress is None:
        return None
    return lambda done, total: progress(f"measuring the {which} model", done, total)


def _pad_ids(rows: SupervisedRows, tokenizer: Tokenizer) -> tuple[int, ...]:
    named = (rows.pad_id, tokenizer.pad_token_id, tokenizer.eos_token_id)
    return tuple(dict.fromkeys(one for one in named if one is not None))


def _jobs(rows: SupervisedRows, pad_ids: Sequence[int], max_rows: int) -> list[_Job]:
    usable = [row for row in rows.rows if row.length >= SHORTEST_ROW]
    picked = [usable[i] for i in _evenly(len(usable), max_rows)]
    shortest = sorted(picked, key=lambda row: row.length)[:PADDING_ROWS]
    jobs: list[_Job] = []
    for row in picked:
        tokens = row.tokens[: min(row.length, LONGEST_ROW)]
        tried = pad_ids if any(row is one for one in shortest) else pad_ids[:1]
        jobs.extend(_Job(rows.split, row, tokens, pad_id) for pad_id in tried)
    return jobs


def _evenly(total: int, wanted: int) -> list[int]:
    count = min(total, wanted)
    return [round(i * (total - 1) / max(1, count - 1)) for i in range(count)]


def _run(
    model: Any,
    jobs: Sequence[_Job],
    ends: Sequence[int],
    progress: Callable[[int, int], None] | None,
) -> tuple[list[_Positions], int]:
    """One model's losses, in the order of `jobs`, and the size of its vocabulary."""
    order = sorted(range(len(jobs)), key=lambda i: len(jobs[i].tokens))
    found: dict[int, _Positions] = {}
    highest = max(int(job.tokens.max()) for job in jobs)
    vocab_size = int(model(_array(np.array([[jobs[0].tokens[0]]]))).shape[-1])
    if highest >= vocab_size:
        raise ValueError(f"token {highest} is outside the vocabulary of {vocab_size}")
    done = 0
    while done < len(order):
        batch = [order[done]]
        for i in order[done + 1 :]:
            width = len(jobs[i].padded)
            if (len(batch) + 1) * width * vocab_size * 4 > MAX_LOGIT_BYTES:
                break
            batch.append(i)
        found |= dict(zip(batch, _forward(model, [jobs[i] for i in batch], ends), strict=True))
        done += len(batch)
        if progress is not None:
            progress(done, len(order))
    return [found[i] for i in range(len(jobs))], vocab_size


def _forward(model: Any, jobs: Sequence[_Job], ends: Sequence[int]) -> list[_Positions]:
    import mlx.core as mx

    width = max(len(job.padded) for job in jobs)
    # Padding on the right cannot be seen by a causal model from the left of it.
    inputs = np.zeros((len(jobs), width + 3), np.int32)
    for line, job in zip(inputs, jobs, strict=True):
        line[: len(job.padded)] = job.padded
    logits = model(_array(inputs[:, :width])).astype(mx.float32)
    total = mx.logsumexp(logits, axis=-1)
    shifts = []
    for shift in range(4):
        targets = _array(inputs[:, shift : shift + width])[..., None]
        shifts.append(total - mx.take_along_axis(logits, targets, axis=-1)[..., 0])
    end = total - mx.logsumexp(logits[..., mx.array(list(ends) or [0])], axis=-1)
    greedy = mx.argmax(logits, axis=-1).astype(mx.int32)
    mx.eval(*shifts, end, greedy)
    zero, one, two, three, *others = (np.array(values) for values in (*shifts, end, greedy))
    return [
        _Positions((zero[i], one[i], two[i], three[i]), *(values[i] for values in others))
        for i in range(len(jobs))
    ]


def _array(values: NDArray[Any]) -> Any:
    import mlx.core as mx

    return mx.array(values)


def _assembled(
    jobs: Sequence[_Job], results: Mapping[Which, Sequence[_Positions]]
) -> list[RowLosses]:
    rows: dict[tuple[str, int], list[int]] = {}
    for i, job in enumerate(jobs):
        rows.setdefault((job.split, job.row.index), []).append(i)
    assembled = []
    for (split, index), members in rows.items():
        job = jobs[members[0]]
        passes = {
            which: _row_pass(job, {jobs[i].pad_id: found[i] for i in members})
            for which, found in results.items()
        }
        roles = job.row.roles[: len(job.tokens)]
        assembled.append(
            RowLosses(
                split,
                index,
                job.tokens,
                roles,
                passes["base"],
                passes.get("tuned"),
                job.row.prompt_length,
                job.row.padded,
                len(job.tokens) == job.row.length,
            )
        )
    return assembled


def _row_pass(job: _Job, by_pad: Mapping[int, _Positions]) -> RowPass:
    first = by_pad[job.pad_id]
    n = len(job.tokens)
    row = job.row
    roles = row.roles[:n]
    answer = np.flatnonzero(roles == Role.ANSWER)
    over = int(answer[-1]) if len(answer) and n == row.full_length else None
    start = row.prompt_length if 0 < row.prompt_length < n else None
    return RowPass(
        identity=first.shifts[0][:n],
        next=first.shifts[1][: n - 1],
        skip=first.shifts[2][: n - 2],
        end_at_start=float(first.end[start - 1]) if start is not None else float("nan"),
        end_after_answer=float(first.end[over]) if over is not None else float("nan"),
        # Position i predicts token i + 1: the last token of the row predicts the first pad.
        padding={
            pad_id: found.shifts[1][n - 1 : n - 1 + PADDING_PLACES]
            for pad_id, found in by_pad.items()
        },
        greedy_at_start=int(first.greedy[start - 1]) if start is not None else None,
        greedy_after_answer=int(first.greedy[over]) if over is not None else None,
        skip_two=first.shifts[3][: n - 3],
    )
