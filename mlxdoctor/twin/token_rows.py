"""The training data as token rows, encoded by mlx-lm's own data sets."""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlxdoctor.engines.text import in_common
from mlxdoctor.evidence.dataset import SPLITS, Dataset, Features
from mlxdoctor.evidence.source import Sniffed, require_file
from mlxdoctor.evidence.tokenizer import QUICK_SECONDS, SLOW_SPEED, is_panic
from mlxdoctor.safety.errors import InputError
from mlxdoctor.safety.quoting import MAX_LINE, quoted
from mlxdoctor.safety.reading_limits import current, exceeded
from mlxdoctor.safety.silenced import aside
from mlxdoctor.safety.stages import Kind, Stage
from mlxdoctor.twin.settings import Settings

_ROW = Stage("tokenizing a row", Kind.LIBRARY, limit="tokenizer_seconds")


@dataclass(frozen=True)
class TokenRow:
    """One training example.

    Attributes:
        tokens: int32 (n,), whole.
        offset: position of the first supervised token; 0 where nothing is masked, so that every
            token is a target but the very first, which nothing comes before.
        keys: how many keys its JSON object has: mlx-lm sorts by that.
    """

    tokens: NDArray[np.int32]
    offset: int
    keys: int

    def supervised(self, limit: int) -> int:
        """Targets that remain when the row is cut to `limit` tokens."""
        return max(min(len(self.tokens), limit) - max(self.offset, 1), 0)


@dataclass(frozen=True)
class TokenRows:
    """The three splits; an absent one is empty.

    Attributes:
        left_out: rows with no target to learn that were left out of `train`.
    """

    train: tuple[TokenRow, ...]
    valid: tuple[TokenRow, ...]
    test: tuple[TokenRow, ...]
    left_out: int = 0

    def map(self, change: Callable[[TokenRow], TokenRow]) -> "TokenRows":
        """The same splits with every row of `train` and `valid` changed."""
        train, valid = (tuple(map(change, split)) for split in (self.train, self.valid))
        return replace(self, train=train, valid=valid)


def encode(settings: Settings, tokenizer: Any) -> TokenRows:
    """Read and tokenize the data as mlx-lm does; but of a plain text the question is masked too.

    Raises:
        InputError: the data are missing, of a format mlx-lm has no reader for, or empty.
    """
    _require_local(settings)
    if settings.mask_prompt and (masked := _masked_texts(settings, tokenizer)):
        return masked
    from mlx_lm.tuner.datasets import load_dataset

    path = Path(settings.data)
    try:
        # mlx-lm asks for features only where the configuration states them. It prints where
        # there are no validation rows.
        arguments = SimpleNamespace(**{**settings.stated(), "train": True})
        with aside():
            splits = load_dataset(arguments, tokenizer)
        train, valid, test = map(_rows, splits)
        return TokenRows(train, valid, test)
    except json.JSONDecodeError as error:
        raise InputError(path, f"has a line that is not JSON ({error})") from None
    except InputError:
        raise
    except BaseException as error:
        # Whatever a chat template or a row of another form makes of mlx-lm. A panic of the
        # tokenizer's Rust code is no Exception; an interrupt from the keyboard passes.
        if not isinstance(error, Exception) and not is_panic(error):
            raise
        reason = quoted(str(error), MAX_LINE)
        problem = f"cannot be read by mlx-lm ({type(error).__name__}: {reason})"
        raise InputError(path, problem) from None


def _masked_texts(settings: Settings, tokenizer: Any) -> TokenRows | None:
    """Plain texts without their questions; None where they have none."""
    folder = Path(settings.data)
    features = Features.stated(vars(settings))
    if features.format_of(Sniffed(folder / "train.jsonl").record) != "text":
        return None
    dataset = Dataset.read(folder, features)
    asked = {
        name: [split.exchange(row) for row in split.rows] for name, split in dataset.splits.items()
    }
    if not any(map(any, asked.values())):
        return None
    rows = encode(replace(settings, mask_prompt=False), tokenizer)

    def masked(name: str) -> tuple[TokenRow, ...]:
        before = (tokenizer.encode(each.before) if each else () for each in asked.get(name, ()))
        return tuple(
            replace(row, offset=in_common(row.tokens, first))
            for row, first in zip(getattr(rows, name), before, strict=False)
        )

    train, valid, test = map(masked, SPLITS)
    return TokenRows(train, valid, test)


def only_supervised(rows: TokenRows, limit: int) -> TokenRows:
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


def _rows(split: Sequence[Any]) -> tuple[TokenRow, ...]:
    slow, rows = 0.0, []
    for index in range(len(split)):
        example = split[index]
        keys = len(example)
        begun = time.process_time()
        with _ROW:
            tokens, offset = split.process(example)  # type: ignore[attr-defined]
        took = time.process_time() - begun
        if took > max(QUICK_SECONDS, len(tokens) / SLOW_SPEED):
            slow += took
        if slow > current().tokenizer_seconds:
            problem = f"the tokenizer took {slow:.1f} s to encode the rows it was slow at"
            raise exceeded(None, problem, "tokenizer_seconds")
        rows.append(TokenRow(np.asarray(tokens, np.int32), int(offset), keys))
    return tuple(rows)


def _require_local(settings: Settings) -> None:
    path, remedy = Path(settings.data), "name a folder in `data`: nothing is downloaded"
    if settings.hf_dataset is not None:
        raise InputError(settings.config, "hf_dataset is set", remedy)
    if not path.exists():
        raise InputError(path, "there is no such data folder", remedy)
    if not (path / "train.jsonl").is_file():
        raise InputError(path, "has no train.jsonl", "put one JSON object a line there")
    for split in SPLITS:
        file = path / f"{split}.jsonl"
        if file.exists() and (size := require_file(file)) > current().data_bytes:
            raise exceeded(file, f"has {size:,} bytes", "data_bytes")
