"""What a run reports and writes: a record a step, a record a validation, metrics, adapter files."""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mlxdoctor.evidence.config import CONFIG_NAME
from mlxdoctor.models.load import ADAPTER_FILE
from mlxdoctor.safety.atomic import replace_file
from mlxdoctor.safety.errors import InputError
from mlxdoctor.twin.settings import Settings

METRICS_FILE = "metrics.jsonl"
#: Figures of which six digits after the point are kept.
_ROUNDED = frozenset({"seconds", "val_seconds", "peak_memory"})


@dataclass(frozen=True)
class StepRecord:
    """One iteration: one batch, and perhaps an update of the weights.

    Attributes:
        train_loss: of this batch before the update, nats a supervised token.
        learning_rate: the rate of the update just made, or of the last one.
        grad_norm: L2 norm of the update's gradient before clipping; None without an update.
        supervised_tokens: targets the loss was taken over, as the mask counts them.
        trained_tokens: their sum since the run began.
        seconds: wall-clock time of the iteration, batch included.
        peak_memory: the most memory MLX has held so far, GB (1e9 bytes).
    """

    iteration: int
    train_loss: float
    learning_rate: float
    grad_norm: float | None
    supervised_tokens: int
    trained_tokens: int
    seconds: float
    peak_memory: float


@dataclass(frozen=True)
class ValidationRecord:
    """One validation.

    Attributes:
        iteration: iterations finished before it; 0 is the base model.
        val_loss: mean over the supervised tokens, nats; NaN where there are none.
        val_seconds: wall-clock time.
    """

    iteration: int
    val_loss: float
    val_seconds: float


@dataclass(frozen=True)
class TrainingResult:
    """What a run came to.

    Attributes:
        stopped: why it was ended early; None where every iteration was made.
        test_loss: mean loss on the test split, nats; None where it was not asked for.
        trainable, frozen: component -> parameters; see `count_parameters`.
    """

    stopped: str | None = None
    steps: tuple[StepRecord, ...] = ()
    validations: tuple[ValidationRecord, ...] = ()
    test_loss: float | None = None
    adapter_path: Path = Path()
    trainable: Mapping[str, int] = field(default_factory=dict)
    frozen: Mapping[str, int] = field(default_factory=dict)


#: What a run is about to train: lines for a person.
Plan = tuple[str, ...]
#: Called with the plan, after each validation and after each step; a text it returns for the
#: plan or for a step ends the run with that reason.
Tell = Callable[[Plan | StepRecord | ValidationRecord], str | None]


def add_metrics(folder: Path, record: StepRecord | ValidationRecord | None) -> None:
    """Add a record's line to a run's `metrics.jsonl`; None begins an empty one.

    Raises:
        InputError: the file cannot be written.
    """
    path = folder / METRICS_FILE
    try:
        with path.open("wb" if record is None else "ab", buffering=0) as file:
            file.write(b"" if record is None else to_line(record).encode())
    except OSError as error:
        raise InputError(path, f"cannot be written ({error.strerror})") from None


def to_line(record: StepRecord | ValidationRecord) -> str:
    """A line of JSON, without what is None; NaN and infinities, which JSON lacks, as texts."""
    values: dict[str, Any] = {}
    for name, value in vars(record).items():
        if isinstance(value, float) and not math.isfinite(value):
            values[name] = str(value)
        elif value is not None:
            values[name] = round(value, 6) if name in _ROUNDED else value
    return json.dumps(values, allow_nan=False) + "\n"


def write_config(settings: Settings) -> None:
    """Write `adapter_config.json` with mlx-lm's keys, sorted, as mlx-lm does.

    Raises:
        InputError: the folder cannot be made or written.
    """
    folder = Path(settings.adapter_path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps(settings.stated(), indent=4, sort_keys=True)
        replace_file(folder / CONFIG_NAME, f"{text}\n".encode())
    except OSError as error:
        raise InputError(folder, f"cannot be written ({error.strerror})") from None


def write_adapter(settings: Settings, model: Any, iteration: int | None = None) -> None:
    """Write the trainable parameters, and as a checkpoint if an iteration is given.

    Raises:
        InputError: a file cannot be written.
    """
    import mlx.core as mx
    from mlx.utils import tree_flatten

    names = [ADAPTER_FILE]
    if iteration is not None:
        names.append(f"{iteration:07d}_{ADAPTER_FILE}")
    weights = dict(tree_flatten(model.trainable_parameters()))
    for name in names:
        path = Path(settings.adapter_path) / name
        # Written beside and renamed: an interrupted save leaves the previous file whole.
        temporary = path.with_name(f".{name}.partial.safetensors")
        try:
            mx.save_safetensors(str(temporary), weights)
            temporary.replace(path)
        except (RuntimeError, OSError) as error:
            temporary.unlink(missing_ok=True)
            raise InputError(path, f"cannot be written ({error})") from None
