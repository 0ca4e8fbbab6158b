"""Whether a planned run fits its base model: the modules it names, and the precision.

What it finds. Before a run: keys of `lora_parameters` that no module of the base model has, and
half precision on a processor without a graphics card.

Why it matters. mlx-lm passes over a key that it finds no module for: with none left, no LoRA layer
is made and nothing is trained. Half precision on a processor is ten times slower than float32.

How it is measured. By the names and types in the headers of the base model's weights. A graphics
card is one of Apple's, or one that MLX's CUDA package is installed for.

When it is wrong. On another machine than the one that will train: `--elsewhere` says so.

What to do. Write names as they stand within a layer, such as `self_attn.q_proj`.
"""

from collections.abc import Iterator

from mlxdoctor.check import DoesNotArise, check
from mlxdoctor.evidence.adapter import layer_of
from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.planned_run import PlannedRun
from mlxdoctor.finding import Sign, Symptom, some_of
from mlxdoctor.measure.weights.lora_targets import matches, target_modules

_NAMES = "names of the base model's modules, such as self_attn.q_proj"
_FIX = "[write {meant}|look the names up with `mlxdoctor inspect`]"


@check(
    codes={
        "no-target": Symptom.error(
            "no module of the base model has a name that lora_parameters.keys states",
            says="No module of the base model is called {names}: no LoRA layer would be made, and "
            "nothing trained.",
            expected=_NAMES,
            fix=_FIX,
        ),
        "some-no-target": Symptom.warning(
            "a key of lora_parameters.keys is no module of the base model",
            says="No module of the base model is called {names}: mlx-lm passes over {unmatched} of "
            "{keys:* key}.",
            expected=_NAMES,
            fix=_FIX,
        ),
        "half-precision-on-cpu": Symptom.warning(
            "half precision is many times slower than float32 on a processor",
            says="{half} of the base model's {tensors:* tensor} are of half precision, and no "
            "graphics card for MLX was found here: on a processor that is ten times slower than "
            "float32.",
            expected="a float32 model where there is no graphics card",
            fix="convert the model with `mlx_lm.convert --dtype float32`, or train where MLX has a "
            "graphics card",
        ),
    },
)
def planned_targets(planned: PlannedRun, base: BaseModel) -> Iterator[Sign]:
    """Look the names up, and the numbers' type."""
    if planned.config.origin != "mlx-lm":
        raise DoesNotArise("the configuration is not one of mlx_lm.lora")
    yield from _targets(planned.config, base)
    types = [one.dtype for one in base.tensors.values()]
    half = sum(one in ("F16", "BF16") for one in types)
    if half > len(types) / 2 and not planned.has_gpu:
        yield Sign("half-precision-on-cpu", {"half": half, "tensors": len(types)})


def _targets(config: TrainingConfig, base: BaseModel) -> Iterator[Sign]:
    keys = config.keys
    if keys is None or config.fine_tune_type == "full" or base.num_layers is None:
        return
    modules = list(base.linear_shapes)
    lost = [key for key in keys if not any(matches(key, name, config) for name in modules)]
    if not lost:
        return
    # The names of modules within their layer, as mlx-lm's keys have them.
    within = {name for layer, name in map(layer_of, modules) if layer is not None}
    near = {name.rpartition(".")[2]: name for name in within}
    meant = [near[key] for key in lost if key in near]
    is_none = len(lost) == len(keys) and not target_modules(config, base)
    yield Sign(
        "no-target" if is_none else "some-no-target",
        {
            "keys": len(keys),
            "unmatched": len(lost),
            "names": some_of(lost),
            "meant": some_of(meant) if meant else None,
        },
        where="lora_parameters.keys",
    )
