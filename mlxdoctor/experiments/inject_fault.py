"""A cause in the code of the run's own trainer: the fault put into ours, which has not got it.

causes.toml names the faults (`inject`), the likeliest first: those of the ward
(mlxdoctor/train/faults), and the one below. Each form is tried, the severest first, until one
is the same failure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np

from mlxdoctor.causes import Cause
from mlxdoctor.experiments import counterfactual
from mlxdoctor.experiments.shared.bench import Bench
from mlxdoctor.experiments.shared.observation import Condition, Observation
from mlxdoctor.experiments.shared.rules import Question, Ruling, Trials, judge_injection
from mlxdoctor.train.faults import FAULTS as WARD_FAULTS
from mlxdoctor.train.faults import Fault
from mlxdoctor.train.parts import Parts
from mlxdoctor.train.settings import Settings
from mlxdoctor.train.token_rows import TokenRow, TokenRows


def padding_before_end(settings: Settings, parts: Parts, severity: Any) -> tuple[Settings, Parts]:
    """Pad answers to one length before the end token is appended; the padding is supervised."""
    encode = parts.encode

    def padded(settings: Settings, tokenizer: Any) -> TokenRows:
        rows = encode(replace(settings, mask_prompt=True), tokenizer)
        longest = max((len(row.tokens) - row.offset for row in rows.train), default=0)
        width = round(longest * float(severity))
        padding = tokenizer.pad_token_id
        padding = tokenizer.eos_token_id if padding is None else padding

        def pad(row: TokenRow) -> TokenRow:
            ends = np.flatnonzero(row.tokens == tokenizer.eos_token_id)
            end = int(ends[-1]) if len(ends) else len(row.tokens)
            room = max(0, width - (end - row.offset))
            tokens = [*row.tokens[:end], *([padding] * room), tokenizer.eos_token_id]
            return replace(row, tokens=np.array(tokens, np.int32))

        return replace(rows, train=tuple(map(pad, rows.train)), valid=tuple(map(pad, rows.valid)))

    return settings, replace(parts, encode=padded)


_PADDING = Fault(
    "padding-before-end",
    "padding-supervised",
    "Answers are padded to this multiple of the longest one before the end token.",
    (1.0,),
    padding_before_end,
)
#: Faults that can be injected, by id.
FAULTS: Mapping[str, Fault] = MappingProxyType({**WARD_FAULTS, _PADDING.id: _PADDING})


@counterfactual(
    of="sound",
    shows=lambda cause: bool(cause.inject),
)
def inject_fault(bench: Bench, cause: Cause, question: Question, plain: Trials) -> Ruling | None:
    """Rerun with each form of the fault; None where a change of the configuration would cure."""
    if bench.failure.fixes(bench.lab.recipe.config, cause):
        return None

    def is_same(seed: int, one: Observation) -> bool:
        del seed
        return question.is_recreated(one)

    rulings: list[Ruling] = []
    for fault in (FAULTS[name] for name in cause.inject):
        for severity in reversed(fault.severities):
            condition = Condition(
                "injection",
                f"with the fault {fault.id} ({severity})",
                bench.failure.iterations,
                fault=fault,
                severity=severity,
            )
            injected = bench.until_decided(
                condition, bench.failure.seeds, question, cause.id, is_same, screen=True
            )
            rulings.append(judge_injection(question, plain, injected))
            if rulings[-1].verdict == "confirmed":
                return rulings[-1]
    return max(rulings, key=_order)


def _order(ruling: Ruling) -> tuple[int, float]:
    return ("refuted", "undecided", "confirmed").index(ruling.verdict), ruling.strength
