"""Whether a trainer trains what it means to train.

What it finds. A model that has no adapter where one is expected; adapters whose A or B is frozen;
parameters outside the adapter that would be trained; a model that trains nothing, or only a part
of what is expected; a class that replaces MLX's own bookkeeping of parameters.

Why it matters. A flag is no adapter. Without one, either nothing is trained, or the whole model
is, and a rate meant for LoRA ruins it in a few steps.

How it is measured. From the live model, before any step: the names of its parameters, which of
them MLX calls trainable, and the attributes that speak of an adapter. Quantized weights are counted
unpacked. MLX's own method is asked, not one that the model's class puts in its place.

When it is wrong. Training the whole model, or a head and new layers beside the adapter, is meant in
some trainers: say expect="full" then. Where nothing was said and nothing speaks of an adapter, a
model that is trained as a whole is a warning, and one of which most is frozen a note.

What to do. Freeze the model first, convert its layers after that, and look at the share of
parameters that is trainable before the first step.
"""

from collections.abc import Iterator
from functools import partial

from mlxdoctor.check import check
from mlxdoctor.finding import Measurement, Severity, Sign, Symptom, some_of
from mlxdoctor.measure.training_step.measurement import TrainingStep

_SOUND = "an adapter on the layers it was meant for, and nothing else trainable"
_error = partial(Symptom.error, expected=_SOUND)

#: Above this share of the parameters the model itself is trained; a head or an encoder of its own
#: is a smaller part of it, and the rest was frozen on purpose.
WHOLE = 0.5
#: Share of the model's parameters that is trainable outside its adapter: norms trained besides have
#: at most 0.002, layers left unfrozen at least 0.68 (0 of 254 sound steps on four bases above,
#: reports/probe.md).
OUTSIDE = 0.02


@check(
    codes={
        "frozen": _error(
            "parameters are frozen that are to be trained",
            says="[A or B is frozen in {half_frozen} of {adapters:* adapter}, such as {examples}|"
            "No parameter is trainable{nothing}: a step changes nothing|{frozen_share:.1%} of the "
            "parameters is frozen although the model itself is to be trained].",
            fix="[call model.unfreeze() before the steps, unless these parts are to stay{whole}|"
            "freeze the model before its layers are converted, not after that]",
        ),
        "outside-adapter": _error(
            "parameters outside the adapter are trainable",
            says="{outside:* trainable parameter is/trainable parameters are} outside the adapter "
            "({outside_share:.1%} of the model), such as {examples}.",
            fix="call model.freeze() before the layers are converted",
        ),
        "no-adapter": _error(
            "there is no adapter",
            says="[The model says that it has an adapter ({claims}), but none|None] of the model's "
            "parameters belongs to an adapter[, and {share:.1%} of them is trainable: {modules}].",
            fix="freeze the model and convert its layers with "
            'mlx_lm.tuner.utils.linear_to_lora_layers; pass expect="full" if the whole model is to '
            "be trained",
        ),
        "own-bookkeeping": Symptom.warning(
            "the model's class replaces MLX's bookkeeping of parameters",
            expected="a model that leaves freezing to MLX",
            says="The model's class has a {overrides} of its own: nn.value_and_grad and the "
            "optimizer rely on MLX's.",
            fix="use freeze and unfreeze, which are made for that",
        ),
    },
)
def step_state(step: TrainingStep) -> Iterator[Sign]:
    state = step.state
    expected, adapters = state.expected, len(state.adapters)
    measured: dict[str, Measurement] = {
        "trainable": sum(state.trainable.values()),
        "frozen": sum(state.frozen.values()),
        "share": state.ratio,
        "frozen_share": 1 - state.ratio,
        "outside_share": state.outside_share,
        "expected": expected,
        "adapters": adapters,
        "modules": some_of([f"{name} ({count:,})" for name, count in state.trainable.items()])
        or None,
        "claims": some_of(state.claims) or None,
    }
    is_any, half = any(state.trainable.values()), state.half_adapters
    if not is_any:
        yield Sign("frozen", {**measured, "nothing": ""})
    elif expected == "full" and any(state.frozen.values()):
        # Some frozen layers are common in full training; an adapter in it is suspicious.
        partly = Severity.WARNING if adapters else Severity.INFO
        yield Sign("frozen", {**measured, "whole": ""}, severity=partly)
    elif expected == "adapter" and adapters and state.outside:
        measured |= {"outside": len(state.outside), "examples": some_of(tuple(state.outside))}
        severity = None if state.outside_share > OUTSIDE else Severity.WARNING
        yield Sign("outside-adapter", measured, severity=severity)
    if not adapters and expected != "full" and (state.claims or is_any):
        # Where nothing was said, a head of its own may be all that is trained.
        unsaid = Severity.WARNING if state.ratio > WHOLE else Severity.INFO
        yield Sign("no-adapter", measured, severity=unsaid if expected is None else None)
    if half:
        yield Sign("frozen", {**measured, "half_frozen": len(half), "examples": some_of(half)})
    if state.overrides:
        yield Sign("own-bookkeeping", {**measured, "overrides": state.overrides})
