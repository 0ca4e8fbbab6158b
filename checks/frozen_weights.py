"""Whether weights that were to stay frozen were changed.

What it finds. Weights of the base model that have other values after the run: in a file
of full weights saved in the adapter's place, among the tensors saved beside the LoRA
factors, or in a fused model outside the modules that the adapter changes.

Why it matters. LoRA's promise is that the base model stays what it was. A run that
changed it trained something else than its configuration says, at a rate meant for
factors that start at zero.

How it is measured. Tensor by tensor, in blocks, bit for bit. Where the bits differ the
relative change ‖W' − W‖/‖W‖ is computed. Weights stored in another precision count as
unchanged if the difference is within that precision's rounding, quantised ones if it is
within twice what rounding to their codes adds on average.

When it is wrong. A base folder of another revision than the one trained on looks
changed.

What to do. Freeze the model before the layers are converted. Throw the file away: the
base model inside it is damaged.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from mlxdoctor.check import Cost, DoesNotArise, Inconclusive, NotApplicable, check, limit
from mlxdoctor.evidence.adapter import Adapter
from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.tuned_model import TunedModel
from mlxdoctor.finding import Seen, Sign, Symptom
from mlxdoctor.measure.weights.changed_tensors import WeightChange, component, weight_changes

_EXAMPLES = 3
_SAYS = (
    "{changed} of {compared} weights that should be frozen differ from the base model's, by up to "
    "{largest_relative_change:.3g} of their norm ({components})."
)
_FREEZE = "freeze the model before the layers are converted, and train again from the base"


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
    quantized: float = limit(
        2.0,
        unit="times the average of rounding to a quantised weight's codes",
        source="rounding alone measured 1.00 to 1.12 at 2 to 8 bits",
        false_alarms="0 of 64 sound fusions",
    )


@check(
    codes={
        "changed": Symptom.error(
            "weights that should be frozen have other values than the base model's",
            says=_SAYS,
            expected="the base model's values, bit for bit",
            fix=_FREEZE,
        ),
        "changed-outside-adapter": Symptom.warning(
            "a fused model differs where its adapter changes nothing",
            says=_SAYS,
            expected="the base model's values, but for rounding",
            fix=_FREEZE,
        ),
    },
    cost=Cost.WEIGHTS,
    limits=Limits(),
    rerun_symptom=True,
)
def frozen_weights(
    tuned: TunedModel,
    base: BaseModel,
    config: TrainingConfig | None,
    adapter: Adapter | None,
    limits: Limits,
) -> Iterator[Sign | Seen]:
    """Compare full weights with the base model's."""
    if config is not None and config.fine_tune_type == "full":
        raise DoesNotArise("a full fine-tune changes weights on purpose")
    adapted = {module.name for module in adapter.modules} if adapter is not None else set()
    if not tuned.from_adapter and not adapted:
        raise NotApplicable("which weights of the fused model should differ is not known")
    saved = config.values.get("modules_to_save") if config is not None else None
    intended = tuple(map(str, saved)) if isinstance(saved, list) else ()
    modules = {name: name.rpartition(".")[0] for name in tuned.tensors}
    free = {
        name
        for name, module in modules.items()
        if module.endswith(intended) or (module in adapted and not tuned.from_adapter)
    }
    compared = 0
    relative: dict[str, float] = {}
    for change in weight_changes(base, tuned, leave_out=free):
        if change.status in ("same", "changed"):
            compared += 1
            if (moved := _relative_change(change, limits)) is not None:
                relative[change.name] = moved
    if not compared:
        raise Inconclusive("no tensor has the name and shape of one in the base model")
    if not relative:
        yield Seen(
            "The {compared} weights that were to stay frozen are the base model's.",
            {"compared": compared},
        )
        return
    names = sorted(relative, key=lambda name: -relative[name])
    parts = Counter(component(name) for name in relative).most_common()
    yield Sign(
        "changed" if tuned.from_adapter else "changed-outside-adapter",
        {
            "changed": len(names),
            "compared": compared,
            "largest_relative_change": relative[names[0]],
            "median_relative_change": relative[names[len(names) // 2]],
            "components": tuple(f"{part}: {count}" for part, count in parts),
        },
        where=", ".join(names[:_EXAMPLES]),
    )


def _relative_change(change: WeightChange, limits: Limits) -> float | None:
    """‖W' − W‖/‖W‖, or None where nothing but the precision changed."""
    if change.status == "same":
        return None
    is_stored_alike = change.before == change.after
    if change.relative is None:
        # Numbers that are no weights have no norm; another type is another representation.
        return 1.0 if is_stored_alike else None
    rounding = max(limits.quantized * change.rounding, limits.rounding)
    if not is_stored_alike and change.relative <= rounding:
        return None
    return change.relative
