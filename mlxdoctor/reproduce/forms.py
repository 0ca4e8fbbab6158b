"""Faults that experiments put in besides those of the ward, and repairs of the data."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from mlxdoctor.trainer.faults import FAULTS as WARD_FAULTS
from mlxdoctor.trainer.faults import Fault
from mlxdoctor.trainer.faults.of_settings import with_settings
from mlxdoctor.trainer.parts import Parts
from mlxdoctor.trainer.rows import Row, Rows
from mlxdoctor.trainer.settings import Settings

#: Tokens of an answer that the base model is asked for, where the data has none.
ANSWER_TOKENS = 48


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


def answers_filled(settings: Settings, parts: Parts, severity: Any) -> tuple[Settings, Parts]:
    """Give rows with an empty answer the base model's own: a repair, in a copy of the data."""
    from mlx_lm import generate

    model, tokenizer = parts.load(settings)
    folder = Path(settings.adapter_path) / "data"
    shutil.copytree(settings.data, folder, dirs_exist_ok=True)
    for path in folder.glob("*.jsonl"):
        rows = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
        for row in rows[: int(severity)]:
            messages = row.get("messages")
            if not messages or str(messages[-1].get("content") or "").strip():
                continue
            prompt = tokenizer.apply_chat_template(
                messages[:-1], add_generation_prompt=True, return_dict=False
            )
            answer = generate(model, tokenizer, prompt, max_tokens=ANSWER_TOKENS)
            messages[-1] = {**messages[-1], "content": answer.strip()}
        kept = [row for row in rows if _has_answer(row)]
        path.write_text("".join(json.dumps(row) + "\n" for row in kept))
    return with_settings(settings, parts, data=str(folder))


def _has_answer(row: Mapping[str, Any]) -> bool:
    messages = row.get("messages") or [{}]
    return bool(str(messages[-1].get("content") or "").strip())


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

#: Cause -> the repair of the data that would cure it. The number is of rows repaired.
REPAIRS: Mapping[str, Fault] = MappingProxyType(
    {
        "end-token-flood": Fault(
            "empty answers filled with the base model's own",
            "end-token-flood",
            "Rows with an empty answer get the base model's own answer.",
            (64,),
            answers_filled,
        )
    }
)
