"""A recorded run made again: from its base, rows, configuration and seed, within a time."""

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.dataset import Dataset
from mlxdoctor.evidence.kind import Missing, RunView
from mlxdoctor.evidence.other_runs import PlannedRun
from mlxdoctor.evidence.run_files import resolve_file
from mlxdoctor.models.load import in_float32, load_tokenizer, load_weights, on_cpu
from mlxdoctor.safety.errors import InputError
from mlxdoctor.twin.batches import Batches, doubled
from mlxdoctor.twin.parts import Parts
from mlxdoctor.twin.settings import OURS, TABLE, Settings

#: Keys that say where a run wrote or reported to, what it ran besides training, or where rows are
#: hosted.
_LEFT_OUT = frozenset(
    {
        *("adapter_path", "save_every", "config", "hf_dataset", "report_to", "project_name"),
        *("test", "trust_remote_code"),
    }
)
_KEYS = frozenset(option.name for option in fields(Settings)) - OURS - _LEFT_OUT


def recorded_settings(run: RunView, *, assumes_adam: bool = False) -> Settings:
    """Settings to make a run again: as mlx-lm, or as our own trainer where that made it.

    Base, data and files are named as they were found here.

    Args:
        assumes_adam: whether a rate and a number of updates are enough, the optimizer unsaid.

    Raises:
        Missing: it left too little for that, or the reference trainer does not take a value.
    """
    config, model, dataset = run.need(TrainingConfig), run.need(BaseModel), run.need(Dataset)
    iters = _of_epochs(config, dataset) or config.iters
    is_enough = assumes_adam and bool(config.learning_rate and iters)
    if not (config.states_steps or is_enough):
        raise Missing(
            f"{config.path.name} does not say how the run was trained; "
            "a configuration of mlx_lm.lora does"
        )
    values = {key: value for key, value in config.values.items() if key in _KEYS}
    if config.resume_adapter_file is not None:
        path = resolve_file(config.resume_adapter_file, run.files.roots)
        if path is None:
            raise Missing(f"{config.resume_adapter_file}, which it was resumed from, is not here")
        values["resume_adapter_file"] = str(path)
    # Where the configuration has a table of our own, our trainer made the run.
    own = config.values.get(TABLE)
    table = {key: own.get(key) for key in OURS} if isinstance(own, Mapping) else {"mode": "parity"}
    found = {
        "model": str(model.path.resolve()),
        "data": str(_folder(dataset.path).resolve()),
        "iters": iters or Settings.iters,
        "seed": config.seed or 0,
        "train": True,
        TABLE: table,
    }
    try:
        return Settings.from_values(values | found, config.path)
    except InputError as error:
        raise Missing(f"the reference trainer does not take it: {error}") from None


def _of_epochs(config: TrainingConfig, dataset: Dataset) -> int:
    """The batches that so many passes over the rows make; 0 where none are stated."""
    stated = (config.values.get(name) for name in ("epochs", "num_epochs", "num_train_epochs"))
    numbers = [float(each) for each in stated if isinstance(each, int | float) and each is not True]
    passes = next(filter(math.isfinite, numbers), 0.0)
    train = dataset.splits.get("train")
    rows = len(train.rows) if train is not None else 0
    return round(passes * (rows // (config.batch_size or Settings.batch_size)))


def _folder(path: Path) -> Path:
    return path if path.is_dir() else path.parent


def deadline_of(run: RunView, share: float = 1.0) -> float:
    """When to end what takes a share of the time that is left to train, by `time.monotonic`."""
    return time.monotonic() + share * run.budget.left_for_training


@dataclass(frozen=True)
class AsConfigured:
    """Settings and parts of a run as mlx-lm trains it, computing in float32 on a processor.

    Of a run whose configuration does not say how it was trained, they are mlx-lm's defaults.
    """

    #: A step to what is computed again.
    kind: ClassVar[str] = ""
    needs_models: ClassVar[bool] = True

    settings: Settings
    parts: Parts
    tokenizer: Any

    @classmethod
    def find(cls, run: RunView) -> "AsConfigured":
        """From base model, rows and configuration.

        Raises:
            Missing: base model or rows are not at hand.
            InputError: mlx-lm cannot be used here, or cannot read the rows.
        """
        from mlxdoctor.twin.prepared import parts_of

        base, dataset = run.need(BaseModel), run.need(Dataset)
        if says_how(run):
            settings = recorded_settings(run)
        else:
            config = run.get(TrainingConfig)
            settings = Settings(
                model=str(base.path),
                data=str(_folder(dataset.path)),
                val_batches=-1,
                num_layers=-1,
                batch_size=(config.batch_size if config is not None else None)
                or Settings.batch_size,
                mask_prompt=bool(config is not None and config.mask_prompt),
                mode="parity",
            )
        if (adapter := run.files.adapter) is not None:
            settings = replace(settings, adapter_path=str(_folder(adapter)))
        parts, tokenizer = parts_of(settings), load_tokenizer(base.path, base.eos_token_ids)
        if run.get(PlannedRun) is None:
            # A GPU takes longer to give memory back and ask for it again than for a small step.
            settings = replace(settings, clear_cache_threshold=1 << 30)
        # Rows are the same under most readings: they are encoded once for each mask.
        kept: dict[bool, Any] = {}

        def load(settings: Settings) -> tuple[Any, Any]:
            model = load_weights(Path(settings.model))
            in_float32(model)
            return model, tokenizer

        def encode(settings: Settings, _: Any) -> Any:
            if settings.mask_prompt not in kept:
                kept[settings.mask_prompt] = parts.encode(settings, tokenizer)
            return kept[settings.mask_prompt]

        return cls(settings, replace(parts, load=load, encode=encode), tokenizer)


def in_few_widths(parts: Parts) -> Parts:
    """The same parts; on a GPU with batches of few widths, under which a usual loss is the same."""
    if on_cpu():
        return parts

    def batches(settings: Settings) -> Batches:
        return parts.batches(settings).map(partial(doubled, limit=settings.max_seq_length))

    return replace(parts, batches=batches)


def says_how(run: RunView, *, assumes_adam: bool = False) -> bool:
    """Whether the run left what it takes to make it again; as `recorded_settings`."""
    try:
        recorded_settings(run, assumes_adam=assumes_adam)
    except Missing:
        return False
    return True
