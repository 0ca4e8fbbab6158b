"""A run made again with one change, and what the doctor's own checks say of it."""

import math
import shutil
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

from mlxdoctor.api import run_checks
from mlxdoctor.check import Check, discover
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.kind import Progress
from mlxdoctor.exhibits import SampleAnswer
from mlxdoctor.judge.remedy import changed_values
from mlxdoctor.models.generations import Generations
from mlxdoctor.models.load import Which
from mlxdoctor.models.losses import ANSWERS, TokenLosses, mean_loss
from mlxdoctor.report import Fix
from mlxdoctor.reproduce.rules import Observation, signs_of
from mlxdoctor.run import Run
from mlxdoctor.twin import StepRecord, train
from mlxdoctor.twin.faults import Fault
from mlxdoctor.twin.prepared import parts_of
from mlxdoctor.twin.settings import Settings

Kind = Literal["as recorded", "another order", "change", "repair", "random rows", "injection"]
#: Answers that are kept for the report, and their length in characters.
SAMPLES, SAMPLE_LENGTH = 3, 240
#: The folder in which a rerun is made.
WORK = "rerun.partial"


def symptom_checks() -> tuple[Check, ...]:
    """The checks of what training did, whose findings a rerun can have or lack.

    What a configuration or a data set says goes away when it is edited, cured or not.
    """
    return tuple(check for check in discover() if check.rerun_symptom)


@dataclass(frozen=True)
class Change:
    """What is different in one rerun.

    Attributes:
        fault: what is put into the trainer or the rows; None: nothing.
        fix: the change of the configuration, as the report shows it; None where it is none.
    """

    kind: Kind
    label: str
    iterations: int
    fault: Fault | None = None
    severity: Any = None
    fix: Fix | None = None


class BudgetSpent(Exception):  # noqa: N818 - an answer, not an error
    """Raised when the time that was given is over; its text is the experiment not made."""


@dataclass(frozen=True)
class Laboratory:
    """Where the experiments of one run are made, and how long they may take.

    Attributes:
        config: as it was recorded.
        settings: to make the run again as recorded.
        folder: everything is written below it.
        deadline: of `time.monotonic`; no experiment goes on after it.
        made: label and seed of each rerun that was made -> what came out.
    """

    config: TrainingConfig
    settings: Settings
    folder: Path
    deadline: float = math.inf
    progress: Progress | None = None
    made: dict[tuple[str, int], Observation] = field(default_factory=dict)

    @property
    def is_late(self) -> bool:
        """Whether the time is over."""
        return time.monotonic() > self.deadline

    def rerun(self, change: Change, seed: int) -> Observation:
        """Make the run again with one change and one seed, and examine what came out.

        A rerun is made once.

        Raises:
            InputError: training is not possible with this change.
            BudgetSpent: there was not enough time for it.
        """
        key = change.label, seed
        if key in self.made:
            return self.made[key]
        if self.is_late:
            raise BudgetSpent(f"{change.label}, seed {seed}")
        work = self.folder / WORK
        settings = self._settings(change, seed, work / "run")
        started = time.perf_counter()
        # A reproduction that was killed leaves its last rerun here.
        shutil.rmtree(work, ignore_errors=True)
        try:
            seen = self._made(change, settings)
        finally:
            shutil.rmtree(work, ignore_errors=True)
        self.made[key] = replace(seen, seconds=round(time.perf_counter() - started, 2))
        return self.made[key]

    def _settings(self, change: Change, seed: int, folder: Path) -> Settings:
        """Settings of a rerun, which writes into a folder."""
        settings = self.settings
        if (fix := change.fix) is not None:
            values = changed_values(settings.stated(), fix.before, fix.after)
            settings = Settings.from_values(values, self.config.path)
        return replace(
            settings,
            adapter_path=str(folder),
            iters=change.iterations,
            seed=seed,
            save_every=max(1, change.iterations // 2),
        )

    def _made(self, change: Change, settings: Settings) -> Observation:
        parts, folder = parts_of(settings), Path(settings.adapter_path)
        label = f"{change.label}, seed {settings.seed}"
        if change.fault is not None:
            settings, parts = change.fault.inject(settings, change.severity, parts)

        def tell(record: Any) -> str | None:
            if not isinstance(record, StepRecord):
                return None
            if self.progress is not None:
                self.progress(label, record.iteration, settings.iters)
            return "the time is over" if self.is_late else None

        result = train(settings, parts=parts, tell=tell)
        if result.stopped is not None and len(result.steps) < settings.iters:
            raise BudgetSpent(label)
        if change.fault is not None:
            change.fault.finish(folder, settings, change.severity)
        return replace(
            # A model is asked about the rows it was trained on: those of a repair, if any.
            examined(folder, base=Path(settings.model), data=Path(settings.data)),
            iterations=tuple(step.iteration for step in result.steps),
            losses=tuple(step.train_loss for step in result.steps),
        )


def examined(folder: Path, *, base: Path, data: Path) -> Observation:
    """What the checks and the held-out loss say of an adapter folder; no curve, no cost."""
    run = Run.discover([folder], base=base, data=data, replay=False)
    outcomes = run_checks(symptom_checks(), run)
    losses = run.get(TokenLosses)
    rows = (losses.split("valid") or losses.rows) if losses is not None else ()
    held_out: dict[Which, float | None] = {}
    for which in get_args(Which):
        mean = mean_loss(rows, which, ANSWERS)
        held_out[which] = mean.value if mean.rows else None
    generations = run.get(Generations)
    items = generations.items[:SAMPLES] if generations is not None else ()
    cut = slice(SAMPLE_LENGTH)
    samples = [
        SampleAnswer(each.prompt[cut], each.base and each.base[cut], each.tuned[cut])
        for each in items
    ]
    losses_of = held_out["base"], held_out["tuned"]
    return Observation(signs_of(outcomes), *losses_of, samples=tuple(samples))
