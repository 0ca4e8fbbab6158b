"""Rows written in another prompt format than the model's chat template."""

from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from mlxdoctor.evidence.dataset import Dataset, Features
from mlxdoctor.models.prompts import PLAIN_FORMATS
from mlxdoctor.twin.parts import Parts
from mlxdoctor.twin.readings import Reading
from mlxdoctor.twin.settings import Settings
from mlxdoctor.twin.token_rows import TokenRow, TokenRows


@lru_cache(1)
def _pairs(data: str, features: Features) -> dict[str, list[tuple[str, str] | None]]:
    """Split -> the question and the answer of each row; None for a row of several turns."""
    splits = Dataset.read(Path(data), features).splits
    return {name: [split.turn(row) for row in split.rows] for name, split in splits.items()}


def _written(pattern: str, how: str) -> Reading:
    """The reading of rows in a format, the end token following.

    Args:
        pattern: with `{prompt}` and `{answer}`.
        how: "apart": prompt and answer are tokenized one by one, as trainers with a mask do;
            "led": likewise, and a space between them belongs to the answer; "whole": the text
            is tokenized at once, which may join their tokens where they meet.
    """
    before, after = pattern.split("{answer}")

    def apply(settings: Settings, parts: Parts) -> tuple[Settings, Parts] | None:
        pairs = _pairs(settings.data, Features.stated(vars(settings)))
        if any(pair is None for split in pairs.values() for pair in split):
            return None

        def encode(settings: Settings, tokenizer: Any) -> TokenRows:
            def row(prompt: str, answer: str) -> TokenRow:
                start, rest = before.replace("{prompt}", prompt), answer + after
                if how == "led" and start.endswith(" "):
                    start, rest = start[:-1], f" {rest}"
                head = tokenizer.encode(start)
                whole = (
                    tokenizer.encode(start + rest)
                    if how == "whole"
                    else head + tokenizer.encode(rest, add_special_tokens=False)
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
        apply,
        "Train on rows rendered with the chat template, or ask without it.",
    )


FORMATS = tuple(
    _written(pattern, how)
    for pattern in PLAIN_FORMATS
    for how in ("apart", "led", "whole")
    if how != "led" or " {answer}" in pattern
)
