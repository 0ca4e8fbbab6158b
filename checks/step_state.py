"""Whether a trainer trains what it means to train.

What it finds. A model that says it has an adapter and has none; adapters whose A or B is frozen;
parameters outside the adapter that would be trained; a model that trains nothing, or everything;
a class that replaces MLX's own bookkeeping of parameters.

Why it matters. A flag is no adapter. Without one, either nothing is trained, or the whole model
is, and a rate meant for LoRA ruins it in a few steps.

How it is measured. From the live model, before any step: the names of its parameters, which of
them MLX calls trainable, and the attributes that speak of an adapter. Quantized weights are counted
unpacked. MLX's own method is asked, not one that the model's class puts in its place.

When it is wrong. Training the whole model, or a head and new layers beside the adapter, is meant in
some trainers. Where nothing speaks of an adapter that is a note, no error.

What to do. Freeze the model first, convert its layers after that, and look at the share of
parameters that is trainable before the first step.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from mlxdoctor.check import check, limit
from mlxdoctor.finding import Measurement, Severity, Sign, Symptom
from mlxdoctor.measure.training_step.measurement import TrainingStep

_SOUND = "an adapter on the layers it was meant for, and nothing else trainable"
_error, _warning = (partial(one, expected=_SOUND) for one in (Symptom.error, Symptom.warning))


@dataclass(frozen=True)
class Limits:
    """When a share of parameters is worth a word."""

    named: int = limit(3, unit="names", source="enough to see the pattern")
    outside: float = limit(
        0.02,
        unit="share of the model's parameters, trainable outside its adapter",
        source="norms trained besides: at most 0.002; layers left unfrozen: at least 0.68",
        false_alarms="0 of 254 sound steps on four bases (reports/probe.md)",
    )


@check(
    codes={
        "claimed-adapter": _error(
            "the model says that it has an adapter, and has none",
            fix="convert its layers with mlx_lm.tuner.utils.linear_to_lora_layers",
        ),
        "nothing-trainable": _error(
            "no parameter is trainable",
            fix="convert the layers after model.freeze(), not before it",
        ),
        "outside-adapter": _error(
            "parameters outside the adapter are trainable",
            fix="call model.freeze() before the layers are converted",
        ),
        "half-frozen-adapter": _error(
            "A or B of an adapter is frozen", fix="freeze the model before its layers are converted"
        ),
        "everything-trainable": _error(
            "there is no adapter, and the model itself is trained",
            fix="freeze the model and convert its layers, unless it is to be trained as a whole",
        ),
        "own-bookkeeping": _warning(
            "the model's class replaces MLX's bookkeeping of parameters",
            fix="use freeze and unfreeze, which are made for that",
        ),
    },
    limits=Limits(),
)
def step_state(step: TrainingStep, limits: Limits) -> Iterator[Sign]:
    """Look at the model before the first step."""
    state = step.state
    measured: dict[str, Measurement] = {
        "adapters": len(state.adapters),
        "trainable": sum(state.trainable.values()),
        "frozen": sum(state.frozen.values()),
        "share": state.ratio,
        "outside_share": state.outside_share,
    }
    if not state.adapters and state.claims:
        yield Sign(
            "claimed-adapter",
            f"The model says that it has an adapter ({', '.join(state.claims[: limits.named])}), "
            f"but none of its parameters is one: no layer was converted.",
            measured,
        )
    if not measured["trainable"]:
        message = "No parameter is trainable: a step changes nothing."
        yield Sign("nothing-trainable", message, measured)
    elif state.adapters and state.outside:
        yield Sign(
            "outside-adapter",
            f"{len(state.outside)} parameters outside the adapter are trainable "
            f"({state.outside_share:.1%} of the model), such as "
            f"{', '.join([*state.outside][: limits.named])}.",
            measured,
            severity=None if state.outside_share > limits.outside else Severity.WARNING,
        )
    elif not state.adapters:
        yield Sign(
            "everything-trainable",
            f"There is no adapter, and {state.ratio:.1%} of the model's parameters is trainable.",
            measured,
            severity=None if state.claims else Severity.INFO,
        )
    if state.half_adapters:
        yield Sign(
            "half-frozen-adapter",
            f"A or B is frozen in {len(state.half_adapters)} of {len(state.adapters)} adapters, "
            f"such as {', '.join(state.half_adapters[: limits.named])}.",
            measured,
        )
    if state.overrides:
        yield Sign(
            "own-bookkeeping",
            f"The model's class has a {', '.join(state.overrides)} of its own: "
            f"nn.value_and_grad and the optimizer rely on MLX's.",
            measured,
        )
