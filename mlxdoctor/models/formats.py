"""Formats in which people write a question and its answer without a chat template."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from mlxdoctor.evidence.prompt_answer import question_and_answer
from mlxdoctor.evidence.supervision import Role, SupervisedRow, SupervisedRows

if TYPE_CHECKING:
    from mlxdoctor.evidence.dataset import Features, Split
    from mlxdoctor.evidence.tokenizer import Tokenizer

_PATTERNS = (
    "{prompt} {answer}",
    "{prompt}\n{answer}",
    "{prompt}\n\n{answer}",
    "Q: {prompt}\nA: {answer}",
    "Question: {prompt}\nAnswer: {answer}",
    "User: {prompt}\nAssistant: {answer}",
    "USER: {prompt} ASSISTANT: {answer}",
    "USER: {prompt}\nASSISTANT: {answer}",
    "### Instruction:\n{prompt}\n\n### Response:\n{answer}",
    "[INST] {prompt} [/INST] {answer}",
    "<|im_start|>user\n{prompt}<|im_end|>\n<|im_start|>assistant\n{answer}<|im_end|>",
)


@dataclass(frozen=True)
class PlainFormat:
    """One way to write a question and its answer as text, the end token following.

    Attributes:
        pattern: with `{prompt}` and `{answer}`; None for the row as it is, cut before its
            end token.
        apart: prompt and answer are tokenized one by one, as trainers with a mask do;
            else the whole text is, which may join their tokens where they meet.
    """

    pattern: str | None
    apart: bool

    def __str__(self) -> str:
        return "no end token" if self.pattern is None else self.pattern.replace("\n", "\\n")


WITHOUT_END = PlainFormat(None, apart=False)
#: Every other format that is tried.
PLAIN_FORMATS = tuple(PlainFormat(one, apart) for one in _PATTERNS for apart in (True, False))


def rewritten(
    rows: SupervisedRows,
    split: Split,
    features: Features,
    tokenizer: Tokenizer,
    plain: PlainFormat,
) -> SupervisedRows:
    """The same rows in another format; those of several turns are left out.

    Args:
        rows: as configured; masking and sequence limit are kept.
        split: the data that `rows` was made from.
    """
    if plain.pattern is None:
        return replace(rows, rows=tuple(map(_cut, rows.rows)), batches=())
    changed = [
        _plain(row, (*pair, plain.pattern, plain.apart), rows, tokenizer)
        for row in rows.rows
        if (pair := question_and_answer(split.rows[row.index], split.format, features))
    ]
    return replace(rows, rows=tuple(changed), batches=())


def _cut(row: SupervisedRow) -> SupervisedRow:
    ends = np.flatnonzero(row.roles == Role.END)
    if not len(ends):
        return row
    last = int(ends[-1])
    return replace(
        row,
        tokens=row.tokens[:last],
        roles=row.roles[:last],
        length=min(row.length, last),
        full_length=last,
        padded=row.padded or last < row.length,
    )


def _plain(
    row: SupervisedRow,
    written: tuple[str, str, str, bool],
    rows: SupervisedRows,
    tokenizer: Tokenizer,
) -> SupervisedRow:
    asked, answered, pattern, apart = written
    before, after = pattern.split("{answer}")
    start = before.replace("{prompt}", asked)
    head = tokenizer.encode(start)
    tokens = (
        head + tokenizer.encode(answered + after, add_special_tokens=False)
        if apart
        else tokenizer.encode(start + answered + after)
    )
    end = tokenizer.eos_token_id
    if end is not None and tokens[-1:] != [end]:
        tokens = [*tokens, end]
    array = np.array(tokens, dtype=np.int32)
    roles = np.full(len(array), Role.ANSWER, dtype=np.int8)
    roles[: len(head)] = Role.PROMPT
    if end is not None:
        roles[-1] = Role.END
    length = min(len(array), rows.max_seq_length)
    return replace(
        row,
        tokens=array,
        offset=len(head) if rows.mask_prompt else 0,
        prompt_length=len(head),
        length=length,
        full_length=len(array),
        roles=roles,
        padded=length < rows.max_seq_length,
    )
