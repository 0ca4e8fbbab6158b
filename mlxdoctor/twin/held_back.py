"""The settings that may hold a run back, each changed back to one that learns."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.mlx_lm_defaults import MLX_LM_LORA_DEFAULTS
from mlxdoctor.judge.rate import planned_rates
from mlxdoctor.judge.remedy import scaled_schedule
from mlxdoctor.twin.settings import Settings

#: A dropout that is a fault by itself: trainers use 0 to 0.3.
UNUSUAL = 0.5


def updates_of(settings: Settings) -> int:
    """How often the run changes its weights."""
    return max(settings.iters // settings.grad_accumulation_steps, 1)


def highest_rate(settings: Settings) -> float:
    """The rate that the run states; of a schedule, the highest that it comes to."""
    config = TrainingConfig((), Path("plan"), settings.stated(), "mlx-lm")
    rates = planned_rates(config, updates_of(settings))
    return settings.learning_rate if rates is None else float(rates.max())


def changed_back(own: Settings, reference: Settings, rate: float) -> Iterator[tuple[str, Settings]]:
    """The run's settings with one of them changed back, and its name, in the order to try them.

    Args:
        own: the run's.
        reference: settings that learn, on the same rows.
        rate: one at which they do.
    """
    peak, schedule, lora = highest_rate(own), own.lr_schedule, own.lora_parameters
    # The batches of an update first, since all others take as many.
    changes: list[tuple[str, dict[str, Any]]] = [
        ("grad_accumulation_steps", {"grad_accumulation_steps": 1}),
        ("lr_schedule", {"lr_schedule": None, "learning_rate": peak}),
    ]
    if schedule and peak > 0 and (scaled := scaled_schedule(schedule, rate / peak)):
        changes.append(("learning_rate", {"lr_schedule": {**schedule, "arguments": scaled}}))
    if own.optimizer != "adam" or own.optimizer_config.get("adam"):
        changes.append(("optimizer", {"optimizer": "adam", "optimizer_config": {}}))
    name = "lr_schedule" if schedule else "learning_rate"
    changes.append((name, {"lr_schedule": None, "learning_rate": rate}))
    if lora is not None:
        every = {key: value for key, value in lora.items() if key != "keys"}
        # Whoever states keys leaves modules out.
        changes.insert(1, ("lora_parameters.keys", {"lora_parameters": every}))
        undropped = {"lora_parameters": {**lora, "dropout": 0.0}}
        # What a large one does no rate makes good.
        place = 0 if lora["dropout"] >= UNUSUAL else len(changes)
        changes.insert(place, ("lora_parameters.dropout", undropped))
        scaled_lora = {**lora, "scale": MLX_LM_LORA_DEFAULTS["scale"]}
        changes.append(("lora_parameters.scale", {"lora_parameters": scaled_lora}))
        changes.append(("lora_parameters", {"lora_parameters": reference.lora_parameters}))
    changes += [("num_layers", {"num_layers": -1})]
    changes += [("max_seq_length", {"max_seq_length": reference.max_seq_length})]
    for name, values in changes:
        if (changed := replace(own, **values)) != own:
            yield name, changed


def shown(settings: Settings, name: str) -> str:
    """The value of a setting, as a sentence names it."""
    table, _, key = name.rpartition(".")
    value = getattr(settings, table).get(key) if table else getattr(settings, key)
    if key == "keys":
        return ", ".join(map(str, value)) if value else "those of mlx-lm"
    if name == "learning_rate":
        return f"{highest_rate(settings):g}"
    if name == "lr_schedule":
        if value is None:
            return f"a constant rate of {settings.learning_rate:.2g}"
        warmup = value.get("warmup")
        return f"{value.get('name', '')}" + (f" with {warmup:,} warm-up updates" if warmup else "")
    if name == "optimizer":
        options = settings.optimizer_config.get(settings.optimizer, {})
        shown = ", ".join(f"{key} {value}" for key, value in options.items())
        return f"{value} ({shown})" if shown else str(value)
    if name == "lora_parameters":
        return f"rank {value.get('rank')}, scale {value.get('scale')}"
    return f"{value:,}" if isinstance(value, int) else str(value)
