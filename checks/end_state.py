"""The loss of the saved adapter against the one that the log ends with.

What it finds. A saved adapter, fused model or tuned model that is worse on the run's own
validation rows than the log says it was when it was saved.

Why it matters. A log is about the model in memory. What was saved, fused, converted or loaded may
be something else: half an adapter, an adapter on another base, weights rounded away.

How it is measured. Base and tuned model read the validation rows as the run did, and the loss is
compared with the log's last validation. The tolerance is rounding, the sampling error of rows that
were not measured, and how far the loss moved from the last validation to the save. Where the log's
first losses are those of another reading (`replay`), the loss is read in that way.

When it is wrong. Rows that were edited since are other rows: then the base's loss is not the log's
first one either, and only what is lost beyond doubt is an error.

Of a trainer whose first losses can't be computed again, another loss (smoothed labels, a mean over
rows) is as likely as another model: only that it agrees is said. Where they differ, and the model
is as good as mlx-lm's trainer makes it (`reach`), the log's losses are of another kind.

What to do. Evaluate the saved adapter with `mlx_lm.lora --test` on the base that it was trained on.
"""

import math
from collections.abc import Iterator

from mlxdoctor.check import Inconclusive, check
from mlxdoctor.finding import Measurement, Seen, Severity, Sign, Symptom
from mlxdoctor.twin.levels import Level
from mlxdoctor.twin.reach import Reach
from mlxdoctor.twin.replay import Replay

#: Of the logged loss, more than any conversion of weights loses.
SHARE = 0.1
#: Nats beyond the tolerance that are certain, a perplexity up by a third: 1.3 to 5.2 where half of
#: an adapter is lost, in 0 of 96 healthy runs of three base models.
FAR = 0.3
#: Of what was learned, what an earlier save that is nearly as good lacks: 0.01 in a sound run.
NEARLY = 0.05
#: Of what was learned, what is lost where the rows may be others.
LOST = 0.5

_SAME = (
    "Computed again from the files, the loss is {tuned_loss:.3f}; the log has {logged:.3f} at "
    "{when}."
)


@check(
    codes={
        "worse-than-logged": Symptom.error(
            "the tuned model is worse on the run's rows than the log says",
            says="The tuned model's loss is {tuned_loss:.3f} on the validation rows, on which the "
            "log has {logged:.3f} at {when}: what is on disk is not what was trained.",
            expected="{logged:.3f}, give or take {tolerance:.3f}",
            fix="Compare the file's tensors with the configuration (`mlxdoctor inspect`); where "
            "the model was fused, use base and adapter, or fuse with more bits.",
        ),
        "as-logged": Symptom.info(
            "the saved model has the loss that the log ends with",
            says=_SAME,
            expected="{logged:.3f}, give or take {tolerance:.3f}",
        ),
        "saved-earlier": Symptom.error(
            "the saved model is that of an earlier iteration",
            says="The tuned model's loss is {tuned_loss:.3f} on the validation rows. That is what "
            "the log has at iteration {iteration}; at {when} it has {logged:.3f}. So the file "
            "holds the model of iteration {iteration}.",
            expected="{logged:.3f}, give or take {tolerance:.3f}",
            fix="Save at the end, or where the validation loss is lowest: look at how the trainer "
            "compares it with the best one before.",
        ),
        "other-scale": Symptom.error(
            "the adapter has the log's loss at another scale",
            says="With the configured LoRA scale of {configured:g}, the tuned model's loss on the "
            "validation rows is {tuned_loss:.3f}. With a scale of {scale:g} it is {loss:.3f}, and "
            "the log ends with {logged:.3f}. So the adapter was probably trained at scale "
            "{scale:g}.",
            expected="the scale that it was trained at",
            fix="Set lora_parameters.scale to {scale:g}.",
        ),
        "base-has-it": Symptom.error(
            "the base model alone has the log's last loss",
            says="The base model alone has a loss of {loss:.3f}, which is what the log ends with "
            "({logged:.3f}); with the adapter it is {tuned_loss:.3f}. What was trained is in the "
            "base model already, and the adapter adds it once more.",
            expected="the base model that the run was started with",
            fix="Use this model without the adapter, or name the base of the training with --base.",
        ),
        "factors-turned": Symptom.error(
            "the adapter has the log's loss with its factors transposed",
            says="With its factors transposed, the tuned model has the loss that the log ends with "
            "({logged:.3f}); as they are stored it has {tuned_loss:.3f}. They are square, so that "
            "they load either way.",
            expected="factors as mlx-lm stores them: A of (inputs, rank), B of (rank, outputs)",
            fix="Transpose both factors of every module, as PEFT's have to be, and save again.",
        ),
        "factors-moved": Symptom.error(
            "with its factors in later layers the tuned model is as good as the log says",
            says="The tuned model's loss is {tuned_loss:.3f} on the validation rows. With each "
            "layer's factors moved to a later layer, it is the log's {logged:.3f}. So the factors "
            "are stored under the wrong layer numbers.",
            expected="factors under the number of the layer that they were trained in",
            fix="Save the factors under the numbers of their layers. If only the last layers were "
            "trained, these numbers do not begin at 0.",
        ),
        "base-differs": Symptom.warning(
            "neither model has the losses that the log begins and ends with",
            says="The base model's loss is {base_loss:.3f}, but the log begins with "
            "{logged_before:.3f}. The tuned model's loss is {tuned_loss:.3f}, but the log ends "
            "with {logged:.3f}. The base model, tokenizer or rows are different ones, or the "
            "trainer computes another loss.",
            expected="{logged_before:.3f} and {logged:.3f}",
            fix="Check which base model the run was started with, and name it with --base.",
        ),
    }
)
def end_state(replay: Replay, reach: Reach | None) -> Iterator[Sign | Seen]:
    after, before = replay.level("after"), replay.level("before")
    if after is None:
        raise Inconclusive("the log has no loss of the end that could be computed again")
    if not math.isfinite(after.computed) or not math.isfinite(after.recorded):
        raise Inconclusive("the tuned model's losses are not finite")
    worse, tolerance = -after.off, after.tolerance
    # The best model was kept, and not the last.
    is_best = replay.saved_at is not None and worse < 0.0
    measured: dict[str, Measurement] = {
        "tuned_loss": after.computed,
        "logged": after.computed if is_best else after.recorded,
        "when": f"iteration {replay.saved_at}" if is_best else "its last validation",
        "tolerance": tolerance,
        "base_loss": before.computed if before is not None else None,
        "logged_before": before.recorded if before is not None else None,
    }
    start = before.recorded if before is not None else math.inf
    is_lost = worse > LOST * (start - after.recorded)
    if is_best or abs(worse) <= max(tolerance, SHARE * after.recorded):
        if is_lost and worse > SHARE * after.recorded:
            raise Inconclusive("its last validation is over too few batches of the rows")
        yield Seen(_SAME, measured)
        yield Sign("as-logged", measured)
        return
    if worse < 0:
        raise Inconclusive("the log's losses are over other targets than these rows have")
    if replay.saved_at is not None:
        # A save that was chosen, and is nearly as good, is no fault.
        is_near = worse <= NEARLY * (start - after.recorded)
        severity = Severity.INFO if is_near else None
        yield Sign("saved-earlier", measured | {"iteration": replay.saved_at}, severity=severity)
        return
    if (scale := replay.scale) is not None:
        agreeing = {"scale": scale.agreeing, "advised_scale": scale.agreeing, "loss": scale.loss}
        figures = measured | agreeing | {"configured": scale.configured}
        if scale.agreeing == 0:
            yield Sign("base-has-it", measured | {"loss": scale.loss})
        else:
            yield Sign("other-scale", figures, where="lora_parameters.scale")
        return
    if before is None and replay.level("report") is None:
        raise Inconclusive(
            "no first loss of the log could be computed again: its last may be of another kind"
        )
    if replay.rearranged:
        yield Sign(f"factors-{replay.rearranged}", measured)
        return
    if (other := _of_another_kind(replay, reach, after, measured)) is not None:
        yield other
        return
    yield from _worse(replay, before, after, measured, is_lost=is_lost)


def _of_another_kind(
    replay: Replay, reach: Reach | None, after: Level, measured: dict[str, Measurement]
) -> Seen | None:
    """What shows that a model is sound, and the log's losses none that mlx-lm has of it."""
    if reach is None or replay.trains_as_read:
        return None
    is_below = reach.split == "validation" and reach.tuned <= after.recorded + after.tolerance
    is_below &= reach.shortfall <= LOST
    if not (reach.is_as_good or is_below or reach.answers_rightly):
        return None
    return Seen(
        "[The tuned model is as good as mlx-lm's trainer makes it with the same settings{as_good}|"
        "On the answers alone the tuned model's loss is {answers:.3f}, and the log ends with "
        "{logged:.3f}|The tuned model gives {right:.0%} of the answers of held-out rows]: "
        "the log's losses are of another kind than mlx-lm's.",
        measured
        | {
            "as_good": "" if reach.is_as_good else None,
            "answers": reach.tuned if is_below else None,
            "right": reach.right,
        },
    )


def _worse(
    replay: Replay,
    before: Level | None,
    after: Level,
    measured: dict[str, Measurement],
    *,
    is_lost: bool,
) -> Iterator[Sign]:
    """A model that is worse than the log has it, or a base that is another."""
    # A reading of the log says what the trainer did: then the base is not in doubt.
    if before is not None and before.misfit > 0.0 and replay.reading is None:
        yield Sign("base-differs", measured)
        is_unsure = before.misfit > FAR or not is_lost
        if is_unsure and after.computed <= before.computed:
            # A model that is worse than its base is lost, whatever the log's losses are of.
            raise Inconclusive("the log's losses are of another kind than these files give")
    is_certain = -after.off > after.tolerance + FAR and (is_lost or before is not None)
    severity = None if is_certain else Severity.WARNING
    yield Sign("worse-than-logged", measured, severity=severity)
