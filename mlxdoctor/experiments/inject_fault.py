"""A cause in the code of the run's own trainer: the fault put into ours, which has not got it.

causes.toml names the faults (`inject`), the likeliest first: those of the ward
(mlxdoctor/train/faults), and those below. Each form is tried, that which the findings show
first and then the severest, until one is the same failure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from mlxdoctor.causes import Cause
from mlxdoctor.experiments import counterfactual
from mlxdoctor.experiments.shared.bench import Bench, Failure
from mlxdoctor.experiments.shared.observation import Condition, Observation
from mlxdoctor.experiments.shared.rules import Question, Ruling, Trials, judge_injection
from mlxdoctor.finding import Severity
from mlxdoctor.train.faults import FAULTS as WARD_FAULTS
from mlxdoctor.train.faults import Fault
from mlxdoctor.train.faults.of_labels import supervised_padding
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


PADDING_BEFORE_END = Fault(
    "padding-before-end",
    "padding-supervised",
    "Answers are padded to this multiple of the longest one before the end token.",
    (1.0,),
    padding_before_end,
)


@dataclass(frozen=True)
class Padding:
    """What a batch is filled up with, and how far.

    Attributes:
        token: the id of the token; or 0, which mlx-lm pads with.
        width: tokens of every row; None: those of the batch's longest, as mlx-lm rounds it up.
    """

    token: int = 0
    width: int | None = None

    def __str__(self) -> str:
        return f"token {self.token}, to {self.width or 'the width of the batch'}"


def padding_in_batch(settings: Settings, parts: Parts, severity: Any) -> tuple[Settings, Parts]:
    """Fill batches up with a token, and supervise every place to the batch's end."""
    padding: Padding = severity
    return settings, supervised_padding(parts, padding.token, padding.width or 0)


PADDING_IN_BATCH = Fault(
    "padding-in-batch",
    "padding-supervised",
    "Batches are filled up with a token, and the loss covers it.",
    (Padding(),),
    padding_in_batch,
)


def padding_shown(failure: Failure, settings: Settings) -> tuple[Padding, ...]:
    """The padding that the findings tell of: the token that was learned, and the width counted."""
    findings = [one for outcome in failure.outcomes for one in outcome.findings]
    # A note tells of the one padding token that mlx-lm trains after each row.
    found = [one.measured for one in findings if one.severity is not Severity.INFO]
    tokens = [one for one in (each.get("pad_id") for each in found) if isinstance(one, int)]
    counted = [each.get("tokens_per_iteration") for each in found]
    per_row = [one / settings.batch_size for one in counted if isinstance(one, int | float)]
    # A whole number a row in every batch: rows are padded to a width of their own.
    widths = [round(one) + 1 for one in per_row if one == round(one)]
    return tuple(Padding(token, width) for token in tokens for width in (*widths, None))


def adapter_alone(folder: Path, settings: Settings, severity: Any) -> None:
    """Leave the adapter alone in what was saved."""
    del settings, severity
    import mlx.core as mx

    from mlxdoctor.models.parameters import ADAPTER_LEAVES

    for path in sorted(folder.glob("*adapters.safetensors")):
        saved: Any = mx.load(str(path))
        kept = {k: v for k, v in saved.items() if k.rpartition(".")[2] in ADAPTER_LEAVES}
        mx.eval(kept)
        mx.save_safetensors(str(path), kept)


BASE_ALONG = Fault(
    "base-trained-along",
    "base-weights-changed",
    "Norms, whole layers or everything is trained with the adapter, which alone is saved.",
    WARD_FAULTS["base-not-frozen"].severities,
    WARD_FAULTS["base-not-frozen"].apply,
    adapter_alone,
)
#: Faults that can be injected, by id.
FAULTS: Mapping[str, Fault] = MappingProxyType(
    dict(WARD_FAULTS) | {one.id: one for one in (PADDING_BEFORE_END, PADDING_IN_BATCH, BASE_ALONG)}
)
#: What findings say of the form of a fault, by its id.
SHOWN: Mapping[str, Callable[[Failure, Settings], Sequence[Any]]] = MappingProxyType(
    {PADDING_IN_BATCH.id: padding_shown}
)


def forms_of(fault: Fault, bench: Bench) -> list[Any]:
    """The severities to try: what the findings show first, and then the severest."""
    recipe = bench.lab.recipe
    settings = recipe.settings(Path("adapters"), 1, recipe.seed)
    shown = SHOWN[fault.id](bench.failure, settings) if fault.id in SHOWN else ()
    return list(dict.fromkeys((*shown, *reversed(fault.severities))))


@counterfactual(
    of="sound",
    shows=lambda cause: bool(cause.inject),
)
def inject_fault(bench: Bench, cause: Cause, question: Question, plain: Trials) -> Ruling | None:
    """Rerun with each form of the fault; None where the configuration itself has the fault.

    It has where the cure is to set a value that it lacks. A smaller batch, say, is always to
    be had: that says nothing of whose fault it is.
    """
    restores = cause.change is not None and cause.change.operation == "set"
    if restores and bench.failure.fixes(bench.lab.recipe.config, cause):
        return None

    def is_same(seed: int, one: Observation) -> bool:
        del seed
        return question.is_recreated(one)

    rulings: list[Ruling] = []
    for fault in (FAULTS[name] for name in cause.inject):
        for severity in forms_of(fault, bench):
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
    order = ("refuted", "undecided", "confirmed")
    return max(rulings, key=lambda one: (order.index(one.verdict), one.strength))
