"""Where experiments are made: train under a condition, examine what came out, remember it."""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, TypeVar

from mlxdoctor.evidence.kind import Progress
from mlxdoctor.evidence.source import hash_file
from mlxdoctor.experiments.shared import store
from mlxdoctor.experiments.shared.observation import Condition, Observation, examined
from mlxdoctor.experiments.shared.recipe import Recipe
from mlxdoctor.formats.summary import slug
from mlxdoctor.installed import version_here
from mlxdoctor.safety.errors import InputError

if TYPE_CHECKING:
    from mlxdoctor.train import Settings, TrainingResult
    from mlxdoctor.train.batches import Batches
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
        budget: seconds in all, by which the length of reruns is chosen.
    """

    recipe: Recipe
    folder: Path
    deadline: float = math.inf
    progress: Progress | None = None
    budget: float = math.inf

    def observe(self, condition: Condition, seed: int) -> Observation:
        """The result of one rerun, from its folder where it was made before.

        Raises:
            InputError: training is not possible under this condition.
            BudgetSpent: there was not enough time for it.
        """
        stated = self._settings(condition, seed, Path("adapters"))
        fault = condition.fault.id if condition.fault is not None else None
        facts = {
            "kind": condition.kind,
            "fault": fault,
            "severity": condition.severity,
            "settings": _stated(stated),
            "data": {
                path.name: hash_file(path).sha256
                for path in sorted(Path(stated.data).glob("*.jsonl"))
            },
            "base": stamps(Path(stated.model)),
        }
        label = f"{condition.label}, seed {seed}"

        def make(folder: Path) -> Observation:
            result = self._trained(condition, seed, folder, label)
            # A model is asked about the rows it was trained on: those of a repair, if any.
            own = folder / "data"
            is_own = condition.kind in _WITH_OWN_ROWS and own.is_dir()
            data = own if is_own else Path(stated.data)
            return replace(
                examined(folder, base=Path(stated.model), data=data),
                iterations=tuple(one.iteration for one in result.steps),
                losses=tuple(one.train_loss for one in result.steps),
                step_seconds=median([one.seconds for one in result.steps] or [0.0]),
            )

        name = "-".join(part for part in (condition.kind, fault, f"seed-{seed}") if part)
        return self.remembered(name, facts, label, make, Observation.from_dict)

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
        versions = [version_here(one) for one in ("mlxdoctor", "mlx", "mlx-lm")]
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
        store.write(folder, asdict(made))
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
        from mlxdoctor.train import StepRecord, train

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

    def _trained(self, condition: Condition, seed: int, folder: Path, label: str) -> TrainingResult:
        from mlxdoctor.train.parts import parts_of

        settings, fault = self._settings(condition, seed, folder), condition.fault
        parts = parts_of(settings)
        if fault is not None:
            settings, parts = fault.inject(settings, condition.severity, parts)
        elif condition.kind == "another order":
            parts = replace(parts, batches=_in_another_order)
        result = self.train(settings, label, parts)
        if fault is not None:
            fault.finish(folder, settings, condition.severity)
        return result


def _in_another_order(settings: Settings) -> Batches:
    from mlxdoctor.train.parts import parts_of

    make = parts_of(settings).batches
    other = make(replace(settings, seed=settings.seed + OTHER_ORDER))
    return make(settings)._replace(train=other.train)


def _stated(settings: Settings) -> dict[str, Any]:
    return {k: v for k, v in settings.stated().items() if k not in {"adapter_path", "config"}}


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
