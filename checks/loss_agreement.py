"""The losses in the log against those of the models on disk.

What it finds. A tuned model that is worse, on the run's own rows, than the log says it was when
it was saved; a base model that is not the one the log begins with; and losses that are only
reproduced when the rows are read in another way: without the chat template, with the prompt in
the loss, or with targets at another distance.

Why it matters. A log is about the model in memory. What was saved, fused or loaded may be
something else: half an adapter, an adapter on another base, weights rounded away. The loss on
the same rows is the same figure, to the third decimal, if nothing was lost on the way.

How it is measured. Both models read the validation rows as mlx-lm does, and their losses, a mean
over targets, are compared with the first and the last validation loss of the log; without those,
rows trained on with the last training losses. The tolerance is the sampling error of the rows
that were not measured or not validated, and how far the loss moved from the last report to the
save. Where they disagree, more rows are read; then other masks, shifts and usual plain formats of
prompt and answer are tried: one that makes both losses agree is how the rows were really read.

When it is wrong. Rows that were edited since, or a template that writes today's date, change the
base model's loss as well: then only what is lost beyond doubt is called an error. Rows of over
1,024 tokens are measured in part and not judged.

What to do. Evaluate the saved adapter on the base that it was trained on with `mlx_lm.lora --test`.
If the loss is the log's, the model is used in another way than it was trained.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product, starmap
from typing import get_args

from mlxdoctor.check import Inconclusive, NotApplicable, check
from mlxdoctor.evidence.adapter import Adapter
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.supervision import SupervisedRows
from mlxdoctor.evidence.training_log import TrainingLog
from mlxdoctor.finding import Measurement, Seen, Severity, Sign, Symptom, Unsought
from mlxdoctor.judge.learned import ENOUGH_ROWS, change, mean_of
from mlxdoctor.measure.logged_levels import LoggedLoss, logged_loss
from mlxdoctor.models.load import Which
from mlxdoctor.models.losses import RowLosses, TokenLosses
from mlxdoctor.models.readings import (
    ALL_ENDS,
    WITHOUT_ENDS,
    MeanLoss,
    Reading,
    mean_loss,
    usual_readings,
)
from mlxdoctor.models.validation import PlainFormat, ValidationRows

SHIFT_NAMES = {
    0: "the token just given",
    2: "the token after the next",
    3: "the third token ahead",
}
#: Rows that are measured where a few disagree, and those with which formats are left out.
CLOSER, SCREENED = 64, 6
_AS_CONFIGURED = "the losses of the targets that the configuration asks for"
_CHECKPOINT = re.compile(r"(?:^|[_-])0*(\d+)_adapters\.")


#: Nats by which equal losses differ: rounding in half precision and in the log is below, 0.005 at
#: most in sound runs (0 of 96 of three base models).
SAME = 0.02
#: Standard errors of rows that are a sample; losses have long tails: 18 of 11,280 samples of 16
#: rows from sound runs lie further off, of which `SHARE` leaves 2.
ERRORS = 4.0
#: Of a disagreement, what the right reading leaves at most: it leaves 1%, a wrong one at best 6%.
EXPLAINED = 0.03
#: Share of a row's targets by which the rows of two splits do not differ.
OTHER_TOKENS = 0.15
#: Nats beyond the tolerance that are certain, a perplexity up by a third: 1.3 to 5.2 where half of
#: an adapter is lost, in 0 of 96 healthy runs of three base models.
FAR = 0.3
#: Of the logged loss, more than any conversion of weights loses.
SHARE = 0.1
#: Of what was learned, what is lost where the rows may be others.
LOST = 0.5
#: Nats by which the end token's loss rose: 1.4 where it was left out of the loss, none in 4 sound
#: runs of the fixtures.
END_ROSE = 0.1


_THOSE = (
    "The log's losses, {logged_before:.3f} before and {logged_after:.3f} after training, are those "
)
_VALUES = "({other_base_loss:.3f} and {other_tuned_loss:.3f})"
_USUAL = "{base_loss:.3f} and {tuned_loss:.3f}"


@check(
    codes={
        "worse-than-logged": Symptom.error(
            "the tuned model is worse on the run's rows than the log says",
            says="The tuned model's loss is {tuned_loss:.3f} on the rows on which the log has "
            "{logged_after:.3f} at {when}: what is on disk is not what was trained.",
            expected="{logged_after:.3f}, give or take {tolerance:.3f}",
            fix="Compare the file's tensors with the configuration (`mlxdoctor inspect`); where "
            "the model was fused, use base and adapter, or fuse with more bits.",
        ),
        "base-differs": Symptom.warning(
            "the base model's loss is not the one the log begins with",
            says="Before the first update the log has a loss of {logged_before:.3f}; the base "
            "model has {base_loss:.3f} on the same rows: the run began with other weights, "
            "another tokenizer, or other rows.",
            expected="{logged_before:.3f}, give or take {base_tolerance:.3f}",
            fix="Check which base model the run was started with, and name it with --base.",
        ),
        "agrees-with-prompt": Symptom.warning(
            "the log's losses are those with the prompt in the loss",
            says=f"{_THOSE}of prompt and answer {_VALUES}; as configured they would be {_USUAL}.",
            expected=_AS_CONFIGURED,
            fix="Build the mask so that the first target is the first token of the answer.",
        ),
        "agrees-without-end": Symptom.warning(
            "the log's losses are those without the end tokens",
            says=f"{_THOSE}of rows without their end token {_VALUES}; with it they would be "
            f"{_USUAL}.",
            expected="the end token after every answer",
            fix="Put the end token at the end of every row, and do not mask it.",
        ),
        "agrees-at-another-shift": Symptom.error(
            "the log's losses are those of other targets than the next",
            says=f"{_THOSE}of predicting {{what}} {_VALUES}; for the next token both models have "
            f"{_USUAL}.",
            expected="the losses of the next token",
            fix="Make targets[i] the token after inputs[i], shifted exactly once.",
        ),
        "agrees-in-another-format": Symptom.error(
            "the log's losses are those of rows in another prompt format",
            says=f"{_THOSE}of rows written as `{{format}}` {_VALUES}. With the chat template, in "
            f"which the model is asked, both models have {_USUAL}: it was trained on another "
            "format than it is used in.",
            expected="one prompt format in training and in use",
            fix="Train on rows rendered with the chat template, or ask without it.",
        ),
    },
    rerun_symptom=True,
)
def loss_agreement(
    log: TrainingLog,
    losses: TokenLosses,
    *,
    validation: ValidationRows | None,
    trained: SupervisedRows | None,
    config: TrainingConfig | None,
    adapter: Adapter | None,
) -> Iterator[Sign | Seen | Unsought]:
    """Compute the log's first and last losses again, and explain a difference."""
    logged = _logged(log, config, adapter)
    if logged.split == "train":
        validation = None
    sample = _first_sample(losses, validation, trained, logged, config)
    if not any(row.prompt_length for row in sample.rows):
        why = "rows of text are trained on in the format in which they stand"
        yield Unsought(("agrees-in-another-format",), why)
    usual = usual_readings(config)
    fit = min(sample.fits(usual), key=lambda fit: fit.from_base)
    if not fit.agrees and validation is not None and len(sample.rows) < sample.total:
        # Few rows differ by chance.
        sample = replace(sample, rows=validation.measure(None, min(CLOSER, sample.total)))
        fit = min(sample.fits(usual), key=lambda fit: fit.from_base)
    can_load = losses.load_failure is None
    if can_load and not math.isfinite(fit.tuned.value):
        raise Inconclusive("the tuned model's losses are not finite")
    measured = _figures(logged, fit)
    if fit.agrees:
        if not can_load:
            raise Inconclusive("the adapter could not be loaded on this base model")
        yield Seen(
            "Computed again from the files, the loss is {tuned_loss:.3f}; the log has "
            "{logged_after:.3f} at {when}.",
            measured,
        )
        return
    explanation = _explanation(sample, validation, fit) if fit.is_complete else None
    if explanation is not None:
        yield _explained(sample.rows, fit, explanation, measured)
        return
    if not (fit.base.agrees and fit.base.is_known):
        _require_same_targets(sample, log, config)
    yield from _disagreement(logged, fit, measured)


@dataclass(frozen=True)
class _Beside:
    """One model's loss, and how far it lies above the logged one, nats.

    NaN where one of them is not known. `tolerance` is how far they may lie apart.
    """

    value: float
    off: float
    tolerance: float

    @property
    def is_known(self) -> bool:
        return math.isfinite(self.off)

    @property
    def agrees(self) -> bool:
        """Whether it is the logged one, or one of them is not known."""
        return not abs(self.off) > self.tolerance


@dataclass(frozen=True)
class _Fit:
    """Both models' losses on so many rows under one reading, beside the logged ones."""

    reading: Reading
    rows: int
    base: _Beside
    tuned: _Beside

    @property
    def is_complete(self) -> bool:
        """Whether both losses are known, here and in the log."""
        return self.base.is_known and self.tuned.is_known

    @property
    def agrees(self) -> bool:
        """Whether every loss that is known is the logged one."""
        return self.base.agrees and self.tuned.agrees

    @property
    def misfit(self) -> float:
        """The larger of the two differences, nats."""
        offs = [abs(beside.off) for beside in (self.base, self.tuned) if beside.is_known]
        return max(offs, default=math.inf)

    @property
    def from_base(self) -> tuple[float, float]:
        """How far the base's loss is off, which does not depend on what was saved; the misfit."""
        return abs(self.base.off) if self.base.is_known else math.inf, self.misfit

    def explains(self, usual: _Fit) -> bool:
        """Whether this reading leaves next to nothing of a disagreement."""
        agrees = self.agrees and 3 * self.misfit <= usual.misfit
        return self.is_complete and (agrees or self.misfit <= EXPLAINED * usual.misfit)


@dataclass(frozen=True)
class _Sample:
    """Rows that were measured.

    Attributes:
        logged: the losses they are compared with.
        rows: both models' losses on them.
        total: rows that they were chosen from.
        seen: how many of those the logged losses are over.
    """

    logged: LoggedLoss
    rows: tuple[RowLosses, ...]
    total: int
    seen: int

    def fits(self, readings: Iterable[Reading]) -> Sequence[_Fit]:
        """Both models' losses under each reading; only the first under which both agree."""
        fits = [self._fit(reading) for reading in readings]
        return [fit for fit in fits if fit.agrees][:1] or fits

    def _fit(self, reading: Reading) -> _Fit:
        base, tuned = (mean_loss(self.rows, which, reading) for which in get_args(Which))

        def beside(mean: MeanLoss, logged: float | None, drift: float = 0.0) -> _Beside:
            error = mean.uncertainty(self.total, self.seen) if mean.rows else math.inf
            off = math.nan if logged is None else mean.value - logged
            return _Beside(mean.value, off, max(SAME, ERRORS * error) + drift)

        before = beside(base, self.logged.before)
        after = beside(tuned, self.logged.after, self.logged.drift)
        return _Fit(reading, tuned.rows or base.rows, before, after)


def _logged(log: TrainingLog, config: TrainingConfig | None, adapter: Adapter | None) -> LoggedLoss:
    if log.is_preference:
        raise NotApplicable("the loss of preference training is not that of a language model")
    checkpoint = _CHECKPOINT.search(adapter.path.name) if adapter is not None else None
    saved = int(checkpoint[1]) if checkpoint is not None else None
    logged = logged_loss(log, saved, config.iters if config is not None else None)
    if logged is None:
        raise Inconclusive("the log has no finite loss from after the first update")
    if config is not None and config.resume_adapter_file is not None:
        return replace(logged, before=None)
    return logged


def _first_sample(
    losses: TokenLosses,
    validation: ValidationRows | None,
    trained: SupervisedRows | None,
    logged: LoggedLoss,
    config: TrainingConfig | None,
) -> _Sample:
    """The rows that are measured anyway; all that were validated on, where that costs little.

    Raises:
        Inconclusive: they are too few, or too long.
    """
    rows = losses.split(logged.split)
    if validation is None:
        total = seen = trained.total_rows if trained is not None else len(rows)
    else:
        total = seen = validation.total
        if config is not None and config.val_batches is not None and config.val_batches >= 0:
            seen = min(config.val_batches * (config.batch_size or 1), total)
        if len(rows) < total <= validation.affordable:
            rows = validation.measure(None, total)
    if len(rows) < ENOUGH_ROWS:
        raise Inconclusive(f"{len(rows)} rows are too few to decide")
    if sum(not row.is_whole for row in rows) * 10 > len(rows):
        raise Inconclusive("rows too long to be measured whole")
    return _Sample(logged, rows, total, seen)


#: A reading that makes both losses those of the log, and how its rows were written.
Explanation = tuple[_Fit, PlainFormat | None]


def _explanation(
    sample: _Sample, validation: ValidationRows | None, usual: _Fit
) -> Explanation | None:
    """The reading that makes both losses those of the log, if there is one.

    Args:
        sample: rows, and the logged losses.
        validation: to write the rows in other formats; None where there are none.
        usual: the fit that disagrees.
    """
    masks = (usual.reading.masks_prompt, not usual.reading.masks_prompt)
    others = product((1, *SHIFT_NAMES), masks, ALL_ENDS)
    fits = sample.fits(Reading(masked, until, shift) for shift, masked, until in others)
    best = min(fits, key=lambda fit: fit.misfit)
    if best.explains(usual):
        return best, None
    if validation is None:
        return None

    def read(plain: PlainFormat, count: int) -> _Fit | None:
        rows = validation.measure(plain, count)
        if len(rows) < min(count, SCREENED):
            return None
        fits = replace(sample, rows=rows).fits(starmap(Reading, product((False, True), ALL_ENDS)))
        return min(fits, key=lambda fit: fit.misfit)

    # In another format the base model's loss is another, too. Without its end token a row's
    # is hardly: the base expects it less than the rest, or more, and it is one of many.
    formats = [
        plain for plain in validation.formats if plain.pattern is None or not usual.base.agrees
    ]
    screened = [
        (fit.misfit, str(plain), plain) for plain in formats if (fit := read(plain, SCREENED))
    ]
    for _, _, plain in sorted(screened, key=lambda tried: tried[:2])[:3]:
        written = read(plain, len(sample.rows))
        if written is not None and written.explains(usual):
            return written, plain
    return None


def _explained(
    rows: Sequence[RowLosses],
    usual: _Fit,
    explanation: Explanation,
    measured: dict[str, Measurement],
) -> Sign | Seen:
    """What the reading that makes both losses those of the log says of the trainer."""
    other, plain = explanation
    reading = other.reading
    figures: dict[str, Measurement] = {
        **measured,
        "other_base_loss": round(other.base.value, 4),
        "other_tuned_loss": round(other.tuned.value, 4),
    }
    if plain is not None and plain.pattern is not None:
        is_worse = usual.tuned.off > FAR + usual.tuned.tolerance
        severity = None if is_worse else Severity.WARNING
        figures["format"] = str(plain)
        return Sign("agrees-in-another-format", figures, severity=severity)
    if plain is None and reading.shift != 1:
        figures |= {"shift": reading.shift, "what": SHIFT_NAMES[reading.shift]}
        return Sign("agrees-at-another-shift", figures)
    if plain is not None or reading.until in WITHOUT_ENDS:
        after = change(rows, lambda losses: losses.end_after_answer)
        figures |= {"end_base_loss": mean_of(after.base), "end_tuned_loss": mean_of(after.tuned)}
        # Trained on, the end token becomes likelier.
        severity = Severity.ERROR if after.gain < -END_ROSE else None
        return Sign("agrees-without-end", figures, severity=severity)
    if not reading.masks_prompt:
        return Sign("agrees-with-prompt", figures)
    return Seen(f"{_THOSE}of the answers alone {_VALUES}.", figures)


def _require_same_targets(sample: _Sample, log: TrainingLog, config: TrainingConfig | None) -> None:
    """Where the base model's loss is not the log's, the log may be over other targets.

    Raises:
        Inconclusive: it counted more or fewer than the rows have, with the prompt or without, or
            some of a masked prompt in the loss would account for its first one.
    """
    means = [mean_loss(sample.rows, "base", Reading(masked)) for masked in (True, False)]
    series, size = log.main.get("trained_tokens"), config.batch_size if config is not None else None
    steps = int(series.iterations[-1]) if series is not None and len(series) else 0
    if series is not None and size and steps > 0 and log.main.axis in ("iteration", "step"):
        counted = float(series.values[-1]) / (steps * size)
        targets = [mean.tokens / mean.rows for mean in means if mean.rows]
        if all(abs(counted - each) > OTHER_TOKENS * each for each in targets):
            raise Inconclusive("the log's loss is over more tokens, or fewer, than the rows have")
    before = sample.logged.before
    if config is None or not config.mask_prompt or before is None:
        return
    low, high = sorted(mean.value for mean in means)
    if low < before < high:
        raise Inconclusive("the log begins between the losses with and without the prompt")


def _disagreement(
    logged: LoggedLoss, fit: _Fit, measured: dict[str, Measurement]
) -> Iterator[Sign]:
    off, tolerance = fit.tuned.off, fit.tuned.tolerance
    # Where the tuned model is as good as logged, this is its base, whatever the log began with.
    differs = not fit.base.agrees and not off <= tolerance
    if differs:
        yield Sign("base-differs", measured)
    if not abs(off) > max(tolerance, SHARE * logged.after):
        return
    if off < 0:
        raise Inconclusive("the log's losses are over other targets than these rows have")
    before = fit.base.value if logged.before is None else logged.before
    is_lost = off > LOST * (before - logged.after)
    knows_base = logged.before is not None and not differs
    is_certain = off > tolerance + FAR and (is_lost or knows_base)
    yield Sign("worse-than-logged", measured, severity=None if is_certain else Severity.WARNING)


def _figures(logged: LoggedLoss, fit: _Fit) -> dict[str, Measurement]:
    figures = {
        "base_loss": fit.base.value,
        "tuned_loss": fit.tuned.value,
        "base_tolerance": fit.base.tolerance,
        "tolerance": fit.tuned.tolerance,
    }
    known = {name: round(value, 4) for name, value in figures.items() if math.isfinite(value)}
    return {
        "split": logged.split,
        "when": logged.when,
        "rows": fit.rows,
        "logged_before": logged.before,
        "logged_after": logged.after,
        **dict.fromkeys(figures),
        **known,
    }
