"""What a run was told to do: an mlx-lm or PEFT configuration."""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Generic, Literal, Self, TypeVar

from mlxdoctor.evidence.kind import Missing, RunView
from mlxdoctor.evidence.mlx_lm_defaults import MLX_LM_DEFAULTS, MLX_LM_LORA_DEFAULTS
from mlxdoctor.evidence.source import Sniffed, Source, read_json_object
from mlxdoctor.evidence.yaml_file import read_yaml_object
from mlxdoctor.safety.errors import InputError

T = TypeVar("T")
#: A key that W&B adds to a run's configuration, in which each key stands for `{value: ...}`.
_OF_WANDB = frozenset(("_wandb", "wandb_version"))

#: What trainers write beside an adapter, and loaders read to know which layers to convert.
CONFIG_NAME = "adapter_config.json"

# What a file has that is not named so and is a configuration all the same.
_SNIFFED_KEYS = frozenset(
    {"learning_rate", "lora_parameters", "fine_tune_type", "iters", "lr_schedule"}
)
#: What scripts of people's own call what mlx-lm has another name for.
_OWN_NAMES = {"lr": "learning_rate", "max_steps": "iters", "updates": "iters", "steps": "iters"}
# A file with any of these describes training; an adapter_config.json without them
# (from a converter, say) only describes the adapter, and says nothing about the run.
_TRAINING_KEYS = frozenset({"batch_size", "iters", "learning_rate", "lr_schedule", "optimizer"})
#: Keys of mlx-lm's that no other trainer is likely to have.
_OWN_KEYS = frozenset(
    {"fine_tune_type", "iters", "lora_parameters", "num_layers", "steps_per_report"}
)
_ALWAYS_WRITTEN = frozenset({"iters", "seed"})
_MLX_LM_KEYS = (
    _TRAINING_KEYS | _OWN_KEYS | {"grad_accumulation_steps", "lora_layers", "mask_prompt"}
)
#: What keys are called by older releases, by mlx-lm-lora and by PEFT, which has those of LoRA's
#: parameters at the top of its file.
_OTHER_NAMES = {
    "num_layers": "lora_layers",
    "fine_tune_type": "train_type",
    "grad_accumulation_steps": "gradient_accumulation_steps",
    "model": "base_model_name_or_path",
    "rank": "r",
    "alpha": "lora_alpha",
    "dropout": "lora_dropout",
    "keys": "target_modules",
}


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


def _whole(value: object) -> int | None:
    number = _number(value)
    return int(number) if number is not None and number.is_integer() else None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _mapping(value: object) -> Mapping[str, Any] | None:
    return value if isinstance(value, Mapping) else None


def _names(value: object) -> tuple[str, ...] | None:
    if isinstance(value, str):
        return (value,)
    return tuple(map(str, value)) if isinstance(value, list) else None


class Setting(Generic[T]):
    """A key of mlx-lm's: its value as stated, or mlx-lm's default, or None.

    Args:
        parse: gives the value of what a file states, None for what makes no sense.
        of_lora: whether mlx-lm keeps it under `lora_parameters`.
    """

    def __init__(
        self, parse: Callable[[object], T | None], meaning: str, *, of_lora: bool = False
    ) -> None:
        self.parse, self.of_lora, self.__doc__ = parse, of_lora, meaning

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, config: "TrainingConfig", owner: type) -> T | None:
        value = config._lora(self.name) if self.of_lora else config._value(self.name)
        return None if value is None else self.parse(value)


@dataclass(frozen=True)
class TrainingConfig:
    """A run's configuration, as stated and as mlx-lm completes it.

    Attributes:
        origin: whose format it is; decides what a missing key means.
        has_defaults: whether mlx-lm was started with it, so that its defaults hold.
    """

    kind: ClassVar[str] = "training configuration"

    sources: tuple[Source, ...]
    path: Path
    values: Mapping[str, Any]
    origin: Literal["mlx-lm", "peft"]
    has_defaults: bool = True

    @staticmethod
    def is_held_by(file: Sniffed) -> bool:
        """Whether a YAML or JSON file begins as a training configuration does."""
        if file.path.suffix in (".yaml", ".yml"):
            keys = re.findall(r"(?m)^([A-Za-z_]+)\s*:", file.head)
            is_own = "lr" in keys and not _MLX_LM_KEYS.isdisjoint(keys)
            return is_own or not _SNIFFED_KEYS.isdisjoint(keys)
        return file.path.suffix == ".json" and not _SNIFFED_KEYS.isdisjoint(file.record)

    @classmethod
    def find(cls, run: RunView) -> "TrainingConfig":
        if run.files.config is None:
            raise Missing("no adapter_config.json and no training configuration was found")
        config = cls.read(run.files.config)
        if run.files.settings is None or config.values.keys() >= _ALWAYS_WRITTEN:
            return config
        # What the one beside the adapter does not say of the training, the other may.
        training = cls.read(run.files.settings)
        named = {_OWN_NAMES.get(key, key): value for key, value in training.values.items()}
        values = MappingProxyType({**named, **training.values, **config.values})
        sources = (*config.sources, *training.sources)
        stated = config if config.describes_training else training
        return replace(stated, sources=sources, values=values, origin=config.origin)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read `adapter_config.json` (mlx-lm or PEFT) or an mlx-lm YAML or JSON configuration.

        Of a folder its `adapter_config.json` is read.

        Raises:
            InputError: the file can't be read, or is not a training configuration.
        """
        if path.is_dir():
            path = path / CONFIG_NAME
        if path.suffix.lower() in {".yaml", ".yml"}:
            values, source = read_yaml_object(path)
        else:
            values, source = read_json_object(path)
        of_wandb = not _OF_WANDB.isdisjoint(values)
        if of_wandb:
            values = {
                key: entry["value"]
                for key, entry in values.items()
                if key not in _OF_WANDB and isinstance(entry, dict) and "value" in entry
            }
        # What mlx-lm reads its adapter by is there, whatever stands beside it.
        is_peft = "peft_type" in values and not isinstance(values.get("lora_parameters"), Mapping)
        origin: Literal["mlx-lm", "peft"] = "peft" if is_peft else "mlx-lm"
        names_both = "model" in values and not {"data", "train"}.isdisjoint(values)
        if origin == "mlx-lm" and not names_both and _MLX_LM_KEYS.isdisjoint(values):
            problem = "is not a training configuration that mlx-lm or PEFT would write"
            remedy = "name the adapter_config.json or the file given to `mlx_lm.lora --config`"
            raise InputError(path, problem, remedy)
        # mlx-lm writes all of its settings into this file; another trainer those it has a name for.
        is_of_another = path.name == CONFIG_NAME and not values.keys() >= _ALWAYS_WRITTEN
        of_mlx_lm = not of_wandb or not _OWN_KEYS.isdisjoint(values)
        has_defaults = of_mlx_lm and not is_of_another
        return cls((source,), path, MappingProxyType(values), origin, has_defaults)

    @classmethod
    def beside(cls, weights: Path) -> "TrainingConfig | None":
        """The `adapter_config.json` in the folder of a file of weights, if there is one.

        Raises:
            InputError: it can't be read, or is not a training configuration.
        """
        path = weights.parent / CONFIG_NAME
        return cls.read(path) if path.is_file() else None

    model = Setting(_text, "The base model: a folder or a repository name.")
    data = Setting(_text, "The training data: a folder or a repository name.")
    optimizer = Setting(_text, "`adam`, `adamw`, `muon`, `sgd` or `adafactor`.")
    batch_size = Setting(_whole, "Rows a batch.")
    iters = Setting(_whole, "Batches the run was to see.")
    grad_accumulation_steps = Setting(_whole, "Batches an update.")
    max_seq_length = Setting(_whole, "Tokens after which a row is cut.")
    num_layers = Setting(
        _whole, "How many of the last layers are trained; -1 for all. Also read as `lora_layers`."
    )
    seed = Setting(_whole, "The seed of weights and batch order.")
    val_batches = Setting(_whole, "Batches a validation; -1 for all.")
    steps_per_eval = Setting(_whole, "Iterations between two validations.")
    lr_schedule = Setting(_mapping, "mlx-lm's schedule: name, arguments, warmup, warmup_init.")
    mask_prompt = Setting(bool, "Whether the prompt is left out of the loss.")
    resume_adapter_file = Setting(_text, "The adapter that training started from.")
    rank = Setting(_whole, "The LoRA rank.", of_lora=True)
    alpha = Setting(
        _number, "LoRA's alpha, where the format has one; mlx-lm has a scale.", of_lora=True
    )
    dropout = Setting(_number, "The share of an adapter's inputs that are dropped.", of_lora=True)
    keys = Setting(
        _names, "The modules an adapter is put on; None where the trainer chooses.", of_lora=True
    )

    @property
    def describes_training(self) -> bool:
        """Whether the file states how the run was trained, not only the adapter's shape."""
        return self.origin == "mlx-lm" and bool(_TRAINING_KEYS & self.values.keys())

    @property
    def states_steps(self) -> bool:
        """Whether it says how weights were changed: another trainer's may lack the optimizer."""
        return self.describes_training and (self.has_defaults or "optimizer" in self.values)

    @property
    def of_preferences(self) -> bool:
        """Whether it says, as mlx-lm-lora's does, that pairs or rewards are trained on."""
        return (_text(self.values.get("train_mode")) or "sft").lower() not in ("sft", "judge")

    def is_default(self, key: str) -> bool:
        """Whether the value of `key` is not stated, so that mlx-lm's default applies."""
        if key in MLX_LM_LORA_DEFAULTS:
            # A partial lora_parameters is used as it is: mlx-lm fills in the whole or nothing.
            is_stated = self.values.get("lora_parameters") is not None
            return self.origin == "mlx-lm" and self.has_defaults and not is_stated
        return self._stated(key) is None and self._value(key) is not None

    def _stated(self, key: str) -> Any:
        value = self.values.get(key)
        return self.values.get(_OTHER_NAMES.get(key, key)) if value is None else value

    def _value(self, key: str) -> Any:
        value = self._stated(key)
        if value is None and self.describes_training and self.has_defaults:
            value = MLX_LM_DEFAULTS.get(key)
        return value

    def _lora(self, key: str) -> Any:
        if self.origin == "peft":
            return self._stated(key)
        if self.fine_tune_type == "full":
            return None
        stated = self.values.get("lora_parameters")
        if isinstance(stated, Mapping):
            return stated.get(key)
        return MLX_LM_LORA_DEFAULTS.get(key) if stated is None and self.has_defaults else None

    @property
    def fine_tune_type(self) -> str | None:
        """`lora`, `dora` or `full`; for PEFT, its type in lower case."""
        if self.origin == "peft":
            peft_type = str(self.values["peft_type"]).lower()
            return "dora" if peft_type == "lora" and self.values.get("use_dora") else peft_type
        return _text(self._value("fine_tune_type")) or "lora"

    @property
    def learning_rate(self) -> float | None:
        """The highest rate of the run; a schedule takes precedence, as in mlx-lm."""
        if self.lr_schedule is None:
            return _number(self._value("learning_rate"))
        arguments = self.lr_schedule.get("arguments")
        rates = [_number(rate) for rate in arguments] if isinstance(arguments, list) else []
        if not rates or rates[0] is None:
            return None
        if self.lr_schedule.get("name") == "linear_schedule" and len(rates) > 1:
            return max(rate for rate in rates[:2] if rate is not None)
        return rates[0]

    @property
    def warmup(self) -> int:
        """Updates over which the rate rises; 0 without a schedule."""
        return _whole((self.lr_schedule or {}).get("warmup")) or 0

    @property
    def optimizer_config(self) -> Mapping[str, Any]:
        """The settings of the optimizer in use; empty where none are stated."""
        every = self.values.get("optimizer_config")
        own = every.get(self.optimizer) if isinstance(every, Mapping) else None
        return own if isinstance(own, Mapping) else {}

    @property
    def scale(self) -> float | None:
        """What A·B is multiplied by: mlx-lm's scale; alpha/r elsewhere, rsLoRA's alpha/sqrt(r)."""
        if self.origin == "mlx-lm":
            return _number(self._lora("scale"))
        if self.alpha is None or not self.rank or self.rank < 0:
            return None
        return self.alpha / (math.sqrt(self.rank) if self.values.get("use_rslora") else self.rank)
