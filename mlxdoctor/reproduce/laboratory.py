"""Where experiments are made: train under a condition, examine what came out, remember it."""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from mlxdoctor.evidence.source import hash_file
from mlxdoctor.formats.summary import slug
from mlxdoctor.reproduce import store
from mlxdoctor.reproduce.condition import Condition
from mlxdoctor.reproduce.examination import examined
from mlxdoctor.reproduce.observation import Observation
from mlxdoctor.reproduce.recipe import Recipe
from mlxdoctor.run import Progress
from mlxdoctor.safety.errors import InputError

if TYPE_CHECKING:
    from mlxdoctor.train import Settings, TrainingResult
    from mlxdoctor.train.parts import Parts

T = TypeVar("T")
#: Added to the seed that orders the rows, for the placebo.
OTHER_ORDER = 1000
#: Folders that a rerun writes and that are not needed once it was examined; nor are weights.
_BULKY = ("data", "fused")
#: Kinds of experiment that write rows of their own.
_WITH_OWN_ROWS = frozenset({"repair", "random rows"})


class BudgetSpent(Exception):  # noqa: N818 - an answer, not an error
    """Raised when the time that was given is over; its text is the experiment not made."""


@dataclass(frozen=True)
class Laboratory:
    """Makes the experiments of one run, each at most once.

    Attributes:
        recipe: the run.
        folder: everything is written below it.
        deadline: of `time.monotonic`; no experiment goes on after it.
        progress: called with what is being done.
    """

    recipe: Recipe
    folder: Path
    deadline: float = math.inf
    progress: Progress | None = None

    def observe(self, condition: Condition, seed: int) -> Observation:
        """The result of one rerun, from its folder where it was made before.

        Raises:
            InputError: training is not possible under this condition.
            BudgetSpent: there was not enough time for it.
        """
        settings = self._settings(condition, seed, Path("adapters"))
        facts = {
            "kind": condition.kind,
            "fault": condition.fault,
            "severity": condition.severity,
            "settings": _stated(settings),
            "data": _hashes(Path(settings.data)),
            "base": stamps(Path(settings.model)),
        }
        name = "-".join(
            part for part in (condition.kind, condition.fault, f"seed-{seed}") if part is not None
        )

        def make(folder: Path) -> Observation:
            steps, losses = self._train(condition, seed, folder)
            # A model is asked about the rows it was trained on: those of a repair, if any.
            own = folder / "data"
            is_own = condition.kind in _WITH_OWN_ROWS and own.is_dir()
            data = own if is_own else Path(settings.data)
            return replace(
                examined(folder, base=Path(settings.model), data=data),
                iterations=tuple(steps),
                losses=tuple(losses),
                steps=len(steps),
            )

        return self.remembered(
            name, facts, f"{condition.label}, seed {seed}", make, Observation.from_dict
        )

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
            make: makes it in a folder; a dataclass with `seconds` and `to_dict`.
            read: gives it back from the dictionary.

        Raises:
            InputError: it can't be made, or the folder can't be written.
            BudgetSpent: there was not enough time for it.
        """
        versions = [version(one) for one in ("mlxdoctor", "mlx", "mlx-lm")]
        key = store.key_of({**facts, "versions": versions})
        folder = self.folder / f"{slug(name)}-{key}"
        known = store.read(folder)
        if known is not None:
            try:
                return read(known)
            except (KeyError, TypeError, ValueError, AttributeError):
                pass  # Damaged, or somebody else's: it is made again.
        self.keep_within_time(label)
        # What a reproduction left that was stopped half-way through this experiment.
        _remove(folder)
        started = time.perf_counter()
        try:
            folder.mkdir(parents=True)
        except OSError as error:
            raise InputError(folder, f"cannot be made ({error.strerror})") from None
        made: Any = make(folder)
        made = replace(made, seconds=round(time.perf_counter() - started, 2))
        store.write(folder, made.to_dict())
        _discard(folder)
        result: T = made
        return result

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
        from mlxdoctor.train import train
        from mlxdoctor.train.loop import Hooks

        def step(record: Any) -> str | None:
            if self.progress is not None:
                self.progress(label, record.iteration, settings.iters)
            return "the time is over" if time.monotonic() > self.deadline else None

        result = train(settings, parts=parts, hooks=Hooks(step=step))
        if result.ending == "stopped" and len(result.steps) < settings.iters:
            raise BudgetSpent(label)
        return result

    def within_time(self, batches: Iterable[T], label: str) -> Iterator[T]:
        """The same batches, for as long as there is time.

        Raises:
            BudgetSpent: there is none left.
        """
        for batch in batches:
            self.keep_within_time(label)
            yield batch

    def _settings(self, condition: Condition, seed: int, folder: Path) -> Settings:
        return self.recipe.settings(folder, condition.iterations, seed, condition.values)

    def _train(
        self, condition: Condition, seed: int, folder: Path
    ) -> tuple[list[int], list[float]]:
        settings = self._settings(condition, seed, folder)
        settings, parts, finish = _altered(condition, settings)
        result = self.train(settings, f"{condition.label}, seed {seed}", parts)
        finish(folder, settings)
        losses = [one.train_loss for one in result.steps]
        return [one.iteration for one in result.steps], losses


def _altered(
    condition: Condition, settings: Settings
) -> tuple[Settings, Parts, Callable[[Path, Settings], None]]:
    from mlxdoctor.train.parts import parts_of

    def nothing(folder: Path, settings: Settings) -> None:
        del folder, settings

    parts = parts_of(settings)
    if condition.fault is not None:
        fault, severity = _fault_of(condition), condition.severity
        settings, parts = fault.inject(settings, severity, parts)
        return settings, parts, lambda folder, used: fault.finish(folder, used, severity)
    if condition.kind == "another order":
        other = parts_of(replace(settings, seed=settings.seed + OTHER_ORDER))
        parts = replace(parts, train_batches=other.train_batches)
    return settings, parts, nothing


def _fault_of(condition: Condition) -> Any:
    from mlxdoctor.reproduce.data_repairs import REPAIRS
    from mlxdoctor.reproduce.forms import FAULTS

    name = condition.fault or ""
    if condition.kind == "injection":
        return FAULTS[name]
    known = REPAIRS[name]
    return known.placebo if condition.kind == "random rows" else known.repair


def _stated(settings: Settings) -> dict[str, Any]:
    return {k: v for k, v in settings.stated().items() if k not in {"adapter_path", "config"}}


def _hashes(folder: Path) -> dict[str, str | None]:
    return {path.name: hash_file(path).sha256 for path in sorted(folder.glob("*.jsonl"))}


def stamps(folder: Path) -> list[tuple[str, int, int]]:
    """Names, sizes and times: reading all of a base model would take longer than the rerun."""
    files = [path for path in sorted(folder.iterdir()) if path.is_file()]
    return [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in files]


def _remove(folder: Path) -> None:
    for path in (folder, *folder.parent.glob(f"{folder.name}-*")):
        if path.is_dir():
            shutil.rmtree(path)


def _discard(folder: Path) -> None:
    """Remove what is large; faults put altered data and base models beside the folder."""
    for path in folder.rglob("*.safetensors"):
        path.unlink()
    for path in (*folder.parent.glob(f"{folder.name}-*"), *map(folder.joinpath, _BULKY)):
        shutil.rmtree(path, ignore_errors=True)
