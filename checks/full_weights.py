"""What a run did to whole weights: those that full fine-tuning trained, and frozen ones.

What it finds. After full fine-tuning: weights that are not finite, that are all the base model's,
or that were moved further than their own size. After LoRA: weights that should be frozen and have
other values than the base model's.

Why it matters. Full fine-tuning writes into the model itself. A sound one moves each matrix by a
fraction of its norm; a change several times that norm has overwritten what the model knew, and no
change at all means that the base was saved. LoRA's promise is that the base model stays what it
was: a run that changed it trained something else than its configuration says.

How it is measured. Tensor by tensor against the base model: bit for bit, and by the relative
change ‖W' − W‖/‖W‖ in Frobenius norms. After full fine-tuning its median over the changed matrices
is judged, without norms and biases, which are small. Frozen weights stored in another precision
count as unchanged within that precision's rounding, quantised ones within twice what rounding to
their codes adds on average.

When it is wrong. The limits were measured on models of half a million parameters, with Adam; SGD
spoils a model with less. Training from scratch, or for very long, moves weights further. A base
folder of another revision than the one trained on adds its own difference. A model that was
quantised after full fine-tuning differs by rounding; such tensors are not judged.

What to do. Lower the learning rate: full fine-tuning bears less than LoRA. For LoRA, freeze the
model before the layers are converted, and throw the file away.
"""

from collections.abc import Iterator, Sequence
from statistics import median

from mlxdoctor.check import Inconclusive, check
from mlxdoctor.evidence.adapter import Adapter
from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.tuned_model import TunedModel
from mlxdoctor.finding import Measurement, Seen, Severity, Sign, Symptom, Unsought, some_of
from mlxdoctor.measure.weights.changed_tensors import WeightChange, weight_changes

#: Largest ‖W' − W‖/‖W‖ that is rounding, if the two files differ in precision: one unit in the last
#: place of bfloat16.
_ROUNDING = 2.0**-8
#: Largest change of a quantised weight that is rounding, in average rounding errors of its codes:
#: 64 sound fusions at 2 to 8 bits measured 1.00 to 1.12.
_QUANTIZED = 2.0
#: ‖W' − W‖/‖W‖, median over matrices, for an error. 44 runs at seven or more times a high but sound
#: rate reached 3.67 or more, and 2.2 to 21 times the best loss. Seven of them were asked 20
#: questions each: none answered any, and most were garbled (reports/full-tuning.md).
_ERROR_CHANGE = 3.0
#: The same for a warning. 33 runs at two to five times such a rate reached 1.05 to 3.45, and 1.7 to
#: 8 times the best loss; five of them were fluent and answered none of 20 questions, while five at
#: sound rates answered 5 to 15. The largest of 44 runs at sound or lower rates is 0.64.
_WARNING_CHANGE = 1.0


@check(
    codes={
        "unchanged": Symptom.error(
            "no weight of the tuned model differs from the base's",
            says="None of the {compared} weights in {where} differs from the base model's.",
            expected="weights that training changed",
            fix="check that the layers were unfrozen, that the optimizer had a rate above zero, "
            "and that the trained model was saved",
        ),
        "exploded": Symptom.error(
            "the weights were moved further than their own size, or are not finite",
            says="[{nonfinite:,} weights are NaN or infinite, in {tensors} of {compared} tensors|"
            "Training moved the weights by {median_relative_change:.3g} times their own size "
            "(median of {matrices} matrices, at most {largest_relative_change:.3g}): little of "
            "the base model is left].",
            expected="a change below {most:g} times the weights; often below 0.3",
            fix="lower the learning rate, ten times to start with, and train again from the base",
        ),
        "frozen-changed": Symptom.error(
            "weights that should be frozen have other values than the base model's",
            says="{changed} of {compared} weights that should be frozen differ from the base "
            "model's, by up to {largest_relative_change:.3g} of their norm.",
            expected="the base model's values, bit for bit but for rounding",
            fix="freeze the model before the layers are converted, and train again from the base",
        ),
    },
    rerun_symptom=True,
)
def full_weights(
    tuned: TunedModel,
    base: BaseModel,
    config: TrainingConfig | None,
    adapter: Adapter | None,
) -> Iterator[Sign | Seen | Unsought]:
    was_full = config is not None and config.fine_tune_type == "full"
    adapted = {module.name for module in adapter.modules} if adapter is not None else set()
    was_frozen = not was_full and (tuned.from_adapter or bool(adapted))
    trained: set[str] = set()
    if was_frozen:
        yield Unsought(("unchanged", "exploded"), "the run was no full fine-tune")
        to_save = config.values.get("modules_to_save") if config is not None else None
        endings = tuple(map(str, to_save)) if isinstance(to_save, list) else ()
        fused = set() if tuned.from_adapter else adapted
        trained = {
            name
            for name in tuned.tensors
            if (module := name.rpartition(".")[0]) in fused or module.endswith(endings)
        }
    elif not was_full:
        yield Unsought(("frozen-changed",), "which weights of the model should differ is not known")
    changes = list(weight_changes(base, tuned, leave_out=trained))
    if not changes:
        raise Inconclusive("no tensor has the name and shape of one in the base model")
    if was_frozen:
        yield from _frozen(changes, tuned)
    else:
        yield from _fully_tuned(changes, tuned, was_full=was_full)


def _fully_tuned(
    changes: Sequence[WeightChange], tuned: TunedModel, *, was_full: bool
) -> Iterator[Sign | Seen]:
    compared = [change for change in changes if not change.is_requantized]
    changed = [change for change in compared if change.status == "changed"]
    counts = {"compared": len(compared), "changed": len(changed)}
    if not changed and len(compared) < len(changes):
        raise Inconclusive("the matrices were quantised after training, which hides what it did")
    if not changed:
        # Without a configuration of a full fine-tune, the model may be untrained on purpose.
        severity = None if was_full else Severity.WARNING
        yield Sign("unchanged", counts, where=tuned.path.name, severity=severity)
        return
    if broken := [change for change in changed if change.nonfinite]:
        values = {"nonfinite": sum(change.nonfinite for change in broken), "tensors": len(broken)}
        where = some_of([change.name for change in broken])
        figures = {**values, "compared": len(compared), "most": _WARNING_CHANGE}
        yield Sign("exploded", figures, where=where)
    else:
        yield Seen("Training changed {changed} of {compared} weights, and all are finite.", counts)
    matrices = [
        (change.relative, change.name)
        for change in changed
        if change.relative is not None and len(change.shape) > 1 and not change.nonfinite
    ]
    median_change = median(size for size, _ in matrices) if matrices else 0.0
    if median_change >= _WARNING_CHANGE:
        largest, name = max(matrices)
        moved = {"median_relative_change": median_change, "largest_relative_change": largest}
        figures = {**moved, "matrices": len(matrices), "most": _WARNING_CHANGE}
        severity = None if median_change >= _ERROR_CHANGE else Severity.WARNING
        yield Sign("exploded", figures, where=name, severity=severity)


def _frozen(changes: Sequence[WeightChange], tuned: TunedModel) -> Iterator[Sign | Seen]:
    relative = {
        change.name: moved for change in changes if (moved := _relative_change(change)) is not None
    }
    if not relative:
        said = "The {compared} weights that were to stay frozen are the base model's."
        yield Seen(said, {"compared": len(changes)})
        return
    names = sorted(relative, key=lambda name: -relative[name])
    figures: dict[str, Measurement] = {"changed": len(names), "compared": len(changes)}
    figures["largest_relative_change"] = relative[names[0]]
    # A model may have been fused from another revision of the base.
    severity = None if tuned.from_adapter else Severity.WARNING
    yield Sign("frozen-changed", figures, where=some_of(names), severity=severity)


def _relative_change(change: WeightChange) -> float | None:
    """‖W' − W‖/‖W‖, or None if only the precision changed."""
    if change.status == "same":
        return None
    same_storage = change.before == change.after
    if change.relative is None:
        # Integers have no relative change: 1.0 unless only their type changed.
        return 1.0 if same_storage else None
    rounding = max(_QUANTIZED * change.rounding, _ROUNDING)
    return None if change.relative <= rounding and not same_storage else change.relative
