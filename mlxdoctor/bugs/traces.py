"""What known bugs leave behind in a run: one function a trace, by the name that bugs give it.

A function returns what it measured, or None where the bug left no trace. None of them asks for
versions: that is the check's part. What they measure is computed from the artifacts, not taken
from another check.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from mlxdoctor.check import limit
from mlxdoctor.evidence.adapter import Adapter
from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.resumed import ResumedAdapter
from mlxdoctor.evidence.supervision import SupervisedRows
from mlxdoctor.evidence.training_log import TrainingLog
from mlxdoctor.finding import Measurement, Severity
from mlxdoctor.measure.weights.adapter_facts import factor_facts
from mlxdoctor.models.generations import Generations
from mlxdoctor.safety.quoting import MAX_LINE, quoted

#: mlx-lm pads with this token, whatever the tokenizer says.
_PAD = 0
#: DoRA computes the number of inputs from how many values of so many bits fit a word.
_WORD_BITS = 32


@dataclass(frozen=True)
class BugLimits:
    """When a trace is one."""

    most: float = limit(
        0.5,
        unit="share of answers",
        source="29 of 30 in a run of mlx_lm.lora whose rows end with no end token",
        false_alarms="0 of 131 sound runs of four base models, which reach 2 of 12",
    )
    answers: int = limit(8, unit="answers", source="as for every comparison of answers")
    left_over: float = limit(
        0.1,
        unit="share of the iterations",
        source="a run that loses a tenth of its batches learned from other data than it was given",
        false_alarms="0 of 131 sound runs, none of which loses any",
    )


@dataclass(frozen=True)
class Artifacts:
    """What a run left behind, as far as traces are looked for in it, and the thresholds."""

    limits: BugLimits
    config: TrainingConfig | None = None
    log: TrainingLog | None = None
    adapter: Adapter | None = None
    resumed: ResumedAdapter | None = None
    base: BaseModel | None = None
    rows: SupervisedRows | None = None
    generations: Generations | None = None


@dataclass(frozen=True)
class Trace:
    """What a bug left behind.

    Attributes:
        severity: what that means for the run.
        measured: the figures, for the bug's sentence.
        where: the tensor, key, line or row it was seen in.
    """

    severity: Severity
    measured: Mapping[str, Measurement] = field(default_factory=dict)
    where: str | None = None


def padding_in_answers(run: Artifacts) -> Trace | None:
    """Answers that run into the padding token, where rows have no token that ends them."""
    rows, generations = run.rows, run.generations
    if rows is None or generations is None:
        return None
    padded = [row for row in rows.rows if row.padded and len(row.targets)]
    # Where an answer has an end token, generation stops there and never comes to the padding.
    taught = [row.tokens[row.prompt_length : row.length] for row in padded]
    ended = sum(bool(np.isin(tokens, rows.eos_token_ids).any()) for tokens in taught)
    if not padded or ended > (1.0 - run.limits.most) * len(padded):
        return None
    if any((row.targets == _PAD).any() for row in rows.rows):
        return None
    items = generations.items
    answers = [(item.tuned_tokens, item.base_tokens or ()) for item in items if item.tuned_tokens]
    # As the first token it would mean NaN logits.
    affected = sum(
        _PAD in tuned and tuned[0] != _PAD and _PAD not in base for tuned, base in answers
    )
    if len(answers) < run.limits.answers or affected < run.limits.most * len(answers):
        return None
    return Trace(Severity.WARNING, {"affected_answers": affected, "answers": len(answers)})


def leftover_accumulation(run: Artifacts) -> Trace | None:
    """Iterations that are no multiple of the accumulation steps; fewer make no update at all."""
    config = run.config
    if config is None or not config.describes_training or config.iters is None:
        return None
    steps = config.grad_accumulation_steps or 1
    left_over = config.iters % steps
    measured: dict[str, Measurement] = {
        "iters": config.iters,
        "grad_accumulation_steps": steps,
        "updates": config.iters // steps,
        "left_over": left_over,
    }
    if config.iters < steps:
        if run.adapter is None or not run.adapter.modules or config.resume_adapter_file:
            return None
        if not all(module.b.is_zero for module in factor_facts(run.adapter)):
            return None
        modules = run.adapter.modules
        return Trace(Severity.ERROR, {**measured, "zero_b": len(modules)}, modules[0].name)
    share = left_over / config.iters
    if share < run.limits.left_over:
        return None
    return Trace(Severity.WARNING, {**measured, "share": share})


def resumed_tensors_dropped(run: Artifacts) -> Trace | None:
    """Tensors that were dropped on resuming, or modules that kept the resumed file's rank."""
    if run.resumed is None or run.adapter is None:
        return None
    before, after = run.resumed.adapter, run.adapter
    if dropped := sorted(before.tensors.keys() - after.tensors.keys()):
        measured: dict[str, Measurement] = {
            "file": before.path.name,
            "resumed_tensors": len(before.tensors),
            "dropped_tensors": len(dropped),
            "dropped": tuple(dropped[:3]),
        }
        return Trace(Severity.ERROR, measured, dropped[0])
    rank = run.config.rank if run.config is not None else None
    ranks = {module.name: module.rank for module in before.modules}
    taken = [
        module
        for module in after.modules
        if module.rank == ranks.get(module.name) and module.rank != rank
    ]
    if rank is None or not taken or len(taken) < len(after.modules):
        return None
    measured = {
        "configured_rank": rank,
        "resumed_rank": taken[0].rank,
        "modules": len(taken),
    }
    return Trace(Severity.ERROR, measured, taken[0].name)


def adapter_loaded_unchecked(run: Artifacts) -> Trace | None:
    """An adapter of unknown names that changes no answer."""
    if run.adapter is None or run.base is None or run.generations is None:
        return None
    modules = run.adapter.modules
    if not modules or any(run.base.module_for(module.name) is not None for module in modules):
        return None
    items = [item for item in run.generations.items if item.base is not None]
    if len(items) < run.limits.answers or any(item.base != item.tuned for item in items):
        return None
    return Trace(Severity.ERROR, {"modules": len(modules), "answers": len(items)}, modules[0].name)


def nan_of_an_empty_batch(run: Artifacts) -> Trace | None:
    """A batch that masking leaves without a target, and a loss that is not finite."""
    rows, log = run.rows, run.log
    if rows is None or log is None or not rows.mask_prompt or not rows.empty_batches:
        return None
    losses = [log.main.get(name) for name in ("train_loss", "val_loss")]
    if all(series is None or np.isfinite(series.values).all() for series in losses):
        return None
    first = rows.rows[rows.empty_batches[0][0]]
    return Trace(
        Severity.ERROR,
        {"empty_batches": len(rows.empty_batches), "batches": len(rows.batches)},
        f"row {first.index + 1} of {rows.split}",
    )


def dora_odd_bits(run: Artifacts) -> Trace | None:
    """DoRA on a base of 3, 5 or 6 bits whose training broke off over shapes."""
    is_dora = run.config is not None and run.config.fine_tune_type == "dora"
    if run.base is None or run.log is None or not is_dora:
        return None
    odd = sorted({part.bits for part in run.base.quantized.values() if _WORD_BITS % part.bits})
    stopped = [
        failure
        for failure in run.log.failures
        if "shape" in failure.text or "matmul" in failure.text
    ]
    if not odd or not stopped:
        return None
    return _at_line(stopped[0].line_number, stopped[0].text, bits=tuple(odd))


def error_message(run: Artifacts, pattern: re.Pattern[str]) -> Trace | None:
    """The message of a bug at the end of the log; None where the log ends otherwise."""
    if run.log is None:
        return None
    last = run.log.main.last_line
    for failure in run.log.failures:
        if failure.line_number > last and pattern.search(failure.text):
            return _at_line(failure.line_number, failure.text)
    return None


def _at_line(number: int, text: str, **measured: Measurement) -> Trace:
    figures = {**measured, "line": number, "text": quoted(text, MAX_LINE)}
    return Trace(Severity.ERROR, figures, f"line {number} of the log")


#: Name of a trace in the lists of bugs -> how it is found.
TRACES: Mapping[str, Callable[[Artifacts], Trace | None]] = {
    "padding-in-answers": padding_in_answers,
    "leftover-accumulation": leftover_accumulation,
    "resumed-tensors-dropped": resumed_tensors_dropped,
    "adapter-loaded-unchecked": adapter_loaded_unchecked,
    "nan-of-an-empty-batch": nan_of_an_empty_batch,
    "dora-odd-bits": dora_odd_bits,
}
