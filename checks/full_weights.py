"""What full fine-tuning did to the weights.

What it finds. Weights that are NaN or infinite; a full fine-tune in which no weight
differs from the base model; weights moved further than their own size; and layers that
were left as they were.

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
from itertools import groupby
from statistics import median

from mlxdoctor.check import Cost, Inconclusive, NotApplicable, check, limit
from mlxdoctor.evidence.adapter import Adapter, layer_of
from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.tuned_model import TunedModel
from mlxdoctor.finding import Seen, Severity, Sign, Symptom
from mlxdoctor.measure.weights.changed_tensors import WeightChange, weight_changes

_EXAMPLES = 3
_LOWER = "lower the learning rate, ten times to start with, and train again from the base"


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
            expected="finite weights",
            fix="this model cannot be used; train again with a lower learning rate",
        ),
        "unchanged": Symptom.error(
            "no weight of the tuned model differs from the base's",
            expected="weights that training changed",
            fix="check that the layers were unfrozen, that the optimizer had a rate above zero, "
            "and that the trained model was saved",
        ),
        "exploded": Symptom.error(
            "the weights were moved several times their own size: they are overwritten", fix=_LOWER
        ),
        "large": Symptom.warning("the weights were moved further than their own size", fix=_LOWER),
        "partly-changed": Symptom.info(
            "some layers were not changed at all",
            expected="every layer, unless `num_layers` asks for fewer",
            fix="set `num_layers: -1` to train them all",
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
    found = tuple(weight_changes(base, tuned))
    compared = [
        one for one in found if one.status in ("same", "changed") and not one.is_requantized
    ]
    if not compared:
        raise Inconclusive("no tensor is stored with the name, shape and kind of one in the base")
    changed = [one for one in compared if one.status == "changed"]
    if not changed and any(one.is_requantized for one in found):
        raise Inconclusive("the matrices were quantised after training, which hides what it did")
    if not changed:
        yield Sign(
            "unchanged",
            f"None of the {len(compared)} weights in {tuned.path.name} differs from the base "
            "model's.",
            {"compared": len(compared), "changed": 0},
            where=tuned.path.name,
            # A folder may have been named that nobody trained; what a run saved was trained.
            severity=None if was_full else Severity.WARNING,
        )
        return
    broken = [one for one in changed if one.nonfinite]
    if broken:
        count = sum(one.nonfinite for one in broken)
        yield Sign(
            "non-finite",
            f"{count:,} weights are NaN or infinite, in {len(broken)} of {len(compared)} tensors.",
            {"nonfinite": count, "tensors": len(broken), "compared": len(compared)},
            where=", ".join(one.name for one in broken[:_EXAMPLES]),
        )
    else:
        yield Seen(
            f"Training changed {len(changed)} of {len(compared)} weights, and all are finite.",
            {"changed": len(changed), "compared": len(compared)},
        )
    yield from _moved(changed, limits)
    yield from _untouched_layers(changed, base)


def _moved(changed: Sequence[WeightChange], limits: Limits) -> Iterator[Sign]:
    matrices = [
        (one.relative, one.name)
        for one in changed
        if one.relative is not None and len(one.shape) > 1 and not one.nonfinite
    ]
    if not matrices or (middle := median(size for size, _ in matrices)) < limits.large:
        return
    largest, name = max(matrices)
    exploded = middle >= limits.exploded
    yield Sign(
        "exploded" if exploded else "large",
        f"Training moved the weights by {middle:.3g} times their own size (median of "
        f"{len(matrices)} matrices, at most {largest:.3g}): "
        + ("the base model is overwritten." if exploded else "little of the base model is left."),
        {
            "median_relative_change": middle,
            "largest_relative_change": largest,
            "matrices": len(matrices),
        },
        where=name,
        expected=f"a change below {limits.large:g} times the weights; often below 0.3",
    )


def _untouched_layers(changed: Sequence[WeightChange], base: BaseModel) -> Iterator[Sign]:
    every = {layer for name in base.tensors if (layer := layer_of(name)[0]) is not None}
    touched = {layer for one in changed if (layer := layer_of(one.name)[0]) is not None}
    if untouched := every - touched:
        yield Sign(
            "partly-changed",
            f"{len(touched)} of {len(every)} layers were changed"
            + (f" ({_ranges(touched)})." if touched else "."),
            {"changed": _ranges(touched), "unchanged": _ranges(untouched)},
            where=f"layers {_ranges(untouched)}",
        )


def _ranges(layers: set[int]) -> str:
    """ "0-3, 7": numbers in order, those that follow each other put together."""
    runs = groupby(enumerate(sorted(layers)), key=lambda one: one[1] - one[0])
    ends = [[layer for _, layer in run] for _, run in runs]
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in ends)
