"""Whether the log's count of trained tokens fits the data and the configured mask.

What it finds. Runs that trained on prompts although the configuration masks them, runs that
trained on padding, and runs whose count no way of counting the data explains.

Why it matters. The count is the only trace that a mask leaves in a log. A mask that was
configured but not applied, or one that forgot the padding, otherwise shows in nothing but the
model's behaviour.

How it is measured. From the rows as the tokenizer makes them, the expected count per iteration
is computed for every usual way of counting: the whole row or the answer only, with and without
mlx-lm's extra padding token, with and without what the template writes last, and with the
padding. The log's average must agree within four standard errors (of the batches that a part
of an epoch happens to draw, and of the rows examined) and the log's own rounding. If the configured
count does not fit, the counts that fit are reported, or that none fits. A count that is the same in
every report although rows differ in length is one of padding, where no row is longer.

When it is wrong. The data must be those of the run. Rows that are packed into blocks of one length
have a count that no usual way gives, which is no fault by itself.

What to do. Compare `mlxdoctor labels` with what the trainer's loss masks.
"""

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mlxdoctor.check import Inconclusive, NotApplicable, check
from mlxdoctor.engines.series import median
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.supervision import Role, SupervisedRow, SupervisedRows
from mlxdoctor.evidence.training_log import TrainingLog
from mlxdoctor.finding import Measurement, Sign, Symptom

# The tokens that are counted.
_WHOLE = "prompt and answer"
_ANSWER = "answer"
_PADDED = "padding"
_PADDED_ANSWER = "answer and padding"

#: Standard errors by which a count may differ (two-sided 6e-5 for a normal mean).
_DEVIATIONS = 4.0
#: Share of the count by which it may differ also: trainers drop rows at the end of an epoch.
_SLACK = 0.002
#: Share of the median count below which a report has lost a part of its iterations.
_LOST = 0.5
#: Fewest iterations of a report that is judged so: the count of fewer varies in sound runs.
_AVERAGED = 5
#: Fewest reports of the same count that are no coincidence.
_REPORTS = 5
#: Least standard deviation of the batches' counts, in tokens, for that.
_SPREAD = 1.0

_SOUND = "the count that the data and the configured mask give"
_error = partial(Symptom.error, expected=_SOUND)
_COUNT = "{tokens_per_iteration:.1f} tokens were trained on per iteration"

Floats = NDArray[np.float64]
#: Counted tokens -> the count of each examined batch, in each way of counting them.
Families = dict[str, tuple[Floats, ...]]


class _Logged(NamedTuple):
    """Tokens an iteration, their rounding error, iterations, and whether all counts are one."""

    per_iteration: float
    rounding: float
    iterations: float
    is_fixed: bool


@check(
    codes={
        "prompt-counted": _error(
            "prompts were trained on although the configuration masks them",
            fix="put the mask on the targets, from the first token of the answer",
            says=f"{_COUNT}: those of prompts and answers together, although mask_prompt is on.",
        ),
        "padding-counted": _error(
            "padding was trained on",
            fix="multiply the loss by a mask that ends with each row's last token",
            says=f"{_COUNT}, which is a padded size of the batches, although rows differ in "
            "length: the padding was trained on.",
        ),
        "unexplained": Symptom.info(
            "the count fits no configured way of counting these rows",
            _SOUND,
            "name the data the run was trained on with --data",
            says=f"{_COUNT}, and [only {{fits}} counted in batches of {{batch_size}} of these rows "
            "gives that|no usual way of counting batches of {batch_size} of these rows gives that"
            "]: the run used another mask, other data, another tokenizer or another trainer.",
        ),
    },
    rerun_symptom=True,
)
def trained_tokens(
    rows: SupervisedRows, log: TrainingLog, config: TrainingConfig
) -> Iterator[Sign]:
    if not config.describes_training:
        raise NotApplicable("the configuration does not say how the run was trained")
    if log.is_preference:
        raise NotApplicable("the run trained on preferences, which are counted otherwise")
    if rows.split != "train" or not rows.batches:
        raise Inconclusive("there is no whole batch of training rows")
    families = _families(rows)
    logged = _logged(log, max(rows.total_rows // rows.batch_size, 1))
    fitting = {
        family
        for family, counts in families.items()
        if any(_fits(logged, count, rows) for count in counts)
    }
    configured = _ANSWER if rows.mask_prompt and _ANSWER in families else _WHOLE
    code = _code_of(fitting, configured)
    answers = families.get(_ANSWER, families[_WHOLE])
    # Answers of one length are counted the same in every batch.
    is_fixed = (
        logged.is_fixed
        and min(float(families[_WHOLE][0].std()), float(answers[0].std())) >= _SPREAD
    )
    if is_fixed:
        # Packed blocks are longer than the longest row.
        longest = max(row.length for row in rows.rows) * rows.batch_size
        is_padded = answers[0].mean() < logged.per_iteration <= longest
        code = "padding-counted" if is_padded else code
    measured: dict[str, Measurement] = {
        "tokens_per_iteration": logged.per_iteration,
        "batch_size": rows.batch_size,
        "fits": " or ".join(sorted(fitting)) or None,
    }
    if code is not None:
        yield Sign(code, measured)


def _code_of(fitting: set[str], configured: str) -> str | None:
    """The symptom if these families fit; None if the configured one is among them."""
    if configured in fitting:
        return None
    if fitting and fitting <= {_PADDED, _PADDED_ANSWER}:
        return "padding-counted"
    if configured == _ANSWER and fitting and fitting <= {_WHOLE, _PADDED}:
        return "prompt-counted"
    if len(fitting) > 1:
        raise Inconclusive("the count fits several ways of counting, the configured one aside")
    return "unexplained"


def _logged(log: TrainingLog, batches: int) -> _Logged:
    """The log's count of trained tokens; `batches` are those of an epoch."""
    series = log.main.get("trained_tokens")
    if series is None:
        raise NotApplicable("the log does not count trained tokens")
    if log.main.axis != "iteration":
        raise NotApplicable("the log does not number its iterations")
    counts = series.finite
    tokens, iterations = np.diff(counts.values), np.diff(counts.iterations.astype(np.float64))
    if not len(tokens) or (iterations <= 0).any() or (tokens < 0).any():
        raise Inconclusive("the log has fewer than two counts of trained tokens in order")
    # mlx-lm's table abbreviates (133.8k); the last values have lost the most digits.
    units = (1e6, 1e5, 1e4, 1e3, 100.0, 10.0) if "table" in log.format else ()
    unit = next((unit for unit in units if not (counts.values[-5:] % unit).any()), 1.0)
    rates = tokens / iterations
    # Some trainers drop what they counted before a validation: those reports are too low.
    kept = (rates >= _LOST * median(rates)) | (iterations < _AVERAGED)
    total = float(iterations[kept].sum())
    is_same = kept.sum() >= _REPORTS and np.ptp(rates[kept]) == 0 and unit == 1.0
    # Reports of whole epochs count the same tokens in every run.
    is_fixed = bool(is_same and (iterations[kept] % batches).any())
    rounding = 0.0 if unit == 1.0 else float(unit / total)
    return _Logged(float(tokens[kept].sum()) / total, rounding, total, is_fixed)


def _families(rows: SupervisedRows) -> Families:
    """Tokens counted in each examined batch: float64 (batches,).

    The first way of a family is mlx-lm's, the next leaves out its padding token, and the next also
    what the template writes after the last end token.
    """
    batches = [[rows.rows[position] for position in batch] for batch in rows.batches]

    def per_batch(count: Callable[[SupervisedRow], int]) -> Floats:
        return np.array([sum(map(count, batch)) for batch in batches], dtype=np.float64)

    size = np.array([float(len(batch)) for batch in batches])
    prompts = per_batch(lambda row: min(row.prompt_length, row.length))
    tail = per_batch(lambda row: int((row.roles[: row.length] == Role.OTHER).sum()))
    whole = per_batch(lambda row: row.length - 1)
    answer = per_batch(lambda row: max(row.length - row.prompt_length, 0))
    # Padded to mlx-lm's width, and to the longest row.
    widths = (
        np.array([rows.width(batch) for batch in rows.batches]),
        np.array([max(row.length for row in batch) for batch in batches]),
    )
    families: Families = {
        _WHOLE: (per_batch(lambda row: row.count(0)), whole, whole - tail, whole - tail - size),
        _PADDED: tuple((width - 1) * size for width in widths),
    }
    if prompts.any():
        families[_PADDED_ANSWER] = tuple(width * size - prompts for width in widths)
        of_mlx_lm = per_batch(lambda row: row.count(row.prompt_length))
        families[_ANSWER] = (of_mlx_lm, answer, answer - tail)
    return families


def _fits(logged: _Logged, counts: Floats, rows: SupervisedRows) -> bool:
    """Whether the logged count agrees with the counts of the examined batches."""
    if logged.is_fixed and float(counts.std()) >= _SPREAD:
        return False
    total = max(len(counts), rows.total_rows // rows.batch_size)
    # Whole epochs count every batch; only the last, partial epoch is a random sample.
    of_run = math.sqrt(min(logged.iterations, total / 4)) / logged.iterations
    of_examined = math.sqrt((1 - len(counts) / total) / len(counts))
    allowed = _DEVIATIONS * float(counts.std()) * math.hypot(of_run, of_examined)
    allowed += logged.rounding + _SLACK * logged.per_iteration
    return abs(logged.per_iteration - float(counts.mean())) <= allowed
