"""What a training run is told to do: the keys of `mlx_lm.lora`, and one table of our own."""

import copy
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
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
from mlxdoctor.finding import plain
from mlxdoctor.judge.remedy import assign
from mlxdoctor.safety.errors import InputError

#: The key of our own table in a configuration; mlx-lm ignores it.
TABLE = "mlxdoctor"

_KINDS: Mapping[type[Any], str] = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    Mapping: "a table",
}
#: Characters of a wrong value that its refusal shows.
MAX_SHOWN = 80
#: Settings that stand in our own table.
OURS = frozenset({"mode", "grad_clip"})
#: The least value of settings of which `NEEDS` says none.
_LEAST: Mapping[str, Any] = {
    "learning_rate": 0,
    "test_batches": -1,
    "clear_cache_threshold": 0,
    "grad_clip": 0,
}
_D = MLX_LM_DEFAULTS


@dataclass(frozen=True)
class Settings:
    """One run: `mlx_lm.lora`'s keys with its defaults (0.32.2), and two in the table `mlxdoctor:`.

    Attributes:
        model, data: folders.
        num_layers: how many of the last layers are trained; -1 for all.
        iters: batches to train on.
        val_batches, test_batches: of each evaluation; -1 for all.
        grad_accumulation_steps: batches an update.
        clear_cache_threshold: bytes that MLX may keep from one step to the next.
        lr_schedule: name, arguments, warmup and warmup_init; counted in updates.
        train, report_to, project_name, trust_remote_code: accepted, and without effect.
        hf_dataset: refused; nothing is downloaded.
        mode: exact: correct masks and averages; parity: batch for batch as mlx-lm does.
        grad_clip: largest gradient norm; larger ones are scaled.
    """

    model: str = "Qwen/Qwen3-0.6b"
    train: bool = False
    fine_tune_type: Literal["lora", "dora", "full"] = _D["fine_tune_type"]
    optimizer: Literal["adam", "adamw", "muon", "sgd", "adafactor"] = _D["optimizer"]
    optimizer_config: Mapping[str, Mapping[str, Any]] = field(
        default_factory=lambda: MappingProxyType({name: {} for name in OPTIMIZERS})
    )
    data: str = "mlx-community/WikiSQL"
    seed: int = _D["seed"]
    num_layers: int = _D["num_layers"]
    batch_size: int = _D["batch_size"]
    iters: int = _D["iters"]
    val_batches: int = _D["val_batches"]
    learning_rate: float = _D["learning_rate"]
    steps_per_report: int = _D["steps_per_report"]
    steps_per_eval: int = _D["steps_per_eval"]
    resume_adapter_file: str | None = None
    adapter_path: str = "adapters"
    save_every: int = _D["save_every"]
    test: bool = False
    test_batches: int = 500
    max_seq_length: int = _D["max_seq_length"]
    config: str | None = None
    grad_checkpoint: bool = False
    grad_accumulation_steps: int = _D["grad_accumulation_steps"]
    clear_cache_threshold: int = 0
    lr_schedule: Mapping[str, Any] | None = None
    lora_parameters: Mapping[str, Any] | None = field(default_factory=lambda: MLX_LM_LORA_DEFAULTS)
    mask_prompt: bool = _D["mask_prompt"]
    report_to: str | None = None
    project_name: str | None = None
    trust_remote_code: bool = False
    hf_dataset: Mapping[str, Any] | list[Any] | None = None
    prompt_feature: str | None = None
    completion_feature: str | None = None
    chat_feature: str | None = None
    text_feature: str | None = None
    mode: Literal["exact", "parity"] = "exact"
    grad_clip: float | None = None

    @property
    def is_exact(self) -> bool:
        """Whether masks, averages and order are the correct ones rather than mlx-lm's."""
        return self.mode == "exact"

    @classmethod
    def read(cls, path: Path, overrides: Iterable[str] = ()) -> "Settings":
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
        values = {**copy.deepcopy(dict(config.values)), "config": str(config.path)}
        for text in overrides:
            _override(values, text)
        return cls.from_values(values, config.path)

    @classmethod
    def from_values(cls, values: Mapping[str, Any], path: Path | None = None) -> "Settings":
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
        others = {key: value for key, value in values.items() if key != TABLE}
        arguments = _checked(others, path, ours=False) | _checked(table or {}, path, ours=True)
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
            if option.name in OURS:
                changed |= {option.name: value} if value != option.default else {}
            # mlx-lm has no default for these: they are absent where nobody states them.
            elif value is not None or not option.name.endswith(("_feature", "hf_dataset")):
                values[option.name] = plain(value)
        return {**values, TABLE: changed} if changed else values


def _override(values: dict[str, Any], text: str) -> None:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise InputError(None, f"{text!r} is not KEY=VALUE", "write --set iters=50")
    try:
        parsed = json.loads(value, parse_int=whole)
    except (ValueError, RecursionError):
        parsed = value
    assign(values, {name: parsed})


def _checked(stated: Mapping[str, Any], path: Path | None, *, ours: bool) -> dict[str, Any]:
    """The values that are not None, each of the type and range its field asks for."""
    hints = {k: hint for k, hint in get_type_hints(Settings).items() if (k in OURS) is ours}
    stated = {key: value for key, value in stated.items() if value is not None}
    for key in stated:
        if key not in hints:
            raise InputError(path, f"has the unknown key {key!r}", _hint(str(key), hints))
    return {key: _value(key, hints[key], value, path) for key, value in stated.items()}


def _hint(key: str, names: Iterable[str]) -> str:
    if key in OURS:
        return f"it belongs under `{TABLE}:`"
    close = get_close_matches(key, list(names), n=1)
    meant = MEANT.get(key) or next(iter(close), None)
    return f"did you mean {meant!r}?" if meant else "remove it"


def _value(name: str, hint: Any, value: Any, path: Path | None) -> Any:
    """The value, or a refusal that says what it must be."""
    asked, least, need = None, _LEAST.get(name), NEEDS.get(name)
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
            asked = f"at least {least}"
    if asked is not None:
        shown = repr(value)
        cut = shown if len(shown) <= MAX_SHOWN else f"{shown[:MAX_SHOWN]}…"
        raise InputError(path, f"{name} is {cut}", f"it must be {asked}")
    return value


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
        if (value := stated.get(name)) is not None or name != "keys":
            _value(f"lora_parameters.{name}", object, value, path)
