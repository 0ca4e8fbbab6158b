"""What bugs in mlx-lm's labels and batches leave behind: in counts, losses and answers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from mlxdoctor.bugs.counts import (
    Counted,
    header_counted,
    opening_counted,
    padding_counted,
    unsorted_batches,
)
from mlxdoctor.bugs.sightings import Artifacts, BugLimits, Sighting
from mlxdoctor.evidence.chat_template import TemplateFailure
from mlxdoctor.evidence.supervision import SupervisedRows
from mlxdoctor.evidence.tokenizer import Tokenizer
from mlxdoctor.evidence.training_log import TrainingLog
from mlxdoctor.finding import Measurement, Severity
from mlxdoctor.models.generations import Generations
from mlxdoctor.safety.errors import InputError

#: mlx-lm pads with this token, whatever the tokenizer says.
_PAD = 0


def padding_target(run: Artifacts) -> Sighting | None:
    """The padding token after each row in the log's count, and in answers that run into it."""
    if run.rows is None or run.log is None:
        return None
    counted = padding_counted(run.rows, run.log)
    if counted is None:
        return None
    measured: dict[str, Measurement] = {
        "iteration": counted.iteration,
        "trained_tokens": counted.logged,
        "with_padding_target": counted.bounds_with,
        "without": counted.bounds_without,
    }
    runs_on = _runs_into_padding(run.rows, run.generations, run.limits)
    if runs_on is not None:
        affected, answers = runs_on
        return Sighting(
            Severity.WARNING,
            f"{affected} of {answers} answers run into token {_PAD}, which is the target of no "
            "row: mlx-lm trained on one padding token after each row, and the rows end "
            "with no token that stops generation.",
            {**measured, "affected_answers": affected, "answers": answers},
        )
    return Sighting(
        Severity.INFO,
        f"After {counted.iteration:,} iterations the log counts {counted.logged:,} trained "
        f"tokens: one padding token a row among them, without which at most "
        f"{counted.bounds_without[1]:,} could be.",
        measured,
    )


def _runs_into_padding(
    rows: SupervisedRows, generations: Generations | None, limits: BugLimits
) -> tuple[int, int] | None:
    """How many answers run into the padding token, and how many there are; None for few."""
    padded = [row for row in rows.rows if row.padded and len(row.targets)]
    # Where an answer has an end token, generation stops there and never comes to the padding.
    taught = [row.tokens[row.prompt_length : row.length] for row in padded]
    ended = sum(bool(np.isin(one, rows.eos_token_ids).any()) for one in taught)
    if not padded or ended > (1.0 - limits.most) * len(padded) or generations is None:
        return None
    if any((row.targets == _PAD).any() for row in rows.rows):
        return None
    said = [(one.tuned_tokens, one.base_tokens or ()) for one in generations.items]
    answers = [(tuned, base) for tuned, base in said if tuned]
    # As the first token it would mean NaN logits.
    affected = sum(
        _PAD in tuned and tuned[0] != _PAD and _PAD not in base for tuned, base in answers
    )
    few = len(answers) < limits.answers or affected < limits.most * len(answers)
    return None if few else (affected, len(answers))


def length_sort(run: Artifacts) -> Sighting | None:
    """Counts that scatter as those of unsorted batches."""
    if run.rows is None or run.log is None:
        return None
    seen = unsorted_batches(run.rows, run.log, run.limits)
    if seen is None or seen.waste - seen.waste_sorted < run.limits.padding_saved:
        return None
    return Sighting(
        Severity.INFO,
        f"The reports' token counts scatter as those of batches in the file's order do, not "
        f"as those of rows sorted by length: {seen.waste:.0%} of all positions were padding, "
        f"sorted it would be {seen.waste_sorted:.0%}.",
        {
            "padding": seen.waste,
            "padding_if_sorted": seen.waste_sorted,
            "log_likelihood_ratio": seen.evidence,
            "reports": seen.reports,
        },
    )


def empty_mask_nan(run: Artifacts) -> Sighting | None:
    """A batch that masking leaves without a target, and a loss that is no number."""
    rows, log = run.rows, run.log
    if rows is None or log is None or not rows.mask_prompt:
        return None
    empty = rows.empty_batches
    losses = [log.main.get(name) for name in ("train_loss", "val_loss")]
    broken = any(one is not None and not np.isfinite(one.values).all() for one in losses)
    if not empty or not broken:
        return None
    first = rows.rows[empty[0][0]]
    return Sighting(
        Severity.ERROR,
        f"{len(empty)} of {len(rows.batches)} batches have no target with mask_prompt, and the "
        f"loss is no number: mlx-lm divides by the count of targets, zero here.",
        {"empty_batches": len(empty), "batches": len(rows.batches)},
        where=f"row {first.index + 1} of {rows.split}",
    )


def mask_prompt_header(run: Artifacts) -> Sighting | None:
    """The header of the answers in the log's count of trained tokens."""
    what = "those of the answers with their header, where the answers alone"
    return _with_header(run, header_counted, what, masked=True)


def generation_prompt_appended(run: Artifacts) -> Sighting | None:
    """What would open another answer after each row, in the log's count of trained tokens."""
    what = "those of the rows and of a generation prompt after each, where the rows"
    return _with_header(run, opening_counted, what, masked=False)


def _with_header(
    run: Artifacts,
    count: Callable[[SupervisedRows, TrainingLog, int], Counted | None],
    what: str,
    *,
    masked: bool,
) -> Sighting | None:
    rows, log = run.rows, run.log
    if rows is None or log is None or rows.mask_prompt is not masked:
        return None
    header = _header_tokens(run.tokenizer, rows)
    counted = count(rows, log, header) if header else None
    if counted is None:
        return None
    return Sighting(
        Severity.INFO,
        f"After {counted.iteration:,} iterations the log counts {counted.logged:,} trained "
        f"tokens: {what} have at most {counted.bounds_without[1]:,}.",
        {
            "iteration": counted.iteration,
            "trained_tokens": counted.logged,
            "header_tokens": header,
            "with_header": counted.bounds_with,
            "without": counted.bounds_without,
        },
    )


def _header_tokens(tokenizer: Tokenizer | None, rows: SupervisedRows) -> int:
    """Tokens that the template writes before an answer; 0 where there is none to ask."""
    if tokenizer is None or rows.format in ("text", "tokens"):
        return 0
    question = [{"role": "user", "content": "?"}]
    try:
        opened = tokenizer.apply_chat_template(question, add_generation_prompt=True)
        plain = tokenizer.apply_chat_template(question)
    except (TemplateFailure, InputError):
        return 0
    return max(len(opened) - len(plain), 0)
