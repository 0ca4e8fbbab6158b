"""Whether weights that were to stay frozen were changed.

What it finds. Weights of the base model that have other values after the run: in a file
of full weights saved in the adapter's place, among the tensors saved beside the LoRA
factors, or in a fused model outside the modules that the adapter changes.

Why it matters. LoRA's promise is that the base model stays what it was. A run that
changed it trained something else than its configuration says, at a rate meant for
factors that start at zero.

How it is measured. Tensor by tensor, in blocks, bit for bit. Where the bits differ the
relative change ‖W' − W‖/‖W‖ is computed. Weights stored in another precision count as
unchanged if the difference is within that precision's rounding.

When it is wrong. A base folder of another revision than the one trained on looks
changed. A fused model that was requantised is changed everywhere by rounding; such
tensors are not compared.

What to do. Freeze the model before the layers are converted. Throw the file away: the
base model inside it is damaged.
"""

from collections import Counter
from collections.abc import Iterator, Set
from dataclasses import dataclass

from mlxdoctor.check import Cost, Inconclusive, NotApplicable, check, limit
from mlxdoctor.evidence.adapter import Adapter
from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.tuned_model import TunedModel
from mlxdoctor.finding import Finding, Severity
from mlxdoctor.measure.weights.changed_tensors import WeightChange, component, weight_changes

_EXAMPLES = 3


@dataclass(frozen=True)
class Limits:
    """Thresholds of `frozen-weights`."""

    rounding: float = limit(
        2.0**-8,
        unit="‖W' − W‖/‖W‖",
        source="one unit of bfloat16's last place: storing a weight in half precision changes it "
        "by less. Applies only where the two files differ in precision",
        false_alarms="none possible from rounding alone",
    )


@dataclass(frozen=True)
class _Change:
    name: str
    relative: float


@check(
    codes={
        "changed": "weights that should be frozen have other values than the base model's",
        "changed-outside-adapter": "a fused model differs where its adapter changes nothing",
        "unchanged-copy": "the file carries base weights, unchanged",
    },
    cost=Cost.WEIGHTS,
    limits=Limits(),
    decisive=True,
    rerun_symptom=True,
)
def frozen_weights(
    tuned: TunedModel,
    base: BaseModel,
    config: TrainingConfig | None,
    adapter: Adapter | None,
    limits: Limits,
) -> Iterator[Finding]:
    """Compare full weights with the base model's."""
    if config is not None and config.fine_tune_type == "full":
        raise NotApplicable("a full fine-tune changes weights on purpose")
    adapted = {module.name for module in adapter.modules} if adapter is not None else set()
    if not tuned.from_adapter and not adapted:
        raise NotApplicable("which weights of the fused model should differ is not known")
    saved = config.values.get("modules_to_save") if config is not None else None
    intended = tuple(saved) if isinstance(saved, list) else ()
    free = {name for name in tuned.tensors if _may_change(name, tuned, adapted, intended)}
    compared = 0
    changes: list[_Change] = []
    for change in weight_changes(base, tuned, leave_out=free):
        if change.status not in ("same", "changed"):
            continue
        compared += 1
        relative = _relative_change(change, limits)
        if relative is not None:
            changes.append(_Change(change.name, relative))
    if not compared:
        raise Inconclusive("no tensor has the name and shape of one in the base model")
    if changes:
        yield _changed(changes, compared, tuned)
    elif tuned.from_adapter:
        yield Finding(
            "frozen-weights.unchanged-copy",
            Severity.INFO,
            f"{tuned.path.name} carries {compared} weights of the base model, and none of them "
            "was changed.",
            measured={"compared": compared, "changed": 0},
            expected="LoRA factors only",
            where=tuned.path.name,
            fix="save trainable parameters only",
        )


def _may_change(name: str, tuned: TunedModel, adapted: Set[str], intended: tuple[str, ...]) -> bool:
    module = name.rpartition(".")[0]
    return (not tuned.from_adapter and module in adapted) or any(
        module.endswith(one) for one in intended
    )


def _changed(changes: list[_Change], compared: int, tuned: TunedModel) -> Finding:
    by_size = sorted(changes, key=lambda one: -one.relative)
    parts = Counter(component(one.name) for one in changes)
    listed = ", ".join(f"{count} of {part}" for part, count in parts.most_common())
    where = ", ".join(one.name for one in by_size[:_EXAMPLES])
    return Finding(
        "frozen-weights.changed"
        if tuned.from_adapter
        else "frozen-weights.changed-outside-adapter",
        Severity.ERROR if tuned.from_adapter else Severity.WARNING,
        f"{len(changes)} of {compared} weights that should be frozen differ from the base model's, "
        f"by up to {by_size[0].relative:.3g} of their norm ({listed}).",
        measured={
            "changed": len(changes),
            "compared": compared,
            "largest_relative_change": by_size[0].relative,
            "median_relative_change": by_size[len(by_size) // 2].relative,
            "components": tuple(f"{part}: {count}" for part, count in parts.most_common()),
        },
        expected="the base model's values, bit for bit",
        where=where,
        fix="freeze the model before the layers are converted, and train again from the base",
    )


def _relative_change(change: WeightChange, limits: Limits) -> float | None:
    """‖W' − W‖/‖W‖, or None where nothing but the precision changed."""
    if change.status == "same" or change.is_requantized:
        return None
    is_stored_alike = change.before == change.after
    if change.relative is None:
        # Numbers that are no weights have no norm; another type is another representation.
        return 1.0 if is_stored_alike else None
    if not is_stored_alike and change.relative <= limits.rounding:
        return None
    return change.relative
