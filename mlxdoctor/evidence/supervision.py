"""Which tokens a run trains on: the rows, as mlx-lm's trainer makes batches of them.

Computed from mlx-lm's rules rather than with its code, so that a mistake there
does not hide itself. A target is a token the model is asked to predict; the
rules of mlx-lm 0.32.2:

- Rows are sorted by their number of keys, which keeps the file's order where
  all have the same keys, and cut into batches of `batch_size`; rows left over
  at the end are never trained.
- A row is cut after `max_seq_length` tokens. Token i, from 1, is a target where
  offset <= i < length, and so is the padding token after the last one, unless
  the row fills the limit.
- With `mask_prompt`, the offset is the length of the conversation without its
  last message, generation prompt included; otherwise 0.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import ClassVar

import numpy as np

from mlxdoctor.engines.text import evenly
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.dataset import Dataset, RowFormat, Split
from mlxdoctor.evidence.kind import Missing, NoSuchThing, RunView
from mlxdoctor.evidence.mlx_lm_defaults import MLX_LM_DEFAULTS
from mlxdoctor.evidence.row_encoder import Role, RowEncoder, SupervisedRow
from mlxdoctor.evidence.source import Source
from mlxdoctor.evidence.tokenizer import Tokenizer
from mlxdoctor.evidence.training_log import TrainingLog
from mlxdoctor.safety.errors import InputError

__all__ = ["Role", "SupervisedRow", "SupervisedRows", "build", "encoder_of"]

#: Rows examined unless the caller asks for more: whole batches, evenly spaced.
EXAMINED_ROWS = 512
#: Nats a first report is below where it is DPO's: ln 2, and room for noise. Untrained on a text,
#: models hardly begin so low.
FIRST_OF_PAIRS = 0.75
#: mlx-lm pads a batch to one more than a multiple of this (tokens).
PAD_MULTIPLE = 32


def of_preferences(
    config: TrainingConfig | None, log: TrainingLog | None, dataset: Dataset | None
) -> bool:
    """Whether pairs or rewards were trained on by a loss of their own.

    Configuration or log say so, or the rows are pairs and the loss begins as one of pairs does.
    """
    if (config is not None and config.of_preferences) or (log is not None and log.is_preference):
        return True
    if dataset is None or log is None:
        return False
    losses = log.main.finite("train_loss").values
    has_pairs = any(split.format == "pairs" for split in dataset.splits.values())
    return has_pairs and len(losses) > 0 and bool(losses[0] < FIRST_OF_PAIRS)


@dataclass(frozen=True)
class SupervisedRows:
    """A split as the trainer sees it.

    Attributes:
        rows: those examined, in training order.
        batches: for each whole batch examined, positions in `rows`.
        refused: rows examined that mlx-lm can't tokenize, by their position in the split: why, as
            a clause. Training stops when it gets there.
        masking_is_default: whether `mask_prompt` was not stated, so that mlx-lm's default applies.
        terminator: what the template puts after an answer; empty for plain text.
        examined_rows: rows looked at, those refused included.
        pad_id: the token mlx-lm pads with, whatever the tokenizer says.
    """

    kind: ClassVar[str] = "rows as trained on"

    sources: tuple[Source, ...]
    split: str
    format: RowFormat
    rows: tuple[SupervisedRow, ...]
    batches: tuple[tuple[int, ...], ...]
    refused: Mapping[int, str]
    mask_prompt: bool
    masking_is_default: bool
    max_seq_length: int
    batch_size: int
    eos_token_ids: tuple[int, ...]
    terminator: tuple[int, ...]
    total_rows: int
    examined_rows: int
    pad_id: int = 0

    @classmethod
    def find(cls, run: RunView) -> "SupervisedRows":
        dataset = run.need(Dataset)
        split = "train" if "train" in dataset.splits else next(iter(dataset.splits), "")
        if not split or not dataset.splits[split].rows:
            raise Missing(f"{dataset.path} has no row to train on")
        config, log = run.get(TrainingConfig), run.get(TrainingLog)
        is_mlx_lms = dataset.splits[split].format not in ("pairs", "unknown")
        if not is_mlx_lms and of_preferences(config, log, dataset):
            why = "the run was trained on pairs or rewards, and not on rows of one answer"
            raise NoSuchThing(why)
        if not is_mlx_lms and dataset.splits[split].format == "unknown":
            raise Missing(f"the rows of {dataset.splits[split].path} have none of mlx-lm's keys")
        return build(dataset, run.need(Tokenizer), config, split=split)

    def frequencies(self) -> Counter[int]:
        """How often each token is a target, padding left out."""
        return Counter(chain.from_iterable(row.targets.tolist() for row in self.rows))

    def unigram_entropy(self) -> float:
        """Loss of the best constant guess, nats: the targets' entropy (Miller–Madow 1955).

        NaN without any target.
        """
        counts = np.array(list(self.frequencies().values()), np.float64)
        total = counts.sum()
        if total == 0:
            return math.nan
        shares = counts / total
        return float(-(shares * np.log(shares)).sum() + (len(counts) - 1) / (2 * total))

    @property
    def empty_batches(self) -> tuple[tuple[int, ...], ...]:
        """The batches in which no row has anything to learn: their loss is 0/0."""
        return tuple(
            batch for batch in self.batches if not any(self.rows[place].count() for place in batch)
        )

    def width(self, batch: Sequence[int]) -> int:
        """Columns of the token array of a batch of positions in `rows`, as mlx-lm pads it."""
        longest = max(len(self.rows[position].tokens) for position in batch)
        return min(1 + PAD_MULTIPLE * -(-longest // PAD_MULTIPLE), self.max_seq_length)


def encoder_of(
    dataset: Dataset,
    tokenizer: Tokenizer,
    config: TrainingConfig | None,
    split: str,
    *,
    mask_prompt: bool | None = None,
    max_seq_length: int | None = None,
) -> tuple[Split, RowEncoder]:
    """A split, and what tokenizes its rows as mlx-lm does.

    Args:
        config: says whether the prompt is masked, and where rows are cut; mlx-lm's defaults
            without it.
        mask_prompt, max_seq_length: in place of the configuration's.

    Raises:
        InputError: there is no such split, it has no rows, or its format is unknown.
    """
    if split not in dataset.splits:
        others = f"it has {', '.join(dataset.splits)}"
        raise InputError(dataset.path, f"has no {split}.jsonl", f"{others}: name one of them")
    data = dataset.splits[split]
    if not data.rows:
        raise InputError(data.path, "has no rows")
    if data.format == "unknown":
        remedy = "use `messages`, `prompt` and `completion`, or `text`"
        raise InputError(data.path, "has rows in a format that mlx-lm does not know", remedy)
    if mask_prompt is None:
        mask_prompt = bool(config.mask_prompt) if config is not None else False
    stated = max_seq_length or (config and config.max_seq_length)
    cut = max(stated or MLX_LM_DEFAULTS["max_seq_length"], 2)
    return data, RowEncoder(tokenizer, data, mask_prompt, cut)


def build(
    dataset: Dataset,
    tokenizer: Tokenizer,
    config: TrainingConfig | None,
    split: str = "train",
    limit: int | None = EXAMINED_ROWS,
) -> SupervisedRows:
    """The rows of a split as mlx-lm would train on them.

    Args:
        config: for masking, sequence limit and batch size; mlx-lm's defaults without it.
        limit: examine about this many rows, in whole batches evenly spaced; None for all.

    Raises:
        InputError: as `encoder_of`.
    """
    data, encode = encoder_of(dataset, tokenizer, config, split)
    batch_size = max((config and config.batch_size) or MLX_LM_DEFAULTS["batch_size"], 1)
    order = sorted(range(len(data.rows)), key=lambda index: len(data.rows[index]))
    whole = len(order) - len(order) % batch_size
    # With fewer rows than a batch mlx-lm does not start; the rows are still worth a look.
    blocks = [order[start : start + batch_size] for start in range(0, whole or 1, batch_size)]
    wanted = len(blocks) if limit is None else max(1, limit // batch_size)
    blocks = [blocks[number] for number in evenly(len(blocks), wanted)]
    rows: list[SupervisedRow] = []
    refused: dict[int, str] = {}
    batches: list[tuple[int, ...]] = []
    for block in blocks:
        first = len(rows)
        for index in block:
            row = encode.row(index, data.rows[index])
            if isinstance(row, str):
                refused[index] = row
            else:
                rows.append(row)
        if len(rows) - first == batch_size:
            batches.append(tuple(range(first, len(rows))))
    return SupervisedRows(
        sources=(data.source, *tokenizer.sources),
        split=split,
        format=data.format,
        rows=tuple(rows),
        batches=tuple(batches),
        refused=refused,
        mask_prompt=encode.mask_prompt,
        masking_is_default=config is None or config.is_default("mask_prompt"),
        max_seq_length=encode.max_seq_length,
        batch_size=batch_size,
        eos_token_ids=tokenizer.eos_token_ids,
        terminator=encode.terminator,
        total_rows=len(data.rows),
        examined_rows=len(rows) + len(refused),
    )
