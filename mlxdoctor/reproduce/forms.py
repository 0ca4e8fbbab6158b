"""Faults that experiments put into the trainer besides those of the ward."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np

from mlxdoctor.train.faults import FAULTS as WARD_FAULTS
from mlxdoctor.train.faults import Fault
from mlxdoctor.train.parts import Parts
from mlxdoctor.train.rows import Row, Rows
from mlxdoctor.train.settings import Settings


def padding_before_end(settings: Settings, parts: Parts, severity: Any) -> tuple[Settings, Parts]:
    """Pad answers to one length before the end token is appended; the padding is supervised."""
    encode = parts.encode

    def padded(settings: Settings, tokenizer: Any) -> Rows:
        rows = encode(replace(settings, mask_prompt=True), tokenizer)
        longest = max((len(row.tokens) - row.offset for row in rows.train), default=0)
        width = round(longest * float(severity))
        padding = tokenizer.pad_token_id
        padding = tokenizer.eos_token_id if padding is None else padding

        def pad(row: Row) -> Row:
            ends = np.flatnonzero(row.tokens == tokenizer.eos_token_id)
            end = int(ends[-1]) if len(ends) else len(row.tokens)
            room = max(0, width - (end - row.offset))
            tokens = [*row.tokens[:end], *([padding] * room), tokenizer.eos_token_id]
            return replace(row, tokens=np.array(tokens, np.int32))

        return replace(rows, train=tuple(map(pad, rows.train)), valid=tuple(map(pad, rows.valid)))

    return settings, replace(parts, encode=padded)


_OWN = (
    Fault(
        "padding-before-end",
        "padding-supervised",
        "Answers are padded to this multiple of the longest one before the end token.",
        (1.0,),
        padding_before_end,
    ),
)

#: Faults that can be injected, by id.
FAULTS: Mapping[str, Fault] = MappingProxyType({**WARD_FAULTS, **{one.id: one for one in _OWN}})
