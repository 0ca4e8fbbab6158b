"""Where experiments are made: train under a condition, examine what came out, remember it."""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from mlxdoctor.api import run_checks
from mlxdoctor.check import discover, selected
from mlxdoctor.evidence.generations import Generations
from mlxdoctor.evidence.row_encoder import Role
from mlxdoctor.evidence.source import hash_file
from mlxdoctor.evidence.token_losses import TokenLosses
from mlxdoctor.finding import Severity, Status
from mlxdoctor.report.summary import slug
from mlxdoctor.reproduce import store
from mlxdoctor.reproduce.observation import Observation, Sample
from mlxdoctor.reproduce.recipe import Recipe
from mlxdoctor.reproduce.symptoms import OUTCOME_CHECKS
from mlxdoctor.run import Progress, Run

if TYPE_CHECKING:
    from mlxdoctor.trainer import Settings
    from mlxdoctor.trainer.parts import Parts

Kind = Literal["as recorded", "another order", "change", "repair", "injection"]
#: Added to the seed that orders the rows, for the placebo.
OTHER_ORDER = 1000
#: Answers that are kept for the report, and their length in characters.
SAMPLES, SAMPLE_LENGTH = 3, 240
#: What a rerun writes that can be large and is not needed once it was examined.
_BULKY = ("*.safetensors", "data", "broken-base", "fused")


class BudgetSpent(Exception):  # noqa: N818 - an answer, not an error
    """Raised when the time that was given is over."""


@dataclass(frozen=True)
class Condition:
    """What is different in one rerun.

    Attributes:
        kind: as recorded; the placebo (another order of the rows); one change of the
            configuration; or a fault put into the trainer.
        label: what it does, for people.
        values: the configuration to train with; None: as recorded.
        iterations: how many to make.
        fault: the id of the fault to inject.
        severity: its severity.
    """

    kind: Kind
    label: str
    iterations: int
    values: Mapping[str, Any] | None = None
    fault: str | None = None
    severity: Any = None


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
        """The result of one experiment, from its folder where it was made before.

        Raises:
            InputError: training is not possible under this condition.
            BudgetSpent: there was not enough time for it.
        """
        folder = self._folder(condition, seed)
        known = store.read(folder)
        if known is not None:
            return known
        if time.monotonic() > self.deadline:
            raise BudgetSpent
        if folder.exists():
            # Of a reproduction that was stopped half-way through this experiment.
            shutil.rmtree(folder)
        started = time.perf_counter()
        steps, losses = self._train(condition, seed, folder)
        observation = replace(
            examined(folder, self.recipe, data=self._data(condition, folder)),
            iterations=tuple(steps),
            losses=tuple(losses),
            steps=len(steps),
            seconds=round(time.perf_counter() - started, 2),
        )
        store.write(folder, observation)
        _discard(folder)
        return observation

    def _data(self, condition: Condition, folder: Path) -> Path:
        """What a model is asked: the run's own rows, or those that were repaired."""
        repaired = folder / "data"
        is_repaired = condition.kind == "repair" and repaired.is_dir()
        return repaired if is_repaired else self.recipe.data

    def _folder(self, condition: Condition, seed: int) -> Path:
        settings = self._settings(condition, seed, Path("adapters"))
        stated = settings.stated()
        facts = {
            "settings": {k: v for k, v in stated.items() if k not in {"adapter_path", "config"}},
            "kind": condition.kind,
            "fault": condition.fault,
            "severity": condition.severity,
            "data": _hashes(self.recipe.data, "*.jsonl"),
            "base": _stamps(self.recipe.base),
            "versions": [version(one) for one in ("mlxdoctor", "mlx", "mlx-lm")],
        }
        name = slug(f"{condition.kind}-{condition.fault or ''}-seed-{seed}").replace("--", "-")
        return self.folder / f"{name}-{store.key_of(facts)}"

    def _settings(self, condition: Condition, seed: int, folder: Path) -> Settings:
        return self.recipe.settings(folder, condition.iterations, seed, condition.values)

    def _train(
        self, condition: Condition, seed: int, folder: Path
    ) -> tuple[list[int], list[float]]:
        from mlxdoctor.trainer import train
        from mlxdoctor.trainer.loop import Hooks

        settings = self._settings(condition, seed, folder)
        settings, parts, finish = _altered(condition, settings)

        def step(record: Any) -> str | None:
            if self.progress is not None:
                self.progress(f"{condition.label}, seed {seed}", record.iteration, settings.iters)
            return "the time is over" if time.monotonic() > self.deadline else None

        result = train(settings, parts=parts, hooks=Hooks(step=step))
        if result.ending == "stopped":
            raise BudgetSpent
        finish(folder, settings)
        losses = [one.train_loss for one in result.steps]
        return [one.iteration for one in result.steps], losses


def _altered(
    condition: Condition, settings: Settings
) -> tuple[Settings, Parts, Callable[[Path, Settings], None]]:
    from mlxdoctor.trainer.parts import parts_of

    def nothing(folder: Path, settings: Settings) -> None:
        del folder, settings

    parts = parts_of(settings)
    if condition.fault is not None:
        from mlxdoctor.reproduce.forms import FAULTS, REPAIRS

        known = REPAIRS if condition.kind == "repair" else FAULTS
        fault, severity = known[condition.fault], condition.severity
        settings, parts = fault.inject(settings, severity, parts)
        return settings, parts, lambda folder, used: fault.finish(folder, used, severity)
    if condition.kind == "another order":
        other = parts_of(replace(settings, seed=settings.seed + OTHER_ORDER))
        parts = replace(parts, train_batches=other.train_batches)
    return settings, parts, nothing


def examined(folder: Path, recipe: Recipe, data: Path | None = None) -> Observation:
    """What the checks and the held-out loss say of an adapter folder; no curve, no cost."""
    run = Run.discover([folder], base=recipe.base, data=data or recipe.data)
    outcomes = run_checks(selected(discover(), OUTCOME_CHECKS, ()), run)
    base_loss, loss = held_out(run.get(TokenLosses))
    return Observation(
        findings=tuple(
            (one.code, one.severity.value)
            for outcome in outcomes
            for one in outcome.findings
            if one.severity is not Severity.INFO
        ),
        looked=tuple(one.check for one in outcomes if one.status in (Status.PASSED, Status.FOUND)),
        base_loss=base_loss,
        loss=loss,
        iterations=(),
        losses=(),
        samples=_samples(run.get(Generations)),
        seconds=0.0,
        steps=0,
    )


def held_out(losses: TokenLosses | None) -> tuple[float | None, float | None]:
    """Mean loss of base and tuned model on the answers, nats a token; of the valid split if any."""
    if losses is None or not losses.rows:
        return None, None
    rows = losses.split("valid") or losses.rows
    base: list[Any] = []
    tuned: list[Any] = []
    for row in rows:
        roles = row.roles[1:]
        wanted = np.isin(roles, (Role.ANSWER, Role.END))
        wanted = wanted if wanted.any() else np.ones_like(wanted)
        base.append(row.base.next[wanted])
        if row.tuned is not None:
            tuned.append(row.tuned.next[wanted])
    return _mean(base), _mean(tuned)


def _mean(parts: Sequence[Any]) -> float | None:
    values = np.concatenate(parts) if parts else np.zeros(0)
    return float(values.astype(np.float64).mean()) if len(values) else None


def _samples(generations: Generations | None) -> tuple[Sample, ...]:
    if generations is None:
        return ()
    return tuple(
        Sample(
            one.prompt[:SAMPLE_LENGTH],
            one.base[:SAMPLE_LENGTH] if one.base is not None else None,
            one.tuned[:SAMPLE_LENGTH],
        )
        for one in generations.items[:SAMPLES]
    )


def _hashes(folder: Path, pattern: str) -> dict[str, str | None]:
    return {path.name: hash_file(path).sha256 for path in sorted(folder.glob(pattern))}


def _stamps(folder: Path) -> list[tuple[str, int, int]]:
    """Names, sizes and times: reading all of a base model would take longer than the rerun."""
    files = [path for path in sorted(folder.iterdir()) if path.is_file()]
    return [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in files]


def _discard(folder: Path) -> None:
    for pattern in _BULKY:
        for path in folder.glob(pattern):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
