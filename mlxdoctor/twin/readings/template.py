"""Rows written in another prompt format than the model's chat template."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mlxdoctor.evidence.dataset import Dataset
from mlxdoctor.twin.reading import Reading
from mlxdoctor.twin.settings import Settings
from mlxdoctor.twin.token_rows import TokenRow, TokenRows

if TYPE_CHECKING:
    from mlxdoctor.twin.prepared import Parts

#: Formats in which people write a question and its answer without a chat template.
PATTERNS = (
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


@lru_cache(1)
def _pairs(data: str) -> dict[str, list[tuple[str, str] | None]]:
    """Split -> the question and the answer of each row; None for a row of several turns."""
    splits = Dataset.read(Path(data)).splits
    return {name: [split.turn(row) for row in split.rows] for name, split in splits.items()}


def _written(pattern: str, *, apart: bool) -> Reading:
    """The reading of rows in a format, the end token following.

    Args:
        pattern: with `{prompt}` and `{answer}`.
        apart: prompt and answer are tokenized one by one, as trainers with a mask do; else the
            whole text is, which may join their tokens where they meet.
    """
    before, after = pattern.split("{answer}")

    def apply(settings: Settings, parts: Parts) -> tuple[Settings, Parts] | None:
        pairs = _pairs(settings.data)
        if any(pair is None for split in pairs.values() for pair in split):
            return None

        def encode(settings: Settings, tokenizer: Any) -> TokenRows:
            def row(prompt: str, answer: str) -> TokenRow:
                start, rest = before.replace("{prompt}", prompt), answer + after
                head = tokenizer.encode(start)
                whole = (
                    head + tokenizer.encode(rest, add_special_tokens=False)
                    if apart
                    else tokenizer.encode(start + rest)
                )
                if whole[-1:] != [tokenizer.eos_token_id]:
                    whole = [*whole, tokenizer.eos_token_id]
                offset = len(head) if settings.mask_prompt else 0
                return TokenRow(np.asarray(whole, np.int32), offset, 1)

            def rows(name: str) -> tuple[TokenRow, ...]:
                return tuple(row(*pair) for pair in pairs.get(name, ()) if pair is not None)

            return TokenRows(rows("train"), rows("valid"), rows("test"))

        return settings, replace(parts, encode=encode)

    shown = pattern.replace("\n", "\\n")
    return Reading(
        "another-format",
        f"of rows written as `{shown}`",
        sound=False,
        fix="Train on rows rendered with the chat template, or ask without it.",
        in_training=False,
        apply=apply,
    )


FORMATS = tuple(_written(pattern, apart=apart) for pattern in PATTERNS for apart in (True, False))
