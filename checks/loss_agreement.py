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
save. Where the time suffices, the very rows of those two validations are read: which they were
follows from the run's seed, and that it is so is seen by the base model's loss, which is then the
log's first one to the last digit. Where they disagree, other masks, shifts and usual plain
formats of prompt and answer are tried: one that makes both losses agree is how the rows were
really read. An adapter with a worse loss is tried at half its scale, and at up to four times it:
where none comes half as near to the log, no adapter of that file had that loss.

When it is wrong. Rows that were edited since, or a template that writes today's date, change the
base model's loss as well: then only what is lost beyond doubt is called an error. Rows of over
1,024 tokens are measured in part and not judged.

What to do. Evaluate the saved adapter on the base that it was trained on with `mlx_lm.lora --test`.
If the loss is the log's, the model is used in another way than it was trained.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

from mlxdoctor.check import Cost, Inconclusive, NotApplicable, check, limit
from mlxdoctor.evidence.adapter import Adapter
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.supervision import SupervisedRows
from mlxdoctor.evidence.training_log import TrainingLog
from mlxdoctor.finding import Measurement, Seen, Severity, Sign, Symptom, Unsought
from mlxdoctor.measure.losses.fit import (
    USUAL_ENDS,
    Fit,
    Sample,
    anchored_fit,
    counted_tokens,
    exact_fit,
    first_look,
    fits,
    is_between,
    masks_that_count,
    saved_at,
    usual_readings,
)
from mlxdoctor.measure.losses.logged_levels import LoggedLoss, logged_loss
from mlxdoctor.measure.losses.other_readings import (
    WITHOUT_ENDS,
    OtherReading,
    ReadingLimits,
    other_reading,
)
from mlxdoctor.measure.losses.row_changes import change, mean_of
from mlxdoctor.measure.weights.lora_targets import by_mlx_lm
from mlxdoctor.models.adapter_scales import AdapterScales
from mlxdoctor.models.losses import TokenLosses
from mlxdoctor.models.readings import Reading, mean_loss
from mlxdoctor.models.validation import ValidationRows

#: Times its scale at which an adapter is tried whose loss is not the log's.
FACTORS = (0.5, 1.5, 2.0, 4.0)
SHIFT_NAMES = {
    0: "the token just given",
    2: "the token after the next",
    3: "the third token ahead",
    -1: "the token before the one just given",
}
_AS_CONFIGURED = "the losses of the targets that the configuration asks for"


@dataclass(frozen=True)
class Limits(ReadingLimits):
    """When two losses are the same, and when the difference is certain."""

    far: float = limit(
        0.3,
        unit="nats beyond the tolerance",
        source="a perplexity up by a third; 1.3 to 5.2 where half of an adapter is lost",
        false_alarms="0 of 96 healthy runs of three base models",
    )
    exactly: float = limit(
        0.005,
        unit="nats, of the base model on the very rows that were validated on",
        source="0.0007 at most in seven runs of the fixtures, 0.003 in six of 135 million "
        "parameters in bfloat16; another base or other rows: 0.012 and 0.387",
        false_alarms="0 of 13 runs on their own base",
    )
    exactly_far: float = limit(
        0.1,
        unit="nats beyond the tolerance, on those rows",
        source="what was lost is told from what the last update changed",
        false_alarms="0 of 6 sound runs of the fixtures' base: 0.001 at most",
    )
    share: float = limit(
        0.1, unit="of the logged loss", source="less is lost in any conversion of weights"
    )
    lost: float = limit(
        0.5, unit="of what was learned", source="where the rows may be others: half is lost"
    )
    end_worse: float = limit(
        0.1,
        unit="nats by which the end token's loss rose",
        source="1.4 where it was left out of the loss; none in sound runs",
        false_alarms="0 of 4 sound runs of the fixtures",
    )
    rows: int = limit(8, unit="rows", source="as learned-targets")
    closer: int = limit(64, unit="rows", source="measured where a few rows disagree")
    scaled: int = limit(8, unit="rows", source="read again at every other scale")


@check(
    codes={
        "worse-than-logged": Symptom.error(
            "the tuned model is worse on the run's rows than the log says",
            fix="Compare the file's tensors with the configuration (`mlxdoctor inspect`); where "
            "the model was fused, use base and adapter, or fuse with more bits.",
        ),
        "beyond-the-adapter": Symptom.error(
            "the log's loss is out of reach of the adapter at any strength",
            expected="the log's loss, at the scale that the adapter was trained with",
            fix="See that every weight but the adapter's was frozen while it trained: what they "
            "learned was not saved.",
        ),
        "better-than-logged": Symptom.info(
            "the tuned model is better on the run's rows than the log says"
        ),
        "base-differs": Symptom.warning(
            "the base model's loss is not the one the log begins with",
            fix="Check which base model the run was started with, and name it with --base.",
        ),
        "agrees-with-prompt": Symptom.warning(
            "the log's losses are those with the prompt in the loss",
            _AS_CONFIGURED,
            "Build the mask so that the first target is the first token of the answer.",
        ),
        "agrees-without-prompt": Symptom.info(
            "the log's losses are those with the prompt masked",
            _AS_CONFIGURED,
            "Set mask_prompt to what the trainer does.",
        ),
        "agrees-without-end": Symptom.warning(
            "the log's losses are those without the end tokens",
            _AS_CONFIGURED,
            "Put the end token at the end of every row, and do not mask it.",
        ),
        "agrees-at-another-shift": Symptom.error(
            "the log's losses are those of other targets than the next",
            "the losses of the next token",
            "Make targets[i] the token after inputs[i], shifted exactly once.",
        ),
        "agrees-in-another-format": Symptom.error(
            "the log's losses are those of rows in another prompt format",
            "one prompt format in training and in use",
            "Train on rows rendered with the chat template, or ask without it.",
        ),
    },
    cost=Cost.FORWARD,
    limits=Limits(),
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
    scales: AdapterScales | None,
    limits: Limits,
) -> Iterator[Sign | Seen | Unsought]:
    """Compute the log's first and last losses again, and explain a difference."""
    logged = _logged(log, config, saved_at(adapter))
    sample = first_look(losses, validation, trained, logged, config)
    _require_enough(sample, limits)
    if not any(row.prompt_length for row in sample.rows):
        why = "rows of text are trained on in the format in which they stand"
        yield Unsought(("agrees-in-another-format",), why)
    usual = usual_readings(config)
    sample, found = _fitted(sample, validation, usual, limits)
    _require_finite(found, losses)
    exact = None
    if found.base_agrees and losses.load_failure is None:
        exact = exact_fit(validation, logged, usual, limits.exactly)
    if exact is not None and not exact.base_agrees:
        if by_mlx_lm(config) and abs(exact.base_off) > limits.exactly_far:
            yield _another_base(sample, exact)
            return
    elif exact is not None and exact.is_complete:
        # Nothing is left to the chance of a sample, so that less says as much.
        found, limits = exact, replace(limits, far=limits.exactly_far)
    if found.agrees:
        if losses.load_failure is not None:
            raise Inconclusive("the adapter could not be loaded on this base model")
        yield Seen(
            f"Computed again from the files, the loss is {found.tuned.value:.3f}; the log has "
            f"{logged.after:.3f} at {logged.when}.",
            _measured(sample, found),
        )
        return
    counted = counted_tokens(log, config)
    if (other := other_reading(sample, validation, found, counted, limits)) is not None:
        yield _explained(sample, found, other, limits)
        return
    if not (found.base_agrees and math.isfinite(found.base_off)):
        masks = None
        if counted is not None and trained is not None:
            masks = masks_that_count(counted, trained, limits.other_tokens)
        found = _as_counted(sample, usual, masks, limits)
        if config is not None and config.mask_prompt and is_between(sample):
            raise Inconclusive("the log begins between the losses with and without the prompt")
    signs = list(_disagreement(sample, found, limits))
    yield from signs
    is_worse = any(
        one.symptom == "worse-than-logged" and one.severity is not Severity.WARNING for one in signs
    )
    if is_worse and found.base_agrees:
        yield from _beyond(sample, found, scales, limits)


def _fitted(
    sample: Sample, validation: ValidationRows | None, usual: list[Reading], limits: Limits
) -> tuple[Sample, Fit]:
    """The reading that fits best; where none does, of more rows."""
    found = anchored_fit(fits(sample, usual, limits.same, limits.errors))
    few = sample.logged.split == "valid" and len(sample.rows) < sample.total
    if found.agrees or validation is None or not few:
        return sample, found
    rows = validation.measure(None, min(limits.closer, sample.total))
    closer = replace(sample, rows=rows)
    return closer, anchored_fit(fits(closer, usual, limits.same, limits.errors))


def _beyond(
    sample: Sample, found: Fit, scales: AdapterScales | None, limits: Limits
) -> Iterator[Sign | Unsought]:
    """Whether the adapter, made stronger or weaker, has the log's loss."""
    if scales is None:
        yield Unsought(("beyond-the-adapter",), "there is no adapter whose scale could be tried")
        return
    rows = scales.rows(sample.logged.split)[: limits.scaled]
    as_saved = mean_loss(rows, "tuned", found.reading).value
    tried = {
        factor: mean_loss(scales.measure(rows, factor), "tuned", found.reading).value
        for factor in FACTORS
    }
    finite = {factor: loss for factor, loss in tried.items() if math.isfinite(loss)}
    base = mean_loss(rows, "base", found.reading).value
    if not finite or max(abs(loss - base) for loss in finite.values()) < limits.same:
        yield Unsought(("beyond-the-adapter",), "the adapter changes nothing at any scale")
        return
    best = min(finite, key=lambda factor: finite[factor])
    missing = found.tuned_off - (as_saved - finite[best])
    if missing <= found.tuned_tolerance + limits.far or missing <= limits.lost * found.tuned_off:
        return
    yield Sign(
        "beyond-the-adapter",
        f"The adapter does not reach the log's loss at any scale: on {len(rows)} rows it has "
        f"{as_saved:.3f} as it was saved, {finite[best]:.3f} at {best:g} times its scale, and "
        f"more at others; {as_saved - found.tuned_off:.3f} would be the log's "
        f"{sample.logged.after:.3f}. What has that loss are other weights, which this file does "
        "not hold.",
        {
            "rows": len(rows),
            "as_saved": round(as_saved, 4),
            "best_loss": round(finite[best], 4),
            "best_factor": best,
            "needed_loss": round(as_saved - found.tuned_off, 4),
            "logged_after": sample.logged.after,
            "base_loss": round(base, 4),
        },
    )


def _logged(log: TrainingLog, config: TrainingConfig | None, saved: int | None) -> LoggedLoss:
    if log.is_preference:
        raise NotApplicable("the loss of preference training is not that of a language model")
    logged = logged_loss(log, saved, config.iters if config is not None else None)
    if logged is None:
        raise Inconclusive("the log has no finite loss from after the first update")
    if config is not None and config.resume_adapter_file is not None:
        return replace(logged, before=None)
    return logged


def _require_enough(sample: Sample, limits: Limits) -> None:
    if len(sample.rows) < limits.rows:
        raise Inconclusive(f"{len(sample.rows)} rows are too few to decide")
    if sum(not row.is_whole for row in sample.rows) * 10 > len(sample.rows):
        raise Inconclusive("rows too long to be measured whole")


def _require_finite(found: Fit, losses: TokenLosses) -> None:
    if losses.load_failure is None and not math.isfinite(found.tuned.value):
        raise Inconclusive("the tuned model's losses are not finite")


def _as_counted(
    sample: Sample, usual: list[Reading], masks: Sequence[bool] | None, limits: Limits
) -> Fit:
    """The best reading of those with as many targets as the log counted."""
    if masks is not None:
        if not masks:
            raise Inconclusive("the log's loss is over more tokens, or fewer, than the rows have")
        counted = [one for one in usual if one.masks_prompt in masks]
        usual = counted or [Reading(*one) for one in product(masks, USUAL_ENDS)]
    return anchored_fit(fits(sample, usual, limits.same, limits.errors))


def _explained(sample: Sample, usual: Fit, found: OtherReading, limits: Limits) -> Sign:
    """What the reading that makes both losses those of the log says of the trainer."""
    other, reading, plain = found.fit, found.fit.reading, found.plain
    measured = _measured(sample, usual, other)
    if plain is not None:
        measured["format"] = str(plain)
    if plain is not None and plain.pattern is None:
        severity = _unlearned(sample, measured, limits)
        return Sign(
            "agrees-without-end",
            f"{_those(sample)} of rows without their end token ({_values(other)}); with it "
            f"they would be {_values(usual)}.",
            measured,
            severity=severity,
            expected="the end token after every answer",
        )
    if plain is not None:
        is_worse = usual.tuned_off > limits.far + usual.tuned_tolerance
        return Sign(
            "agrees-in-another-format",
            f"{_those(sample)} of rows written as `{plain}` ({_values(other)}). With the chat "
            f"template, in which the model is asked, both models have {_values(usual)}: it was "
            "trained on another format than it is used in.",
            measured,
            severity=None if is_worse else Severity.WARNING,
        )
    if reading.shift != 1:
        return Sign(
            "agrees-at-another-shift",
            f"{_those(sample)} of predicting {SHIFT_NAMES[reading.shift]} ({_values(other)}); for "
            f"the next token both models have {_values(usual)}.",
            {**measured, "shift": reading.shift},
        )
    severity = None
    if reading.until in WITHOUT_ENDS:
        symptom, what = "agrees-without-end", "without the end tokens"
        severity = _unlearned(sample, measured, limits)
    elif reading.masks_prompt:
        symptom, what = "agrees-without-prompt", "of the answers alone"
    else:
        symptom, what = "agrees-with-prompt", "of prompt and answer"
    return Sign(
        symptom,
        f"{_those(sample)} {what} ({_values(other)}); as configured they would be "
        f"{_values(usual)}.",
        measured,
        severity=severity,
    )


def _unlearned(sample: Sample, measured: dict[str, Measurement], limits: Limits) -> Severity | None:
    """An error where the end token became less likely: trained on, it becomes likelier."""
    after = change(sample.rows, lambda one: one.end_after_answer)
    measured |= {"end_base_loss": mean_of(after.base), "end_tuned_loss": mean_of(after.tuned)}
    return Severity.ERROR if after.gain < -limits.end_worse else None


def _disagreement(sample: Sample, found: Fit, limits: Limits) -> Iterator[Sign]:
    logged, measured = sample.logged, _measured(sample, found)
    off = found.tuned_off
    expected = f"{logged.after:.3f}, give or take {found.tuned_tolerance:.3f}"
    # Where the tuned model is as good as logged, this is its base, whatever the log began with.
    differs = not found.base_agrees and not off <= found.tuned_tolerance
    if differs:
        yield Sign(
            "base-differs",
            f"Before the first update the log has a loss of {logged.before:.3f}; the base model "
            f"has {found.base.value:.3f} on the same rows: the run began with other weights, "
            "another tokenizer, or other rows.",
            measured,
            expected=f"{logged.before:.3f}, give or take {found.base_tolerance:.3f}",
        )
    if not abs(off) > max(found.tuned_tolerance, limits.share * logged.after):
        return
    if off < 0:
        if not found.base_agrees:
            raise Inconclusive("the log's losses are over other targets than these rows have")
        yield Sign(
            "better-than-logged",
            f"The tuned model's loss is {found.tuned.value:.3f}, the log's {logged.after:.3f} at "
            f"{logged.when}: it is better than logged, or the log's loss is of "
            "something else.",
            measured,
            expected=expected,
        )
        return
    learned = (logged.before or found.base.value) - logged.after
    is_far = off > found.tuned_tolerance + limits.far
    is_lost = off > limits.lost * learned
    is_certain = is_far and (is_lost or (logged.before is not None and not differs))
    yield Sign(
        "worse-than-logged",
        f"The tuned model's loss is {found.tuned.value:.3f} on the rows on which the log has "
        f"{logged.after:.3f} at {logged.when}: what is on disk is not what was trained.",
        measured,
        severity=None if is_certain else Severity.WARNING,
        expected=expected,
    )


def _another_base(sample: Sample, exact: Fit) -> Sign:
    before = sample.logged.before
    return Sign(
        "base-differs",
        f"Before the first update the log has a loss of {before:.3f}; the base model has "
        f"{exact.base.value:.3f} on the rows that mlx_lm.lora looks at first with this seed: the "
        "run began with other weights, another tokenizer, or other rows.",
        {
            "rows": exact.base.rows,
            "split": sample.logged.split,
            "logged_before": before,
            "base_loss": round(exact.base.value, 4),
            "tolerance": exact.base_tolerance,
        },
        expected=f"{before:.3f}, give or take {exact.base_tolerance:.3f}",
    )


def _those(sample: Sample) -> str:
    before, after = sample.logged.before, sample.logged.after
    return f"The log's losses, {before:.3f} before and {after:.3f} after training, are those"


def _values(one: Fit) -> str:
    return f"{one.base.value:.3f} and {one.tuned.value:.3f}"


def _measured(sample: Sample, usual: Fit, other: Fit | None = None) -> dict[str, Measurement]:
    def rounded(value: float) -> float | None:
        return round(value, 4) if math.isfinite(value) else None

    measured: dict[str, Measurement] = {
        "rows": usual.tuned.rows or usual.base.rows,
        "split": sample.logged.split,
        "logged_before": sample.logged.before,
        "logged_after": sample.logged.after,
        "base_loss": round(usual.base.value, 4),
        "tuned_loss": rounded(usual.tuned.value),
        "tolerance": rounded(usual.tuned_tolerance),
    }
    if other is not None:
        measured["other_base_loss"] = round(other.base.value, 4)
        measured["other_tuned_loss"] = round(other.tuned.value, 4)
    return measured
