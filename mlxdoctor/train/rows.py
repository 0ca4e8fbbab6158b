"""The training data as token rows, encoded by mlx-lm's own data sets."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlxdoctor.safety.errors import InputError
from mlxdoctor.safety.quoting import MAX_LINE, quoted
from mlxdoctor.train.settings import Settings


@dataclass(frozen=True)
class Row:
    """One training example.

    Attributes:
        tokens: int32 (n,), whole.
        offset: position of the first supervised token; 0 for all but the very first.
        keys: how many keys its JSON object has: mlx-lm sorts by that.
    """

    tokens: NDArray[np.int32]
    offset: int
    keys: int

    def supervised(self, limit: int) -> int:
        """Targets that remain when the row is cut to `limit` tokens."""
        return max(min(len(self.tokens), limit) - max(self.offset, 1), 0)


@dataclass(frozen=True)
class Rows:
    """The three splits; an absent one is empty.

    Attributes:
        left_out: rows with no target to learn that were left out of `train`.
    """

    train: tuple[Row, ...]
    valid: tuple[Row, ...]
    test: tuple[Row, ...]
    left_out: int = 0


def encode(settings: Settings, tokenizer: Any) -> Rows:
    """Read and tokenize the data as mlx-lm does.

    Raises:
        InputError: the data are missing, of a format mlx-lm has no reader for, or empty.
    """
    if settings.hf_dataset is None:
        _require_local(settings)
    from mlx_lm.tuner.datasets import load_dataset

    # mlx-lm asks for features only where the configuration states them.
    arguments = {
        key: value
        for key, value in vars(settings).items()
        if value is not None or not key.endswith("_feature")
    }
    path = Path(settings.data)
    try:
        splits = load_dataset(SimpleNamespace(**{**arguments, "train": True}), tokenizer)
        train, valid, test = (_rows(split) for split in splits)
    except json.JSONDecodeError as error:
        raise InputError(path, f"has a line that is not JSON ({error})") from None
    except (ValueError, KeyError, TypeError, IndexError, OSError, ImportError) as error:
        # Also what a chat template raises for messages it does not take.
        raise InputError(
            path,
            f"cannot be read by mlx-lm ({type(error).__name__}: {quoted(str(error), MAX_LINE)})",
        ) from None
    return Rows(train, valid, test)


def only_supervised(rows: Rows, limit: int) -> Rows:
    """Leave out the training rows that have no target within `limit` tokens.

    Raises:
        InputError: no row is left.
    """
    kept = tuple(row for row in rows.train if row.supervised(limit))
    if not kept:
        raise InputError(
            None,
            f"none of the {len(rows.train)} training rows has a token to learn from",
            "check mask_prompt and max_seq_length: answers must not be empty or cut off",
        )
    return replace(rows, train=kept, left_out=len(rows.train) - len(kept))


def _rows(split: Sequence[Any]) -> tuple[Row, ...]:
    def row(index: int) -> Row:
        example = split[index]
        keys = len(example)
        tokens, offset = split.process(example)  # type: ignore[attr-defined]
        return Row(np.asarray(tokens, np.int32), int(offset), keys)

    return tuple(row(index) for index in range(len(split)))


def _require_local(settings: Settings) -> None:
    path = Path(settings.data)
    if path.exists():
        if not (path / "train.jsonl").is_file():
            raise InputError(path, "has no train.jsonl", "put one JSON object a line there")
        return
    if not settings.extras.allow_downloads:
        raise InputError(
            path,
            "there is no such data folder",
            "correct `data`, or add --allow-downloads if it names a Hugging Face data set",
        )
