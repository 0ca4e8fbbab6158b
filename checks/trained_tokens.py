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
of an epoch happens to draw, and of the rows examined) and the log's own rounding. Where the
configured count does not fit, it is reported what those that fit have in common, or that none
fits. A count
that is the same in every report although rows differ in length comes from rows of fixed width.

When it is wrong. The data must be those of the run. Packing several rows into blocks of one
length gives a fixed count too, and is not at fault by itself.

What to do. Compare `mlxdoctor labels` with what the trainer's loss masks.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mlxdoctor.check import Inconclusive, NotApplicable, check
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.supervision import Role, SupervisedRow, SupervisedRows
from mlxdoctor.evidence.training_log import TrainingLog
from mlxdoctor.finding import Measurement, Sign, Symptom

# Which tokens a way of counting takes in.
_WHOLE = "prompt and answer"
_ANSWER = "answer"
_PADDED = "padding"
_PADDED_ANSWER = "answer and padding"

#: Standard errors by which a count may differ (two-sided 6e-5 for a normal mean), and a share of
#: the count: rows that trainers drop at the end of an epoch.
_DEVIATIONS, _SLACK = 4.0, 0.002
#: A report of less than this share of the median one has lost a part of its iterations; looked at
#: in reports of at least so many iterations, over which the count of a sound run is steady.
_LOST, _AVERAGED = 0.5, 5
#: Reports that agree to the token where the counts of batches have at least this standard
#: deviation (tokens): no chance.
_REPORTS, _SPREAD = 5, 1.0

_SOUND = "the count that the data and the configured mask give"
_COUNT = "{tokens_per_iteration:.1f} tokens were trained on per iteration"

Floats = NDArray[np.float64]
#: Which tokens are taken in -> tokens of each examined batch, by each way of counting.
Families = dict[str, tuple[Floats, ...]]


@dataclass(frozen=True)
class _Logged:
    """The log's count: tokens an iteration, how exactly, and over how many iterations."""

    per_iteration: float
    rounding: float
    iterations: float
    is_fixed: bool


@check(
    codes={
        "prompt-counted": Symptom.error(
            "prompts were trained on although the configuration masks them",
            _SOUND,
            "put the mask on the targets, from the first token of the answer",
            says=f"{_COUNT}: those of prompts and answers together, although mask_prompt is on.",
        ),
        "padding-counted": Symptom.error(
            "padding was trained on",
            _SOUND,
            "multiply the loss by a mask that ends with each row's last token",
            says=f"{_COUNT}, which is a padded size of the batches, although rows differ in "
            "length: the padding was trained on.",
        ),
        "fixed-count": Symptom.warning(
            "every batch counts the same number of tokens: rows of fixed width",
            _SOUND,
            "mask the loss after each row's last token, and end every row with the end token",
            says=f"{_COUNT} in every report, {{tokens_per_row:g}} a row, although rows differ in "
            "length: they were packed into blocks, or padded, and end tokens that mlx-lm adds to "
            "a row may be missing between them.",
        ),
        "one-short": Symptom.warning(
            "one token a row fewer than the answers have is trained on",
            _SOUND,
            "print a row's inputs and targets: the targets are the tokens after the inputs, up to "
            "the end token",
            says=f"{_COUNT}, one a row fewer than the answers have: their end token is left out, "
            "or targets are shifted.",
        ),
        "packed-without-end": Symptom.warning(
            "rows of fixed width, and text that has no end token of its own",
            _SOUND,
            "end every text with the end token before rows are packed",
            says=f"None of the texts has an end token, and {_COUNT}: those are not mlx-lm's "
            "batches, and its end tokens may be missing too.",
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
    """Compare the log's trained tokens with the rows."""
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
    if not fitting and _ANSWER in families:
        is_short = _fits(logged, answers[-1] - rows.batch_size, rows)
        code = "one-short" if is_short else code
    is_fixed = logged.is_fixed and float(families[_WHOLE][0].std()) >= _SPREAD
    if is_fixed:
        # A block that no whole row of the data fits into is not a packed one.
        longest = max(row.length for row in rows.rows) * rows.batch_size
        is_padded = answers[0].mean() < logged.per_iteration <= longest
        code = "padding-counted" if is_padded or code == "padding-counted" else "fixed-count"
    expected = {
        f"expected_{family.replace(' ', '_')}": round(float(counts[0].mean()), 1)
        for family, counts in families.items()
    }
    measured: dict[str, Measurement] = {
        "tokens_per_iteration": logged.per_iteration,
        "iterations": logged.iterations,
        **expected,
        "tokens_per_row": logged.per_iteration / rows.batch_size,
        "batch_size": rows.batch_size,
        "fits": " or ".join(sorted(fitting)) or None,
    }
    if code is not None:
        yield Sign(code, measured)
    is_ended = any(np.isin(row.tokens[:-1], rows.eos_token_ids).any() for row in rows.rows)
    # The end token of a plain text is mlx-lm's addition; another trainer has to add its own.
    if is_fixed and rows.format == "text" and not is_ended:
        yield Sign("packed-without-end", measured)


def _code_of(fitting: set[str], configured: str) -> str | None:
    """What it means that these families fit; None where the configured one does."""
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
    """The log's count, beside rows that make so many batches an epoch."""
    series = log.main.get("trained_tokens")
    if series is None:
        raise NotApplicable("the log does not count trained tokens")
    if log.main.axis != "iteration":
        raise NotApplicable("the log does not number its iterations")
    counted = series.finite
    reported_at, values = counted.iterations.astype(np.float64), counted.values
    if len(reported_at) < 2 or (np.diff(reported_at) <= 0).any() or (np.diff(values) < 0).any():
        raise Inconclusive("the log has fewer than two counts of trained tokens in order")
    # mlx-lm's table abbreviates (133.8k); the last values have lost the most digits.
    units = (1e6, 1e5, 1e4, 1e3, 100.0, 10.0) if "table" in log.format else ()
    unit = next((unit for unit in units if not (values[-5:] % unit).any()), 1.0)
    tokens, iterations = np.diff(values), np.diff(reported_at)
    steps = tokens / iterations
    # Some trainers drop what they counted before a validation: those reports are too low.
    kept = (steps >= _LOST * np.median(steps)) | (iterations < _AVERAGED)
    span = float(iterations[kept].sum())
    is_same = kept.sum() >= _REPORTS and np.ptp(steps[kept]) == 0 and unit == 1.0
    # Reports of whole epochs count the same tokens in every run.
    is_fixed = bool(is_same and (iterations[kept] % batches).any())
    rounding = 0.0 if unit == 1.0 else float(unit / span)
    return _Logged(float(tokens[kept].sum()) / span, rounding, span, is_fixed)


def _families(rows: SupervisedRows) -> Families:
    """Tokens counted in each examined batch: float64 (batches,).

    mlx-lm's way comes first, then that without its padding token, and then that without what the
    template writes after the last end token.
    """
    batches = [[rows.rows[position] for position in batch] for batch in rows.batches]

    def over(count: Callable[[SupervisedRow], int]) -> Floats:
        return np.array([sum(map(count, batch)) for batch in batches], dtype=np.float64)

    size, prompts = over(lambda _: 1), over(lambda row: min(row.prompt_length, row.length))
    tail = over(lambda row: int((row.roles[: row.length] == Role.OTHER).sum()))
    whole = over(lambda row: row.length - 1)
    answer = over(lambda row: max(row.length - row.prompt_length, 0))
    # Padded to mlx-lm's width, and to the longest row.
    widths = (
        np.array([rows.width(batch) for batch in rows.batches]),
        np.array([max(row.length for row in batch) for batch in batches]),
    )
    whole_ways = (over(lambda row: row.count(0)), whole, whole - tail, whole - tail - size)
    families: Families = {
        _WHOLE: whole_ways,
        _PADDED: tuple((width - 1) * size for width in widths),
    }
    if prompts.any():
        families[_PADDED_ANSWER] = tuple(width * size - prompts for width in widths)
        as_mlx_lm = over(lambda row: row.count(row.prompt_length))
        families[_ANSWER] = (as_mlx_lm, answer, answer - tail)
    return families


def _fits(logged: _Logged, counts: Floats, rows: SupervisedRows) -> bool:
    total = max(len(counts), rows.total_rows // rows.batch_size)
    # Whole epochs count every batch; only the last, partial one leaves room for chance.
    drawn = math.sqrt(min(logged.iterations, total / 4)) / logged.iterations
    seen = math.sqrt((1 - len(counts) / total) / len(counts))
    allowed = _DEVIATIONS * float(counts.std()) * math.hypot(drawn, seen)
    allowed += logged.rounding + _SLACK * logged.per_iteration
    return abs(logged.per_iteration - float(counts.mean())) <= allowed
