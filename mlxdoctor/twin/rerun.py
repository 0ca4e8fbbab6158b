"""A recorded run made again: from its base, rows, configuration and seed, within a time."""

from __future__ import annotations

import hashlib
import json
import math
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.dataset import Dataset
from mlxdoctor.evidence.kind import Missing, Progress
from mlxdoctor.evidence.run_files import resolve_file
from mlxdoctor.formats import json_format
from mlxdoctor.formats.summary import slug
from mlxdoctor.installed import version_here
from mlxdoctor.run import Run
from mlxdoctor.safety.atomic import replace_file
from mlxdoctor.safety.errors import InputError
from mlxdoctor.twin.records import StepRecord, TrainingResult
from mlxdoctor.twin.settings import TABLE, Settings

if TYPE_CHECKING:
    from mlxdoctor.twin.prepared import Parts

T = TypeVar("T")
#: Keys that say where a run reported to, what it ran besides training, or where rows are hosted.
_LEFT_OUT = frozenset(
    {"config", "hf_dataset", "mlxdoctor", "report_to", "project_name", "test"}
    | {"trust_remote_code", "wandb"}
)
_KEYS = frozenset(one.name for one in fields(Settings) if not one.metadata["ours"]) - _LEFT_OUT
#: Of the meaning of a stored result: those of another version are made again.
VERSION = 6
RESULT_FILE = "result.json"
#: Characters of the key in a folder's name.
KEY_LENGTH = 12
#: Folders that a rerun writes and that are not needed once it was examined; nor are weights.
_BULKY = ("data", "fused")


class BudgetSpent(Exception):  # noqa: N818 - an answer, not an error
    """Raised when the time that was given is over; its text is the experiment not made."""


@dataclass(frozen=True)
class Recipe:
    """A run, ready to be made again.

    Attributes:
        config: the configuration as it was recorded.
        values: mlx-lm's keys of it, with base, data and files as they were found here.
        base: the base model's folder.
        data: the data folder.
        iterations: how long the run was to be.
        seed: its seed.
        ignored: keys that mlx-lm does not have, and that no rerun heeds.
    """

    config: TrainingConfig
    values: Mapping[str, Any]
    base: Path
    data: Path
    iterations: int
    seed: int
    ignored: tuple[str, ...]

    def settings(
        self, folder: Path, iterations: int, seed: int, values: Mapping[str, Any] | None = None
    ) -> Settings:
        """Settings of a rerun, which writes into `folder`: as mlx-lm, or as our own trainer.

        Args:
            values: to train with instead of those recorded.

        Raises:
            InputError: the reference trainer does not take a value.
        """
        # Where the configuration has a table of our own, our trainer made the run.
        own = self.config.values.get(TABLE)
        if isinstance(own, Mapping):
            own = {key: own.get(key) for key in ("mode", "grad_clip")}
        return Settings.from_values(
            {
                **(self.values if values is None else values),
                "adapter_path": str(folder),
                "iters": iterations,
                "seed": seed,
                "save_every": max(1, iterations // 2),
                "train": True,
                TABLE: own or {"mode": "parity"},
            },
            self.config.path,
        )

    def as_recorded(self) -> Settings:
        """Settings of one iteration as recorded, for what is worked out without a rerun."""
        return self.settings(Path("adapters"), 1, self.seed)


def recipe_of(run: Run) -> Recipe:
    """How to make a run again.

    Raises:
        Missing: it left too little for that.
    """
    config, model, dataset = run.need(TrainingConfig), run.need(BaseModel), run.need(Dataset)
    if not config.describes_training:
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
    base = model.path.resolve()
    data = (dataset.path if dataset.path.is_dir() else dataset.path.parent).resolve()
    recipe = Recipe(
        config=config,
        values={**values, "model": str(base), "data": str(data)},
        base=base,
        data=data,
        iterations=config.iters or Settings.iters,
        seed=config.seed or 0,
        ignored=tuple(sorted(config.values.keys() - _KEYS - _LEFT_OUT)),
    )
    try:
        recipe.as_recorded()
    except InputError as error:
        raise Missing(f"the reference trainer does not take it: {error}") from None
    return recipe


@dataclass(frozen=True)
class Laboratory:
    """Where the experiments of one run are made, and how long they may take.

    Attributes:
        recipe: the run.
        folder: everything is written below it.
        deadline: of `time.monotonic`; no experiment goes on after it.
        progress: called with what is being done.
        budget: seconds in all, by which the length of reruns is chosen.
    """

    recipe: Recipe
    folder: Path
    deadline: float = math.inf
    progress: Progress | None = None
    budget: float = math.inf

    def keep_within_time(self, label: str) -> None:
        """Go on only if there is time left.

        Raises:
            BudgetSpent: there is none.
        """
        if time.monotonic() > self.deadline:
            raise BudgetSpent(label)

    def train(self, settings: Settings, label: str, parts: Parts | None = None) -> TrainingResult:
        """Train, with progress, for as long as there is time.

        Raises:
            InputError: training is not possible with these settings.
            BudgetSpent: the time was over before it was done.
        """
        from mlxdoctor.twin import train

        def tell(record: Any) -> str | None:
            if not isinstance(record, StepRecord):
                return None
            if self.progress is not None:
                self.progress(label, record.iteration, settings.iters)
            return "the time is over" if time.monotonic() > self.deadline else None

        result = train(settings, parts=parts, tell=tell)
        if result.ending == "stopped" and len(result.steps) < settings.iters:
            raise BudgetSpent(label)
        return result

    def remembered(
        self,
        name: str,
        facts: Mapping[str, Any],
        label: str,
        make: Callable[[Path], T],
        read: Callable[[Mapping[str, Any]], T],
    ) -> T:
        """A result from its folder, or made now and kept there.

        Args:
            name: of the folder, before the key.
            facts: whatever the result depends on.
            label: what is made, for people.
            make: makes it in a folder; a dataclass with `seconds`.
            read: gives it back from the dictionary that `asdict` makes of it.

        Raises:
            InputError: it can't be made, or the folder can't be written.
            BudgetSpent: there was not enough time for it.
        """
        versions = [version_here(package) for package in ("mlxdoctor", "mlx", "mlx-lm")]
        folder = self.folder / f"{slug(name)}-{key_of({**facts, 'versions': versions})}"
        stored = read_result(folder)
        if stored is not None:
            try:
                return read(stored)
            except (KeyError, TypeError, ValueError, AttributeError):
                pass  # Damaged, or somebody else's: it is made again.
        self.keep_within_time(label)
        # What a reproduction left that was stopped half-way through this experiment.
        for path in (folder, *folder.parent.glob(f"{folder.name}-*")):
            shutil.rmtree(path, ignore_errors=True)
        started = time.perf_counter()
        try:
            folder.mkdir(parents=True)
        except OSError as error:
            raise InputError(folder, f"cannot be made ({error.strerror})") from None
        made: Any = make(folder)
        made = replace(made, seconds=round(time.perf_counter() - started, 2))
        write_json(folder / RESULT_FILE, asdict(made))
        # Weights are large; faults put altered data and base models beside the folder.
        for path in folder.rglob("*.safetensors"):
            path.unlink()
        for path in (*folder.parent.glob(f"{folder.name}-*"), *map(folder.joinpath, _BULKY)):
            shutil.rmtree(path, ignore_errors=True)
        result: T = made
        return result


def stamps(folder: Path) -> list[tuple[str, int, int]]:
    """Names, sizes and times: reading all of a base model would take longer than the rerun."""
    files = [path for path in sorted(folder.iterdir()) if path.is_file()]
    return [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in files]


def key_of(facts: Mapping[str, Any]) -> str:
    """A name for an experiment that changes with whatever it depends on."""
    text = json.dumps({"version": VERSION, **facts}, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:KEY_LENGTH]


def read_result(folder: Path) -> dict[str, Any] | None:
    """The result in an experiment's folder; None where it was not finished, or is none."""
    try:
        result = json.loads((folder / RESULT_FILE).read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return result if isinstance(result, dict) else None


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write JSON, at once or not at all.

    Raises:
        InputError: the file can't be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, json_format.render(content).encode())
    except OSError as error:
        raise InputError(path, f"cannot be written ({error.strerror})") from None
