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

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from mlxdoctor.errors import InputError
from mlxdoctor.evidence.chat_template import TemplateFailure
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.source import Source

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mlxdoctor.evidence.dataset import Dataset, Features, Row, RowFormat
    from mlxdoctor.evidence.tokenizer import Tokenizer

#: Rows examined unless the caller asks for more: whole batches, evenly spaced.
EXAMINED_ROWS = 512
#: mlx-lm pads a batch to one more than a multiple of this (tokens).
PAD_MULTIPLE = 32

_DEFAULT_LIMIT = 2048
_DEFAULT_BATCH = 4
_PROBE = "mlxdoctor"


class Role(IntEnum):
    """What a token of a row is."""

    PROMPT = 0
    ANSWER = 1
    END = 2
    OTHER = 3


@dataclass(frozen=True)
class SupervisedRow:
    """One row, tokenized.

    Attributes:
        index: the row's position in the split, from 0.
        tokens: int32 (full_length,), before the cut.
        offset: the first target by mlx-lm's reckoning; 0 where the prompt is not masked.
        prompt_length: tokens before the last answer: the offset if the prompt were
            masked; 0 for rows of plain text.
        length: tokens left after the cut.
        full_length: tokens before it.
        roles: int8 (full_length,) of `Role`.
        padded: whether mlx-lm also trains on the padding token after the row.
        prefix_matches: whether the prompt's tokens are how the row begins.
        assistant_turns: messages by the assistant.
    """

    index: int
    tokens: NDArray[np.int32]
    offset: int
    prompt_length: int
    length: int
    full_length: int
    roles: NDArray[np.int8]
    padded: bool
    prefix_matches: bool
    assistant_turns: int

    @property
    def targets(self) -> NDArray[np.int32]:
        """The supervised tokens, int32 (n,), the padding token left out."""
        return self.tokens[max(self.offset, 1) : self.length]

    @property
    def target_roles(self) -> NDArray[np.int8]:
        """The role of each of `targets`, int8 (n,)."""
        return self.roles[max(self.offset, 1) : self.length]

    def count(self, offset: int | None = None) -> int:
        """Targets that mlx-lm counts, padding token included, for this or another offset."""
        first = max(self.offset if offset is None else offset, 1)
        return max(0, self.length - first + int(self.padded))


@dataclass(frozen=True)
class RefusedRow:
    """A row that mlx-lm can't tokenize: training stops when it gets there.

    Attributes:
        index: the row's position in the split, from 0.
        reason: why, as a clause.
    """

    index: int
    reason: str


@dataclass(frozen=True)
class SupervisedRows:
    """A split as the trainer sees it.

    Attributes:
        sources: the data file and the tokenizer's files.
        split: the split's name.
        format: how mlx-lm reads the rows.
        rows: those examined, in training order.
        batches: for each whole batch examined, positions in `rows`.
        refused: rows examined that could not be tokenized.
        mask_prompt: whether the prompt is masked.
        masking_is_default: whether that was not stated, so that mlx-lm's default applies.
        max_seq_length: tokens after which rows are cut.
        batch_size: rows a batch.
        eos_token_ids: the tokens that end generation.
        terminator: what the template puts after an answer; empty for plain text.
        total_rows: rows in the split.
        examined_rows: rows looked at, those refused included.
        pad_id: the token mlx-lm pads with, whatever the tokenizer says.
    """

    kind: ClassVar[str] = "supervised rows"

    sources: tuple[Source, ...]
    split: str
    format: RowFormat
    rows: tuple[SupervisedRow, ...]
    batches: tuple[tuple[int, ...], ...]
    refused: tuple[RefusedRow, ...]
    mask_prompt: bool
    masking_is_default: bool
    max_seq_length: int
    batch_size: int
    eos_token_ids: tuple[int, ...]
    terminator: tuple[int, ...]
    total_rows: int
    examined_rows: int
    pad_id: int = field(default=0)

    def frequencies(self) -> Counter[int]:
        """How often each token is a target, padding left out."""
        if not self.rows:
            return Counter()
        values, counts = np.unique(
            np.concatenate([row.targets for row in self.rows]), return_counts=True
        )
        return Counter(dict(zip(values.tolist(), counts.tolist(), strict=True)))

    def unigram_entropy(self) -> float:
        """Loss of the best constant guess, nats: the targets' entropy (Miller–Madow 1955).

        NaN without any target.
        """
        counts = np.array(list(self.frequencies().values()), dtype=np.float64)
        total = counts.sum()
        if total == 0:
            return math.nan
        shares = counts / total
        return float(-(shares * np.log(shares)).sum() + (len(counts) - 1) / (2 * total))

    def width(self, batch: Sequence[int]) -> int:
        """Columns of a batch's token array, as mlx-lm pads it.

        Args:
            batch: positions in `rows`.
        """
        longest = max(self.rows[position].full_length for position in batch)
        return min(1 + PAD_MULTIPLE * -(-longest // PAD_MULTIPLE), self.max_seq_length)


def build(
    dataset: Dataset,
    tokenizer: Tokenizer,
    config: TrainingConfig | None,
    split: str = "train",
    limit: int | None = EXAMINED_ROWS,
) -> SupervisedRows:
    """The rows of a split as mlx-lm would train on them.

    Args:
        dataset: the data.
        tokenizer: the base model's.
        config: for masking, sequence limit and batch size; mlx-lm's defaults without it.
        split: which split.
        limit: examine about this many rows, in whole batches evenly spaced; None for all.

    Raises:
        InputError: there is no such split, it has no rows, or its format is unknown.
    """
    if split not in dataset.splits:
        raise InputError(dataset.path, f"has no {split}.jsonl")
    data = dataset.splits[split]
    if not data.rows:
        raise InputError(data.path, "has no rows")
    if data.format == "unknown":
        raise InputError(
            data.path,
            "has rows in a format that mlx-lm does not know",
            "use `messages`, `prompt` and `completion`, or `text`",
        )
    mask = bool(config.mask_prompt) if config is not None else False
    batch_size = max((config and config.batch_size) or _DEFAULT_BATCH, 1)
    cut = max((config and config.max_seq_length) or _DEFAULT_LIMIT, 2)
    order = sorted(range(len(data.rows)), key=lambda index: len(data.rows[index]))
    blocks = _sampled_blocks(order, batch_size, limit)
    encode = _Encoder(tokenizer, dataset.features, data.format, mask, cut)
    rows: list[SupervisedRow] = []
    refused: list[RefusedRow] = []
    batches: list[tuple[int, ...]] = []
    for block in blocks:
        first = len(rows)
        for index in block:
            try:
                rows.append(encode.row(index, data.rows[index]))
            except (TemplateFailure, KeyError, TypeError, AttributeError, IndexError) as error:
                refused.append(RefusedRow(index, _reason(error)))
        if len(rows) - first == batch_size:
            batches.append(tuple(range(first, len(rows))))
    source = next(one for one in dataset.sources if one.path == data.path)
    return SupervisedRows(
        sources=(source, *tokenizer.sources),
        split=split,
        format=data.format,
        rows=tuple(rows),
        batches=tuple(batches),
        refused=tuple(refused),
        mask_prompt=mask,
        masking_is_default=config is None or config.is_default("mask_prompt"),
        max_seq_length=cut,
        batch_size=batch_size,
        eos_token_ids=tokenizer.eos_token_ids,
        terminator=encode.terminator,
        total_rows=len(data.rows),
        examined_rows=len(rows) + len(refused),
    )


def _sampled_blocks(order: list[int], batch_size: int, limit: int | None) -> list[list[int]]:
    blocks = [order[at : at + batch_size] for at in range(0, len(order), batch_size)]
    wanted = len(blocks) if limit is None else max(1, limit // batch_size)
    if wanted >= len(blocks):
        return blocks
    picked = np.unique(np.linspace(0, len(blocks) - 1, wanted).round().astype(np.int64))
    return [blocks[int(one)] for one in picked]


def _reason(error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"it has no {error.args[0]!r}"
    return str(error)


class _Encoder:
    """Tokenizes rows; holds what stays the same from row to row."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        features: Features,
        row_format: RowFormat,
        mask_prompt: bool,
        max_seq_length: int,
    ) -> None:
        self.tokenizer = tokenizer
        self.features = features
        self.format = row_format
        self.mask_prompt = mask_prompt
        self.max_seq_length = max_seq_length
        self.ends = np.array(tokenizer.eos_token_ids, dtype=np.int32)
        self.terminator = () if row_format in ("text", "tokens") else self._terminator()

    def row(self, index: int, row: Row) -> SupervisedRow:
        """One row; raises what mlx-lm would stumble over, or `TemplateFailure`."""
        if self.format == "text":
            return self._finish(index, self._text(row[self.features.text]))
        if self.format == "tokens":
            tokens = row["tokens"]
            if not isinstance(tokens, list) or not all(type(one) is int for one in tokens):
                raise TypeError("its tokens are not a list of whole numbers")
            return self._finish(index, tokens)
        if self.format == "completions":
            messages: list[Mapping[str, Any]] = [
                {"role": "user", "content": row[self.features.prompt]},
                {"role": "assistant", "content": row[self.features.completion]},
            ]
        else:
            messages = row[self.features.chat]
            if not isinstance(messages, list) or not messages:
                raise TypeError("its messages are not a list with something in it")
        return self._conversation(index, messages, row.get("tools"))

    def _text(self, text: object) -> list[int]:
        if not isinstance(text, str):
            raise TypeError("its text is not a string")
        tokens = self.tokenizer.encode(text)
        end = self.tokenizer.eos_token_id
        if not tokens:
            raise IndexError("its text is empty")
        if end is not None and tokens[-1] != end:
            tokens.append(end)
        return tokens

    def _conversation(
        self, index: int, messages: Sequence[Mapping[str, Any]], tools: Any
    ) -> SupervisedRow:
        tokens = self.tokenizer.apply_chat_template(messages, tools)
        answers = [at for at, one in enumerate(messages) if one.get("role") == "assistant"]
        to_answer = bool(answers) and answers[-1] == len(messages) - 1
        prompt: list[int] = []
        if self.mask_prompt or len(messages) > 1:
            try:
                prompt = self.tokenizer.apply_chat_template(messages[:-1], tools, to_answer)
            except TemplateFailure:
                if self.mask_prompt:
                    raise
        earlier = self._earlier_answers(tokens, messages, answers, tools)
        return self._finish(index, tokens, prompt, earlier, len(answers))

    def _earlier_answers(
        self,
        tokens: list[int],
        messages: Sequence[Mapping[str, Any]],
        answers: list[int],
        tools: Any,
    ) -> list[tuple[int, int]]:
        spans = []
        for at in [one for one in answers if 0 < one < len(messages) - 1]:
            try:
                before = self.tokenizer.apply_chat_template(messages[:at], tools, True)
                after = self.tokenizer.apply_chat_template(messages[: at + 1], tools)
            except TemplateFailure:
                continue
            # Some templates rewrite earlier turns: then their place is not known.
            if tokens[: len(after)] == after and after[: len(before)] == before:
                spans.append((len(before), len(after)))
        return spans

    def _finish(
        self,
        index: int,
        tokens: list[int],
        prompt: Sequence[int] = (),
        earlier: Sequence[tuple[int, int]] = (),
        answers: int = 0,
    ) -> SupervisedRow:
        array = np.array(tokens, dtype=np.int32)
        roles = np.full(len(array), Role.PROMPT, dtype=np.int8)
        for start, stop in [*earlier, (min(len(prompt), len(array)), len(array))]:
            roles[start:stop] = self._answer_roles(array[start:stop])
        length = min(len(array), self.max_seq_length)
        array.setflags(write=False)
        roles.setflags(write=False)
        return SupervisedRow(
            index=index,
            tokens=array,
            offset=len(prompt) if self.mask_prompt else 0,
            prompt_length=len(prompt),
            length=length,
            full_length=len(array),
            roles=roles,
            padded=length < self.max_seq_length,
            prefix_matches=tokens[: len(prompt)] == list(prompt),
            assistant_turns=answers,
        )

    def _answer_roles(self, answer: NDArray[np.int32]) -> NDArray[np.int8]:
        roles = np.full(len(answer), Role.ANSWER, dtype=np.int8)
        tail = len(self.terminator)
        if tail and tuple(answer[-tail:].tolist()) == self.terminator:
            roles[-tail:] = Role.OTHER
            start = len(answer) - tail
        else:
            # Plain text, or a template that ends another way: the last end token closes it.
            is_end = np.flatnonzero(np.isin(answer, self.ends))
            start = int(is_end[-1]) if len(is_end) else len(answer)
            roles[start:] = Role.OTHER
        ends = np.flatnonzero(np.isin(answer[start:], self.ends)) + start
        roles[ends] = Role.END
        return roles

    def _terminator(self) -> tuple[int, ...]:
        """What the template writes after an answer, in tokens."""
        messages = [{"role": "user", "content": "?"}, {"role": "assistant", "content": _PROBE}]
        try:
            text = self.tokenizer.render(messages)
        except TemplateFailure:
            return ()
        _, found, after = text.rpartition(_PROBE)
        return tuple(self.tokenizer.encode(after, add_special_tokens=False)) if found else ()
