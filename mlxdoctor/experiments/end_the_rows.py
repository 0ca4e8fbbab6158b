"""Rows without an end token never teach to stop: rerun with the token at the end of each row.

That is what a repaired chat template gives: the same rows, each closed by the token that
generation stops at. Where the rows end with it as they are, it is not the rows that lack it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from mlxdoctor.causes import Cause
from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.tokenizer import Tokenizer
from mlxdoctor.experiments import counterfactual
from mlxdoctor.experiments.shared.bench import Bench
from mlxdoctor.experiments.shared.observation import Condition
from mlxdoctor.experiments.shared.rules import Question, Ruling, Trials, judge_change, undecided
from mlxdoctor.models.load import load_tokenizer
from mlxdoctor.safety.errors import InputError
from mlxdoctor.train.faults import Fault
from mlxdoctor.train.parts import Parts, parts_of
from mlxdoctor.train.settings import Settings
from mlxdoctor.train.token_rows import TokenRow, TokenRows

#: A template may put a line break after the end token: so many tokens at the end are looked at.
LAST_TOKENS = 3
#: Of the rows, at most this share may lack the token where the rows are not at fault.
MOST_ENDED = 0.1


def ends_of(base: Path) -> tuple[int, ...]:
    """The tokens that generation stops at, the tokenizer's own first.

    Raises:
        InputError: there is none, or the base's files can't be read.
    """
    tokenizer = Tokenizer.read(base)
    own = () if tokenizer.eos_token_id is None else (tokenizer.eos_token_id,)
    every = (*own, *tokenizer.eos_token_ids, *BaseModel.read(base).eos_token_ids)
    if not every:
        raise InputError(base, "names no token that ends an answer", "add eos_token to it")
    return tuple(dict.fromkeys(every))


def is_ended(row: TokenRow, ends: Collection[int], limit: int) -> bool:
    """Whether a row, cut to `limit` tokens, ends with a token that generation stops at."""
    return bool(np.isin(row.tokens[:limit][-LAST_TOKENS:], list(ends)).any())


def rows_ended(settings: Settings, parts: Parts, severity: Any) -> tuple[Settings, Parts]:
    """Put the end token after the answer of each row that lacks it, within the limit of its length.

    A line break that the template puts after the answer stays behind the end token.
    """
    del severity
    encode, limit = parts.encode, settings.max_seq_length
    ends = ends_of(Path(settings.model))
    last = np.int32(ends[0])

    def encode_ended(settings: Settings, tokenizer: Any) -> TokenRows:
        rows = encode(settings, tokenizer)

        def end(row: TokenRow) -> TokenRow:
            if is_ended(row, ends, limit):
                return row
            kept = row.tokens[: limit - 1]
            at = len(kept)
            while at > row.offset + 1 and not tokenizer.decode([int(kept[at - 1])]).strip():
                at -= 1
            return replace(row, tokens=np.insert(kept, at, last))

        return replace(rows, train=tuple(map(end, rows.train)), valid=tuple(map(end, rows.valid)))

    return settings, replace(parts, encode=encode_ended)


ENDED = Fault(
    "the end token put at the end of each row",
    "missing-end-token",
    "Rows that lack the end token get it.",
    ("every row",),
    rows_ended,
)


@counterfactual(of="failing", shows=lambda cause: cause.id == "missing-end-token")
def end_the_rows(bench: Bench, cause: Cause, question: Question, plain: Trials) -> Ruling:
    """Rerun on rows that end as generation does."""
    count, lacking, cut = _lacking(bench)
    if lacking <= MOST_ENDED * count:
        return Ruling(
            "refuted",
            f"{count - lacking} of {count} training rows end with a token that generation stops "
            "at, and the reference trainer, which trains it, fails in the same way",
        )
    if cut > lacking / 2:
        return undecided(
            f"{lacking} of {count} training rows end without the end token, {cut} of them because "
            "max_seq_length cuts them off",
            "the verdict on answers-truncated (--cause answers-truncated)",
        )
    # The answers end elsewhere than before: other errors are not what is asked about.
    asked = replace(question, strict=False)
    condition = Condition(
        "repair", ENDED.id, bench.failure.iterations, fault=ENDED, severity=ENDED.severities[0]
    )
    changed = bench.changed(condition, asked, cause.id, plain)
    ruling = judge_change(asked, plain, {}, changed, None, what=condition.label)
    if ruling.verdict == "confirmed":
        ruling = bench.against_placebo(condition, asked, plain, changed)
    text = f"{lacking} of {count} training rows end without a token that generation stops at"
    return replace(ruling, reason=f"{text}; {ruling.reason}")


def _lacking(bench: Bench) -> tuple[int, int, int]:
    """Training rows; those without an end token as trained on; those that had one, uncut."""
    recipe = bench.lab.recipe
    settings = recipe.settings(Path("adapters"), 1, recipe.seed)
    rows = parts_of(settings).encode(settings, load_tokenizer(recipe.base)).train
    ends = ends_of(recipe.base)
    lacking = [row for row in rows if not is_ended(row, ends, settings.max_seq_length)]
    cut = sum(is_ended(row, ends, len(row.tokens)) for row in lacking)
    return len(rows), len(lacking), cut
