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

What to do. Compare the report's label strip with what the trainer's loss masks.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mlxdoctor.check import Inconclusive, NotApplicable, check, limit
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.supervision import Role, SupervisedRow, SupervisedRows
from mlxdoctor.evidence.training_log import TrainingLog
from mlxdoctor.finding import Measurement, Sign, Symptom

# Which tokens a way of counting takes in.
_WHOLE = "prompt and answer"
_ANSWER = "answer"
_PADDED = "padding"
_PADDED_ANSWER = "answer and padding"

_SOUND = "the count that the data and the configured mask give"
_COUNT = "{tokens_per_iteration:.1f} tokens were trained on per iteration"

Floats = NDArray[np.float64]
Family = Mapping[str, Floats]


@dataclass(frozen=True)
class Limits:
    """How closely a count must agree."""

    deviations: float = limit(
        4.0, unit="standard errors", source="two-sided 6e-5 for a normal mean"
    )
    slack: float = limit(
        0.002, unit="share of the count", source="rows that trainers drop at the end of an epoch"
    )
    reports: int = limit(5, unit="reports", source="that agree to the token before it is no chance")
    lost: float = limit(
        0.5,
        unit="of the median report",
        source="a report that lost part of its window; sound ones differ by a few percent",
    )
    averaged: int = limit(5, unit="iterations", source="over which a report's count is steady")
    spread: float = limit(
        1.0, unit="tokens", source="standard deviation of a batch's count that chance must show"
    )


@dataclass(frozen=True)
class _Logged:
    """The log's count: tokens an iteration, how exactly, and over how many iterations."""

    per_iteration: float
    rounding: float
    iterations: float
    steps: Floats
    windows: Floats


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
    limits=Limits(),
    rerun_symptom=True,
)
def trained_tokens(
    rows: SupervisedRows, log: TrainingLog, config: TrainingConfig, limits: Limits
) -> Iterator[Sign]:
    """Compare the log's trained tokens with the rows."""
    if not config.describes_training:
        raise NotApplicable("the configuration does not say how the run was trained")
    if log.is_preference:
        raise NotApplicable("the run trained on preferences, which are counted otherwise")
    if rows.split != "train" or not rows.batches:
        raise Inconclusive("there is no whole batch of training rows")
    logged = _logged(log, limits)
    families = _families(rows)
    fitting = {
        family
        for family, counts in families.items()
        if any(_fits(logged, count, rows, limits) for count in counts.values())
    }
    configured = _ANSWER if rows.mask_prompt and _ANSWER in families else _WHOLE
    code = _told_by(fitting, configured)
    short = families.get(_ANSWER, {}).get("without the template's end")
    is_short = short is not None and _fits(logged, short - rows.batch_size, rows, limits)
    if code == "unexplained" and not fitting and is_short:
        code = "one-short"
    measured = _measured(logged, families)
    measured["tokens_per_row"] = logged.per_iteration / rows.batch_size
    measured["batch_size"] = rows.batch_size
    measured["fits"] = " or ".join(sorted(fitting)) or None
    is_fixed = _is_fixed(logged, rows, families, limits)
    if is_fixed:
        # A block that no whole row of the data fits into is not a packed one.
        longest = max(row.length for row in rows.rows)
        answers = float(families.get(_ANSWER, families[_WHOLE])["as mlx-lm"].mean())
        is_padded = answers < logged.per_iteration <= longest * rows.batch_size
        is_padded = is_padded or (code == "padding-counted" and configured not in fitting)
        code = "padding-counted" if is_padded else "fixed-count"
    if code is not None:
        yield Sign(code, measured)
    ends = rows.eos_token_ids
    is_ended = any(np.isin(row.tokens[:-1], ends).any() for row in rows.rows)
    # The end token of a plain text is mlx-lm's addition; another trainer has to add its own.
    if is_fixed and rows.format == "text" and not is_ended:
        yield Sign("packed-without-end", measured)


def _told_by(fitting: set[str], configured: str) -> str | None:
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


def _logged(log: TrainingLog, limits: Limits) -> _Logged:
    segment = log.main
    series = segment.get("trained_tokens")
    if series is None:
        raise NotApplicable("the log does not count trained tokens")
    if segment.axis != "iteration":
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
    kept = (steps >= limits.lost * np.median(steps)) | (iterations < limits.averaged)
    span = float(iterations[kept].sum())
    return _Logged(
        per_iteration=float(tokens[kept].sum()) / span,
        rounding=0.0 if unit == 1.0 else float(unit / span),
        iterations=span,
        steps=steps[kept],
        windows=iterations[kept],
    )


def _families(rows: SupervisedRows) -> dict[str, dict[str, Floats]]:
    """Tokens counted in each examined batch, by family and way of counting: float64 (batches,)."""
    batches = [[rows.rows[position] for position in batch] for batch in rows.batches]

    def over(count: Callable[[SupervisedRow], int]) -> Floats:
        return np.array([sum(map(count, batch)) for batch in batches], dtype=np.float64)

    size, prompts = over(lambda _: 1), over(lambda row: min(row.prompt_length, row.length))
    tail = over(lambda row: int((row.roles[: row.length] == Role.OTHER).sum()))
    whole = over(lambda row: row.length - 1)
    answer = over(lambda row: max(row.length - row.prompt_length, 0))
    widths = {
        "to mlx-lm's width": np.array([rows.width(batch) for batch in rows.batches]),
        "to the longest row": np.array([max(row.length for row in batch) for batch in batches]),
    }
    families = {
        _WHOLE: {
            "as mlx-lm": over(lambda row: row.count(0)),
            "without a padding token": whole,
            "without the template's end": whole - tail,
            "one token short": whole - tail - size,
        },
        _PADDED: {name: (width - 1) * size for name, width in widths.items()},
    }
    if prompts.any():
        families[_PADDED_ANSWER] = {name: width * size - prompts for name, width in widths.items()}
        families[_ANSWER] = {
            "as mlx-lm": over(lambda row: row.count(row.prompt_length)),
            "without a padding token": answer,
            "without the template's end": answer - tail,
        }
    return families


def _fits(logged: _Logged, counts: Floats, rows: SupervisedRows, limits: Limits) -> bool:
    total = max(len(counts), rows.total_rows // rows.batch_size)
    spread = float(counts.std())
    # Whole epochs count every batch; only the last, partial one leaves room for chance.
    drawn = math.sqrt(min(logged.iterations, total / 4)) / logged.iterations
    seen = math.sqrt((1 - len(counts) / total) / len(counts))
    allowed = limits.deviations * spread * math.hypot(drawn, seen)
    allowed += logged.rounding + limits.slack * logged.per_iteration
    return abs(logged.per_iteration - float(counts.mean())) <= allowed


def _is_fixed(
    logged: _Logged, rows: SupervisedRows, families: Mapping[str, Family], limits: Limits
) -> bool:
    batches = max(rows.total_rows // rows.batch_size, 1)
    if (logged.windows % batches == 0).all():
        # Each report covers whole epochs, and an epoch always has the same tokens.
        return False
    varies = families[_WHOLE]["as mlx-lm"].std() >= limits.spread
    same = len(logged.steps) >= limits.reports and np.ptp(logged.steps) == 0
    return bool(varies and same and logged.rounding == 0)


def _measured(logged: _Logged, families: Mapping[str, Family]) -> dict[str, Measurement]:
    means = {
        f"expected_{family.replace(' ', '_')}": counts["as mlx-lm"].mean()
        for family, counts in families.items()
        if "as mlx-lm" in counts
    }
    means["expected_padding"] = families[_PADDED]["to mlx-lm's width"].mean()
    return {
        "tokens_per_iteration": logged.per_iteration,
        "iterations": logged.iterations,
        **{name: round(float(mean), 1) for name, mean in means.items()},
    }
