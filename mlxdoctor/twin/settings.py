"""What a training run is told to do: the keys of `mlx_lm.lora`, and one table of our own."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import Field, dataclass, field, fields
from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType, NoneType, UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.json_text import whole
from mlxdoctor.evidence.mlx_lm_defaults import (
    MEANT,
    MLX_LM_DEFAULTS,
    MLX_LM_LORA_DEFAULTS,
    NEEDS,
    OPTIMIZERS,
)
from mlxdoctor.safety.errors import InputError

#: The key of our own table in a configuration; mlx-lm ignores it.
TABLE = "mlxdoctor"

_NUMBERS = {int: "a whole number", float: "a number"}
_KINDS: Mapping[type[Any], str] = MappingProxyType(
    {**_NUMBERS, bool: "true or false", str: "text", Mapping: "a table"}
)

#: Characters of a wrong value that its refusal shows.
MAX_SHOWN = 80
_D = MLX_LM_DEFAULTS


def _option(default: Any, help: str, at_least: float | None = None, *, ours: bool = False) -> Any:
    """A setting: its default, what it means, the smallest value that makes sense.

    Args:
        ours: mlx-lm has no such key; it stands in the table `mlxdoctor:` of a configuration.
    """
    metadata = {"help": help, "at_least": at_least, "ours": ours}
    if isinstance(default, Mapping):
        return field(default_factory=lambda: MappingProxyType(default), metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True)
class Settings:
    """One run: `mlx_lm.lora`'s keys with its defaults (0.32.2), and the table `mlxdoctor:`."""

    model: str = _option("Qwen/Qwen3-0.6b", "The base model: a folder.")
    train: bool = _option(False, "Accepted; this trainer always trains.")
    fine_tune_type: Literal["lora", "dora", "full"] = _option(
        _D["fine_tune_type"], "What is trained."
    )
    optimizer: Literal["adam", "adamw", "muon", "sgd", "adafactor"] = _option(
        _D["optimizer"], "The optimizer, with MLX's defaults."
    )
    optimizer_config: Mapping[str, Mapping[str, Any]] = _option(
        {name: {} for name in OPTIMIZERS}, "Options of each optimizer, by its name."
    )
    data: str = _option("mlx-community/WikiSQL", "A folder of train, valid and test.jsonl.")
    seed: int = _option(_D["seed"], "Of adapter weights, dropout and the order of batches.")
    num_layers: int = _option(
        _D["num_layers"], "How many of the last layers are trained; -1 for all."
    )
    batch_size: int = _option(_D["batch_size"], "Rows a batch, over all processes.")
    iters: int = _option(_D["iters"], "Batches to train on.")
    val_batches: int = _option(_D["val_batches"], "Batches a validation; -1 for all.")
    learning_rate: float = _option(
        _D["learning_rate"], "The rate, unless there is a schedule.", 0.0
    )
    steps_per_report: int = _option(
        _D["steps_per_report"], "Iterations between two printed reports."
    )
    steps_per_eval: int = _option(_D["steps_per_eval"], "Iterations between two validations.")
    resume_adapter_file: str | None = _option(None, "Adapter weights to start from.")
    adapter_path: str = _option("adapters", "The folder that is written.")
    save_every: int = _option(_D["save_every"], "Iterations between two checkpoints.")
    test: bool = _option(False, "Evaluate on the test split at the end.")
    test_batches: int = _option(500, "Batches of that evaluation; -1 for all.", -1)
    max_seq_length: int = _option(_D["max_seq_length"], "Tokens after which a row is cut.")
    config: str | None = _option(None, "The file these settings came from.")
    grad_checkpoint: bool = _option(False, "Recompute activations in the backward pass.")
    grad_accumulation_steps: int = _option(_D["grad_accumulation_steps"], "Batches an update.")
    clear_cache_threshold: int = _option(0, "Free cached memory over this after a step, bytes.", 0)
    lr_schedule: Mapping[str, Any] | None = _option(
        None, "name, arguments, warmup and warmup_init; counted in updates."
    )
    lora_parameters: Mapping[str, Any] | None = _option(
        MLX_LM_LORA_DEFAULTS, "rank, scale, dropout and keys."
    )
    mask_prompt: bool = _option(_D["mask_prompt"], "Leave the prompt out of the loss.")
    report_to: str | None = _option(None, "Accepted; metrics.jsonl has the figures.")
    project_name: str | None = _option(None, "Accepted; belongs to report_to.")
    trust_remote_code: bool = _option(False, "Accepted; code that comes with a model is never run.")
    hf_dataset: Mapping[str, Any] | list[Any] | None = field(
        default=None,
        metadata={"help": "Refused: nothing is downloaded.", "at_least": None, "ours": False},
    )
    prompt_feature: str | None = _option(None, "The rows' key of the prompt.")
    completion_feature: str | None = _option(None, "The rows' key of the completion.")
    chat_feature: str | None = _option(None, "The rows' key of the messages.")
    text_feature: str | None = _option(None, "The rows' key of the text.")
    mode: Literal["exact", "parity"] = _option(
        "exact",
        "exact: correct masks and averages; parity: batch for batch as mlx-lm does.",
        ours=True,
    )
    grad_clip: float | None = _option(
        None, "Largest gradient norm; larger ones are scaled.", 0.0, ours=True
    )

    @property
    def is_exact(self) -> bool:
        """Whether masks, averages and order are the correct ones rather than mlx-lm's."""
        return self.mode == "exact"

    @classmethod
    def read(cls, path: Path, overrides: Iterable[str] = ()) -> Settings:
        """Read a training configuration of mlx-lm: YAML, JSON or an `adapter_config.json`.

        Args:
            path: the file, or a folder with an `adapter_config.json`.
            overrides: `key=value` or `mlxdoctor.key=value`, the value as JSON or plain text.

        Raises:
            InputError: the file is unusable, or a key or value is not one of mlx-lm's.
        """
        config = TrainingConfig.read(path)
        if config.origin != "mlx-lm":
            remedy = "write one with the keys of `mlx_lm.lora`"
            raise InputError(path, "is a PEFT configuration", remedy)
        values = {**config.values, "config": str(config.path)}
        for text in overrides:
            _override(values, text)
        return cls.from_values(values, config.path)

    @classmethod
    def from_values(cls, values: Mapping[str, Any], path: Path | None = None) -> Settings:
        """Settings from keys and values; a value of None stands for the default, as in mlx-lm.

        Args:
            values: mlx-lm's keys, and `mlxdoctor` for a mapping of ours.
            path: the file to name in errors.

        Raises:
            InputError: a key is unknown, or a value has the wrong type or is out of range.
        """
        table = values.get(TABLE)
        if not isinstance(table, Mapping | None):
            raise InputError(path, f"{TABLE} is not a table of keys and values")
        stated = {k: v for k, v in values.items() if v is not None and k != TABLE}
        own = {key: value for key, value in (table or {}).items() if value is not None}
        arguments = _checked(stated, path, ours=False) | _checked(own, path, ours=True)
        if arguments.get("fine_tune_type") == "full":
            arguments["lora_parameters"] = None
        settings = cls(**arguments)
        _check_lora(settings, path)
        return settings

    def stated(self) -> dict[str, Any]:
        """The keys and values of an `adapter_config.json`: mlx-lm's, and ours under one key."""
        values: dict[str, Any] = {}
        changed: dict[str, Any] = {}
        for option in fields(self):
            value = getattr(self, option.name)
            if option.metadata["ours"]:
                changed |= {option.name: value} if value != option.default else {}
            # mlx-lm has no default for these: they are absent where nobody states them.
            elif value is not None or not option.name.endswith(("_feature", "hf_dataset")):
                values[option.name] = _plain(value)
        return {**values, TABLE: changed} if changed else values


def _override(values: dict[str, Any], text: str) -> None:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise InputError(None, f"{text!r} is not KEY=VALUE", "write --set iters=50")
    try:
        parsed = json.loads(value, parse_int=whole)
    except (ValueError, RecursionError):
        parsed = value
    *tables, key = name.split(".")
    for table in tables:
        inner = values.get(table)
        values[table] = dict(inner) if isinstance(inner, Mapping) else {}
        values = values[table]
    values[key] = parsed


def _checked(stated: Mapping[str, Any], path: Path | None, *, ours: bool) -> dict[str, Any]:
    """The values, each of the type and range its field asks for."""
    options = {
        option.name: option for option in fields(Settings) if option.metadata["ours"] is ours
    }
    hints = get_type_hints(Settings)
    for key in stated:
        if key not in options:
            raise InputError(path, f"has the unknown key {key!r}", _hint(str(key), options))
    return {key: _value(options[key], hints[key], value, path) for key, value in stated.items()}


def _hint(key: str, names: Iterable[str]) -> str:
    if key in {option.name for option in fields(Settings) if option.metadata["ours"]}:
        return f"it belongs under `{TABLE}:`"
    close = get_close_matches(key, list(names), n=1)
    meant = MEANT.get(key) or next(iter(close), None)
    return f"did you mean {meant!r}?" if meant else "remove it"


def _value(option: Field[Any], hint: Any, value: Any, path: Path | None) -> Any:
    """The value, or a refusal that says what it must be."""
    asked, least = None, option.metadata["at_least"]
    need = NEEDS.get(option.name)
    if get_origin(hint) is Literal:
        value = value.lower() if isinstance(value, str) else value
        if value not in get_args(hint):
            asked = f"one of {', '.join(get_args(hint))}"
    else:
        options = get_args(hint) if get_origin(hint) is UnionType else (hint,)
        kinds: list[Any] = [get_origin(kind) or kind for kind in options if kind is not NoneType]
        if float in kinds and type(value) is int:
            value = float(value)
        if need is not None and not need.holds(value):
            asked = need.text
        elif not isinstance(value, tuple(kinds)) or (isinstance(value, bool) and bool not in kinds):
            asked = _KINDS[kinds[0]]
        elif least is not None and not value >= least:
            asked = f"at least {least:g}"
    if asked is not None:
        raise InputError(path, f"{option.name} is {_shown(value)}", f"it must be {asked}")
    return value


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…"


def _check_lora(settings: Settings, path: Path | None) -> None:
    if settings.num_layers == 0 and settings.is_exact:
        problem = "num_layers is 0, which mlx-lm takes for all layers"
        remedy = "write -1 for all layers, or how many of the last ones to train"
        raise InputError(path, problem, remedy)
    stated, known = settings.lora_parameters, {"rank", "scale", "dropout", "keys"}
    if stated is None:
        return
    if "alpha" in stated:
        remedy = "mlx-lm multiplies by scale, which is alpha / rank"
        raise InputError(path, "lora_parameters has alpha", remedy)
    for key in sorted(stated.keys() - known, key=str):
        problem = f"lora_parameters has the unknown key {key!r}"
        raise InputError(path, problem, _hint(str(key), known))
    if missing := sorted(known - {"keys"} - stated.keys()):
        problem = f"lora_parameters lacks {', '.join(missing)}"
        remedy = "mlx-lm fills in the whole table or nothing: state them"
        raise InputError(path, problem, remedy)
    for name in ("rank", "scale", "dropout", "keys"):
        value, need = stated.get(name), NEEDS[f"lora_parameters.{name}"]
        if not (need.holds(value) or (name == "keys" and value is None)):
            problem = f"lora_parameters.{name} is {_shown(value)}"
            raise InputError(path, problem, f"it must be {need.text}")


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, list | tuple) else value
