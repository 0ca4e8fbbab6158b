"""A run made again with one change, and what the doctor's own checks say of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Literal

from mlxdoctor.api import run_checks
from mlxdoctor.check import Check, discover
from mlxdoctor.evidence.source import hash_file
from mlxdoctor.exhibits import SampleAnswer
from mlxdoctor.finding import Severity
from mlxdoctor.models.generations import Generations
from mlxdoctor.models.load import Which
from mlxdoctor.models.losses import TokenLosses
from mlxdoctor.models.readings import Reading, mean_loss
from mlxdoctor.run import Run
from mlxdoctor.twin.rerun import Laboratory, stamps

if TYPE_CHECKING:
    from mlxdoctor.twin.faults import Fault

Kind = Literal[
    "as recorded", "trial", "another order", "change", "repair", "random rows", "injection"
]
#: Answers that are kept for the report, and their length in characters.
SAMPLES, SAMPLE_LENGTH = 3, 240


def symptom_checks() -> tuple[Check, ...]:
    """The checks of what training did, whose findings a rerun can have or lack.

    What a configuration or a data set says goes away when it is edited, cured or not.
    """
    return tuple(check for check in discover() if check.rerun_symptom)


@dataclass(frozen=True)
class Change:
    """What is different in one rerun.

    Attributes:
        kind: as recorded; a trial, a few iterations of that, for the time they take; a placebo
            (another order of the rows, or rows left out at random); one change of the
            configuration; the data repaired; or a fault put into the trainer.
        label: what it does, for people.
        iterations: how many to make.
        values: the configuration to train with; None: as recorded.
        fault: what is put into the trainer or the rows; None: nothing.
        severity: its severity.
    """

    kind: Kind
    label: str
    iterations: int
    values: Mapping[str, Any] | None = None
    fault: Fault | None = None
    severity: Any = None


@dataclass(frozen=True)
class Observation:
    """What the doctor's own checks, and a measure of our own, say of a rerun.

    Attributes:
        findings: (code, severity) of what the checks found, notes left out.
        base_loss: mean loss of the base model on the answers of held-out rows, nats a
            token, masked correctly whatever the trainer did; None without such rows.
        loss: likewise of the rerun's model; NaN where it gives none.
        iterations: of each training loss.
        losses: as the trainer saw them, nats a token.
        samples: the first few answers, their texts cut off.
        seconds: training and examination together.
        step_seconds: of the median step of training.
    """

    findings: tuple[tuple[str, str], ...]
    base_loss: float | None
    loss: float | None
    iterations: tuple[int, ...] = ()
    losses: tuple[float, ...] = ()
    samples: tuple[SampleAnswer, ...] = ()
    seconds: float = 0.0
    step_seconds: float = 0.0

    @property
    def errors(self) -> tuple[str, ...]:
        """The codes that are errors."""
        return tuple(code for code, severity in self.findings if severity == "error")

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Observation:
        """What `asdict` gave, after a journey through JSON ("NaN" as a text included).

        Raises:
            KeyError, TypeError, ValueError: it is not that.
        """
        base_loss, loss = values["base_loss"], values["loss"]
        return cls(
            findings=tuple((str(code), str(severity)) for code, severity in values["findings"]),
            base_loss=None if base_loss is None else float(base_loss),
            loss=None if loss is None else float(loss),
            iterations=tuple(map(int, values["iterations"])),
            losses=tuple(map(float, values["losses"])),
            samples=tuple(SampleAnswer(**one) for one in values["samples"]),
            seconds=float(values["seconds"]),
            step_seconds=float(values["step_seconds"]),
        )


def rerun(lab: Laboratory, change: Change, seed: int) -> Observation:
    """Make the run again with one change and one seed, and examine what came out.

    The result is kept in a folder of its own, and read from there the next time.

    Raises:
        InputError: training is not possible with this change.
        BudgetSpent: there was not enough time for it.
    """
    stated = lab.recipe.settings(Path("adapters"), change.iterations, seed, change.values)
    name = change.fault.id if change.fault is not None else None
    unwritten = {"adapter_path", "config"}
    facts = {
        "kind": change.kind,
        "fault": name,
        "severity": change.severity,
        "settings": {k: v for k, v in stated.stated().items() if k not in unwritten},
        "data": {
            path.name: hash_file(path).sha256 for path in sorted(Path(stated.data).glob("*.jsonl"))
        },
        "base": stamps(Path(stated.model)),
    }
    label = f"{change.label}, seed {seed}"

    def make(folder: Path) -> Observation:
        from mlxdoctor.twin.prepared import parts_of

        settings = lab.recipe.settings(folder, change.iterations, seed, change.values)
        parts, fault = parts_of(settings), change.fault
        if fault is not None:
            settings, parts = fault.inject(settings, change.severity, parts)
        result = lab.train(settings, label, parts)
        if fault is not None:
            fault.finish(folder, settings, change.severity)
        # A model is asked about the rows it was trained on: those of a repair, if any.
        own = folder / "data"
        data = own if own.is_dir() else Path(stated.data)
        return replace(
            examined(folder, base=Path(stated.model), data=data),
            iterations=tuple(step.iteration for step in result.steps),
            losses=tuple(step.train_loss for step in result.steps),
            step_seconds=median([step.seconds for step in result.steps] or [0.0]),
        )

    folder_name = "-".join(part for part in (change.kind, name, f"seed-{seed}") if part)
    return lab.remembered(folder_name, facts, label, make, Observation.from_dict)


def examined(folder: Path, *, base: Path, data: Path) -> Observation:
    """What the checks and the held-out loss say of an adapter folder; no curve, no cost.

    Args:
        folder: what a rerun wrote.
        base: the base model's folder.
        data: the rows that the model is asked about.
    """
    run = Run.discover([folder], base=base, data=data)
    outcomes = run_checks(symptom_checks(), run)
    losses = run.get(TokenLosses)
    generations = run.get(Generations)
    items = generations.items[:SAMPLES] if generations is not None else ()
    return Observation(
        findings=tuple(
            (finding.code, finding.severity.value)
            for outcome in outcomes
            for finding in outcome.findings
            if finding.severity is not Severity.INFO
        ),
        base_loss=held_out(losses, "base"),
        loss=held_out(losses, "tuned"),
        samples=tuple(
            SampleAnswer(
                item.prompt[:SAMPLE_LENGTH],
                item.base[:SAMPLE_LENGTH] if item.base is not None else None,
                item.tuned[:SAMPLE_LENGTH],
            )
            for item in items
        ),
    )


def held_out(losses: TokenLosses | None, which: Which) -> float | None:
    """Mean loss of a model on the answers, nats a token; of the valid split if any."""
    rows = (losses.split("valid") or losses.rows) if losses is not None else ()
    mean = mean_loss(rows, which, Reading(masks_prompt=True, until="end"))
    return mean.value if mean.rows else None
