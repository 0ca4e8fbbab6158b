"""What full fine-tuning did to the weights.

What it finds. Weights that are NaN or infinite; a full fine-tune in which no weight
differs from the base model; and weights moved further than their own size.

Why it matters. Full fine-tuning writes into the model itself. A sound one moves each
matrix by a fraction of its norm. A change several times that norm has overwritten what
the model knew, however far the loss fell; no change at all means that the base was saved.

How it is measured. Tensor by tensor against the base model: bit for bit, and by the
relative change ‖W' − W‖/‖W‖ in Frobenius norms. Its median over the changed matrices is
judged; norms and biases are left out, since they are small and move less. Quantised
matrices are compared by the values they stand for.

When it is wrong. The limits were measured on models of half a million parameters, with
Adam; SGD spoils a model with less, by a few matrices that move much further than the
median. Training from scratch, or for very long, moves weights further than fine-tuning. A
base folder of another revision than the one trained on adds its own difference. A model
that was quantised afterwards differs by rounding; such tensors are not judged. Weights saved
in another precision count as changed, if only by its rounding.

What to do. Lower the learning rate: full fine-tuning bears less than LoRA. Where nothing
changed, check that the layers were unfrozen and that the trained model was saved.
`mlxdoctor inspect MODEL --base BASE` shows every tensor.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from mlxdoctor.check import Cost, Inconclusive, NotApplicable, check, limit
from mlxdoctor.evidence.adapter import Adapter
from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.tuned_model import TunedModel
from mlxdoctor.finding import Seen, Severity, Sign, Symptom, some_of
from mlxdoctor.measure.weights.changed_tensors import WeightChange, weight_changes

_LOWER = "lower the learning rate, ten times to start with, and train again from the base"
_MOVED = (
    "Training moved the weights by {median_relative_change:.3g} times their own size (median of "
    "{matrices} matrices, at most {largest_relative_change:.3g})"
)


@dataclass(frozen=True)
class Limits:
    """Thresholds of `full-weights`, on the median over changed matrices."""

    exploded: float = limit(
        3.0,
        unit="‖W' − W‖/‖W‖, median over matrices",
        source="reports/full-tuning.md: from seven times a high but sound rate on, 3.67 or more "
        "(44 runs), with 2.2 to 21 times the best loss; seven that were asked 20 questions each "
        "answered none, most of them garbled",
        false_alarms="0 of 44 at sound or lower rates, whose largest is 0.64",
    )
    large: float = limit(
        1.0,
        unit="‖W' − W‖/‖W‖, median over matrices",
        source="reports/full-tuning.md: at two to five times a high but sound rate, 1.05 to 3.45 "
        "(33 runs), with 1.7 to 8 times the best loss; five that were asked were fluent and "
        "answered none of 20, where five at sound rates answered 5 to 15",
        false_alarms="0 of 44 at sound or lower rates, whose largest is 0.64",
    )


@check(
    codes={
        "non-finite": Symptom.error(
            "trained weights are NaN or infinite",
            says="{nonfinite:,} weights are NaN or infinite, in {tensors} of {compared} tensors.",
            expected="finite weights",
            fix="this model cannot be used; train again with a lower learning rate",
        ),
        "unchanged": Symptom.error(
            "no weight of the tuned model differs from the base's",
            says="None of the {compared} weights in {where} differs from the base model's.",
            expected="weights that training changed",
            fix="check that the layers were unfrozen, that the optimizer had a rate above zero, "
            "and that the trained model was saved",
        ),
        "exploded": Symptom.error(
            "the weights were moved several times their own size: they are overwritten",
            says=f"{_MOVED}: the base model is overwritten.",
            expected="a change below {most:g} times the weights; often below 0.3",
            fix=_LOWER,
        ),
        "large": Symptom.warning(
            "the weights were moved further than their own size",
            says=f"{_MOVED}: little of the base model is left.",
            expected="a change below {most:g} times the weights; often below 0.3",
            fix=_LOWER,
        ),
    },
    cost=Cost.WEIGHTS,
    limits=Limits(),
    rerun_symptom=True,
)
def full_weights(
    tuned: TunedModel,
    base: BaseModel,
    config: TrainingConfig | None,
    adapter: Adapter | None,
    limits: Limits,
) -> Iterator[Sign | Seen]:
    """Judge how far each weight was moved."""
    was_full = config is not None and config.fine_tune_type == "full"
    if not was_full:
        if tuned.from_adapter:
            raise NotApplicable("the run was no full fine-tune")
        if adapter is not None and adapter.modules:
            raise NotApplicable("the model was fused with an adapter, and other checks judge that")
    every = tuple(weight_changes(base, tuned))
    compared = [
        change
        for change in every
        if change.status in ("same", "changed") and not change.is_requantized
    ]
    if not compared:
        raise Inconclusive("no tensor is stored with the name, shape and kind of one in the base")
    changed = [change for change in compared if change.status == "changed"]
    if not changed and any(change.is_requantized for change in every):
        raise Inconclusive("the matrices were quantised after training, which hides what it did")
    if not changed:
        measured = {"compared": len(compared), "changed": 0}
        # A folder may have been named that nobody trained; what a run saved was trained.
        severity = None if was_full else Severity.WARNING
        yield Sign("unchanged", measured, where=tuned.path.name, severity=severity)
        return
    if broken := [change for change in changed if change.nonfinite]:
        count = sum(change.nonfinite for change in broken)
        measured = {"nonfinite": count, "tensors": len(broken), "compared": len(compared)}
        yield Sign("non-finite", measured, where=some_of([change.name for change in broken]))
    else:
        yield Seen(
            "Training changed {changed} of {compared} weights, and all are finite.",
            {"changed": len(changed), "compared": len(compared)},
        )
    yield from _moved(changed, limits)


def _moved(changed: Sequence[WeightChange], limits: Limits) -> Iterator[Sign]:
    matrices = [
        (change.relative, change.name)
        for change in changed
        if change.relative is not None and len(change.shape) > 1 and not change.nonfinite
    ]
    if not matrices or (middle := median(size for size, _ in matrices)) < limits.large:
        return
    largest, name = max(matrices)
    measured = {
        "median_relative_change": middle,
        "largest_relative_change": largest,
        "matrices": len(matrices),
        "most": limits.large,
    }
    yield Sign("exploded" if middle >= limits.exploded else "large", measured, where=name)
