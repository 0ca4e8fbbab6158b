"""What the known bugs of mlx-lm leave behind in a run: one function a signature.

A function returns what it saw, or None where the bug left no trace. None of them asks for
versions: that is the check's part. What they measure is computed from the artifacts, not
taken from another check.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np

from mlxdoctor.bugs.label_bugs import (
    empty_mask_nan,
    generation_prompt_appended,
    length_sort,
    mask_prompt_header,
    padding_target,
)
from mlxdoctor.bugs.sightings import Artifacts, Sighting, Signature
from mlxdoctor.bugs.trainer_traces import is_reinforce, reinforce_advantage
from mlxdoctor.evidence.adapter import Adapter
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.mlx_lm_defaults import MLX_LM_DEFAULTS
from mlxdoctor.finding import Measurement, Severity
from mlxdoctor.measure.weights.adapter_facts import factor_facts
from mlxdoctor.safety.quoting import MAX_LINE, quoted

#: What bits must divide for DoRA's reckoning of the inputs (bits a word).
_WORD = 32


def _leftover_accumulation(run: Artifacts) -> Sighting | None:
    config = run.config
    if config is None or not config.describes_training or config.iters is None:
        return None
    steps = config.grad_accumulation_steps or 1
    left = config.iters % steps if steps > 1 else 0
    if not left:
        return None
    measured: dict[str, Measurement] = {
        "iters": config.iters,
        "grad_accumulation_steps": steps,
        "updates": config.iters // steps,
        "left_over": left,
    }
    if config.iters < steps:
        if run.adapter is None or not run.adapter.modules or config.resume_adapter_file:
            return None
        if not all(one.b.is_zero for one in factor_facts(run.adapter)):
            return None
        return Sighting(
            Severity.ERROR,
            f"{config.iters} iterations with {steps} accumulation steps make no update at all, "
            f"and B is zero in all {len(run.adapter.modules)} modules.",
            measured,
            where=run.adapter.modules[0].name,
        )
    share = left / config.iters
    return Sighting(
        Severity.WARNING if share >= run.limits.left_over else Severity.INFO,
        f"{config.iters} iterations are not a multiple of {steps} accumulation steps: the "
        f"gradients of the last {left} ({share:.1%}) were never applied.",
        {**measured, "share": share},
    )


def _resume_strict_false(run: Artifacts) -> Sighting | None:
    if run.resumed is None or run.adapter is None:
        return None
    before, after = run.resumed.adapter, run.adapter
    lost = sorted(before.tensors.keys() - after.tensors.keys())
    if lost:
        kept = len(before.tensors) - len(lost)
        return Sighting(
            Severity.ERROR,
            f"{len(lost)} of the {len(before.tensors)} tensors in {before.path.name}, which the "
            f"run was resumed from, are not in the adapter it trained, and mlx-lm dropped them "
            f"without a word.",
            {"resumed_tensors": len(before.tensors), "loaded": kept, "dropped": tuple(lost[:3])},
            where=lost[0],
        )
    rank = run.config.rank if run.config is not None else None
    ranks = {one.name: one.rank for one in before.modules}
    taken = [one for one in after.modules if rank != one.rank == ranks.get(one.name)]
    if rank is None or not taken or len(taken) < len(after.modules):
        return None
    return Sighting(
        Severity.ERROR,
        f"The configuration asks for rank {rank}, and the tensors of rank {taken[0].rank} that the "
        f"run was resumed from took its place without a word.",
        {"configured_rank": rank, "resumed_rank": taken[0].rank, "modules": len(taken)},
        where=taken[0].name,
    )


def _load_adapters_unchecked(run: Artifacts) -> Sighting | None:
    if run.adapter is None or run.base is None or run.generations is None:
        return None
    modules = run.adapter.modules
    if not modules or any(run.base.module_for(one.name) is not None for one in modules):
        return None
    items = [one for one in run.generations.items if one.base is not None]
    if len(items) < run.limits.answers or any(one.base != one.tuned for one in items):
        return None
    return Sighting(
        Severity.ERROR,
        f"None of the {len(modules)} adapted modules has a name that the base model knows, and all "
        f"{len(items)} answers are the base model's: the adapter was loaded as if it fitted.",
        {"modules": len(modules), "answers": len(items)},
        where=modules[0].name,
    )


def _has_unknown_names(run: Artifacts) -> bool:
    if run.adapter is None or run.base is None:
        return False
    return any(run.base.module_for(one.name) is None for one in run.adapter.modules)


def _layers(adapter: Adapter) -> set[int]:
    return {one.layer for one in adapter.modules if one.layer is not None}


def _num_layers_ignored(run: Artifacts) -> Sighting | None:
    config = run.config
    if config is None or run.adapter is None or config.origin != "mlx-lm":
        return None
    asked = config.num_layers
    if asked is None or asked <= 0 or config.values.get("num_layers") is None:
        return None
    if any(".layers." in f".{key}" for key in config.keys or ()):
        # A key that is a whole name means that module, wherever it is.
        return None
    trained = _layers(run.adapter)
    if len(trained) <= asked:
        return None
    return Sighting(
        Severity.WARNING,
        f"The configuration asks for the last {asked} layers, and the adapter has factors in "
        f"{len(trained)}.",
        {"num_layers": asked, "adapted_layers": len(trained), "first_layer": min(trained)},
        where=f"layer {min(trained)}",
    )


def _lora_layers_ignored(run: Artifacts) -> Sighting | None:
    if run.config is None or run.adapter is None:
        return None
    old, new = (run.config.values.get(key) for key in ("lora_layers", "num_layers"))
    if type(old) is not int or type(new) is not int or old == new:
        return None
    total = run.base.num_layers if run.base is not None else None
    trained = len(_layers(run.adapter))
    if total is None:
        # More than were trained, or all, may be as many as the model has.
        ignored = trained == new and 0 < old < trained
    else:
        ignored = trained == _taken(new, total) != _taken(old, total)
    if not ignored:
        return None
    return Sighting(
        Severity.WARNING,
        f"The configuration says lora_layers: {old} and num_layers: {new}, and {trained} layers "
        f"were trained: mlx-lm reads only num_layers, {MLX_LM_DEFAULTS['num_layers']} where it "
        "is not given.",
        {"lora_layers": old, "num_layers": new, "adapted_layers": trained},
        where="lora_layers",
    )


def _taken(count: int, total: int) -> int:
    """How many of a model's layers a count means."""
    return min(count, total) if count > 0 else total


def _yaml(
    key: str, stated: tuple[object, ...], default: object
) -> Callable[[Artifacts], Sighting | None]:
    """A key of the YAML file that lost against the command line's own default."""

    def find(run: Artifacts) -> Sighting | None:
        if run.stated is None or run.config is None:
            return None
        asked, used = run.stated.values.get(key), run.config.values.get(key)
        if asked not in stated or used != default:
            return None
        name = run.stated.sources[0].path.name
        return Sighting(
            Severity.WARNING,
            f"{name} says {key}: {str(asked).lower()}, and the run was made with "
            f"{str(used).lower()}.",
            {"stated": str(asked).lower(), "used": str(used).lower()},
            where=key,
        )

    return find


def _nan_from_the_start(run: Artifacts) -> Sighting | None:
    segment = run.log.main if run.log is not None else None
    train = segment.get("train_loss") if segment is not None else None
    if segment is None or train is None or not len(train):
        return None
    start = segment.base_val_loss
    broken = start is not None and not math.isfinite(start)
    if not broken and np.isfinite(train.values).any():
        return None
    return Sighting(
        Severity.ERROR,
        "The validation loss before the first update is not finite."
        if broken
        else f"All {len(train)} training losses are not finite, the first one included.",
        {"reports": len(train), "first_val_loss": start},
    )


def _dora_odd_bits(run: Artifacts) -> Sighting | None:
    if run.base is None or run.log is None or not _is_dora(run):
        return None
    odd = sorted({one.bits for one in run.base.quantized.values() if _WORD % one.bits})
    stopped = [one for one in run.log.failures if "shape" in one.text or "matmul" in one.text]
    if not odd or not stopped:
        return None
    bits = ", ".join(str(one) for one in odd)
    return Sighting(
        Severity.ERROR,
        f"DoRA on a base of {bits} bits, and training broke off over shapes: "
        f"{quoted(stopped[0].text, MAX_LINE)}",
        {"bits": tuple(odd), "line": stopped[0].line_number},
        where=f"line {stopped[0].line_number} of the log",
    )


def error_message(run: Artifacts, pattern: re.Pattern[str]) -> Sighting | None:
    """The message of a bug at the end of the log, None where the log ends otherwise."""
    if run.log is None:
        return None
    last = run.log.main.last_line
    seen = [one for one in run.log.failures if one.line_number > last and pattern.search(one.text)]
    if not seen:
        return None
    return Sighting(
        Severity.ERROR,
        f"The log ends with the message of a known bug: {quoted(seen[0].text, MAX_LINE)}",
        {"line": seen[0].line_number, "text": quoted(seen[0].text, MAX_LINE)},
        where=f"line {seen[0].line_number} of the log",
    )


def _told(holds: Callable[[TrainingConfig], object]) -> Callable[[Artifacts], bool]:
    """Whether a run's configuration is known, and says something."""
    return lambda run: run.config is not None and bool(holds(run.config))


_always = _told(lambda _: True)
_is_dora = _told(lambda config: config.fine_tune_type == "dora")
_masks = _told(lambda config: config.mask_prompt)
_from_yaml = _told(lambda config: config.values.get("config"))


#: Name in known_bugs.toml -> how it is recognised.
SIGNATURES: Mapping[str, Signature] = MappingProxyType(
    {
        "padding-target": Signature(padding_target, _always),
        "length-sort": Signature(length_sort, _always, harmless=True),
        "leftover-accumulation": Signature(
            _leftover_accumulation,
            _told(lambda config: (config.grad_accumulation_steps or 1) > 1),
        ),
        "resume-strict-false": Signature(
            _resume_strict_false, _told(lambda config: config.resume_adapter_file)
        ),
        "load-adapters-unchecked": Signature(_load_adapters_unchecked, _has_unknown_names),
        "num-layers-ignored": Signature(
            _num_layers_ignored, _told(lambda config: (config.num_layers or 0) > 0)
        ),
        "lora-layers-ignored": Signature(
            _lora_layers_ignored, _told(lambda config: "lora_layers" in config.values)
        ),
        "yaml-fine-tune-type-ignored": Signature(
            _yaml("fine_tune_type", ("dora", "full"), "lora"), _from_yaml
        ),
        "yaml-mask-prompt-ignored": Signature(_yaml("mask_prompt", (True,), False), _from_yaml),
        "seed-zero-ignored": Signature(None, _told(lambda config: config.seed == 0)),
        "nan-from-the-start": Signature(_nan_from_the_start, lambda run: run.log is not None),
        "empty-mask-nan": Signature(empty_mask_nan, _masks),
        "mask-prompt-header": Signature(mask_prompt_header, _masks, harmless=True),
        "generation-prompt-appended": Signature(
            generation_prompt_appended,
            lambda run: run.rows is not None and run.rows.format in ("chat", "completions"),
            harmless=True,
        ),
        "dora-odd-bits": Signature(_dora_odd_bits, _is_dora),
        "reinforce-advantage": Signature(reinforce_advantage, _told(is_reinforce)),
        # Of a trainer's code: the linter and the probe see them.
        "in-code": Signature(None, lambda _: False),
        # Whoever met one knows it: the command did not end.
        "error-message": Signature(None, lambda _: False),
    }
)
