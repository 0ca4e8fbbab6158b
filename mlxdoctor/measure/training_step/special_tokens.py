"""What a tokenizer tells of a row: padding, end, where its answer and a further document begin."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: What mlx-lm pads with, whatever the tokenizer says.
MLX_LM_PAD = 0


@dataclass(frozen=True)
class Special:
    """Tokens of a tokenizer that mean something.

    Attributes:
        pads: tokens that are taken as padding.
        ends: tokens that end an answer; empty where no tokenizer was given.
        answer: what the chat template adds when an answer is to follow.
        document: what stands where one document ends and the next begins, and never within
            a conversation; empty where that cannot be told.
    """

    pads: tuple[int, ...]
    ends: tuple[int, ...]
    answer: tuple[int, ...]
    document: tuple[int, ...]

    @classmethod
    def of(cls, tokenizer: Any | None) -> Special:
        """What is known; without a tokenizer only mlx-lm's padding."""
        ends = _ids(tokenizer, "eos_token_ids") or _ids(tokenizer, "eos_token_id")
        pads = tuple(dict.fromkeys((MLX_LM_PAD, *_ids(tokenizer, "pad_token_id"), *ends)))
        return cls(pads, ends, _opening(tokenizer), _document(tokenizer, ends))

    def prompt_lengths(self, inputs: NDArray[np.int32]) -> NDArray[np.int32]:
        """Where the last answer begins, after the last of what opens one; -1 where unknown."""
        lengths = [(_found(row, self.answer) or [-1])[-1] for row in inputs]
        after = [one + len(self.answer) if one >= 0 else -1 for one in lengths]
        return np.array(after, np.int32)

    def document_starts(self, row: NDArray[np.int32], length: int) -> tuple[int, ...]:
        """Where a further document begins in a row of so many tokens before its padding."""
        inside = row[:length]
        # Padding on the left may be of end tokens too.
        begins = np.flatnonzero(~np.isin(inside, self.pads))
        first = int(begins[0]) if begins.size else length
        return tuple(
            one + 1
            for one in _found(inside, self.document)
            if one > first and one + 1 < length and int(inside[one + 1]) not in self.pads
        )


def row_lengths(
    inputs: NDArray[np.int32], pads: tuple[int, ...], ends: tuple[int, ...]
) -> NDArray[np.int32]:
    """Tokens before the padding of each row, int32 (rows,).

    Padding is a run of one padding token up to the row's end; the first of a run of end
    tokens is the row's own.
    """
    lengths = np.full(len(inputs), inputs.shape[1], np.int32)
    for at, row in enumerate(inputs):
        last = int(row[-1])
        if last not in pads:
            continue
        other = np.flatnonzero(row != last)
        length = int(other[-1]) + 1 if other.size else 0
        follows_end = length > 0 and int(row[length - 1]) in ends
        if last == MLX_LM_PAD and len(row) - length == 1 and not follows_end:
            # A single one may be the row's own: in many vocabularies it is a letter.
            continue
        lengths[at] = min(length + (last in ends), len(row))
    return lengths


def _found(row: NDArray[np.int32], pattern: tuple[int, ...]) -> list[int]:
    """Where a pattern begins in a row."""
    if not pattern or len(row) < len(pattern):
        return []
    windows = np.lib.stride_tricks.sliding_window_view(row, len(pattern))
    found = np.flatnonzero((windows == np.array(pattern, np.int32)).all(axis=1))
    return [int(one) for one in found]


def _ids(tokenizer: Any | None, name: str) -> tuple[int, ...]:
    value = getattr(tokenizer, name, None)
    if value is None:
        return ()
    return (value,) if isinstance(value, int) else tuple(sorted(int(one) for one in value))


def _rendered(tokenizer: Any | None, texts: list[str], opened: bool = False) -> list[int] | None:
    """A conversation of these texts, user and assistant by turns, as the template writes it."""
    if tokenizer is None or getattr(tokenizer, "chat_template", None) is None:
        return None
    roles = ("user", "assistant")
    messages = [{"role": roles[at % 2], "content": one} for at, one in enumerate(texts)]
    try:
        return list(
            tokenizer.apply_chat_template(messages, add_generation_prompt=opened, return_dict=False)
        )
    except Exception:  # a user's template may raise anything
        return None


def _opening(tokenizer: Any | None) -> tuple[int, ...]:
    """What the chat template adds when an answer is to follow; empty where there is none."""
    closed, opened = (_rendered(tokenizer, ["a"], on) for on in (False, True))
    if not closed or not opened or opened[: len(closed)] != closed:
        return ()
    return tuple(opened[len(closed) :])


def _document(tokenizer: Any | None, ends: tuple[int, ...]) -> tuple[int, ...]:
    """An end token and how a conversation begins, if that never stands within one."""
    if len(ends) != 1:
        return ()
    if getattr(tokenizer, "chat_template", None) is None:
        return ends
    one, other = (_rendered(tokenizer, [text]) for text in ("a", "b"))
    turns = _rendered(tokenizer, ["a", "b", "c", "d", "e"])
    if not one or not other or not turns:
        return ()
    common = next(
        (at for at, (x, y) in enumerate(zip(one, other, strict=False)) if x != y), len(one)
    )
    pattern = (ends[0], *one[:common])
    is_within = bool(_found(np.array(turns, np.int32), pattern))
    return () if common == 0 or is_within else pattern
