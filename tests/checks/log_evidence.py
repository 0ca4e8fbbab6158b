"""Logs for the checks that read them: text as a trainer prints it, or a real file."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from mlxdoctor.evidence.training_log import TrainingLog
from mlxdoctor.finding import Finding, Outcome, Severity


class LogWriter:
    """Writes logs into a folder and reads them back."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "train.log"

    def text(self, *lines: str) -> TrainingLog:
        self.path.write_text("\n".join(lines) + "\n")
        return TrainingLog.read([self.path])

    def losses(
        self,
        train: Sequence[float],
        val: dict[int, float] | None = None,
        *,
        every: int = 10,
        first: int | None = None,
        head: Iterable[str] = (),
    ) -> TrainingLog:
        """The classic lines: training losses `every` so many iterations, and validations."""
        at = [(first or every) + every * i for i in range(len(train))]
        rows = [(i, 1, f"Iter {i}: Train loss {x}, It/sec 1.0") for i, x in zip(at, train)]  # noqa: B905
        rows += [(i, 0, f"Iter {i}: Val loss {x}, Val took 1.0s") for i, x in (val or {}).items()]
        return self.text(*head, *(line for *_, line in sorted(rows)))


def finding(outcome: Outcome, symptom: str) -> Finding:
    (one,) = [one for one in outcome.findings if one.code.split(".")[1] == symptom]
    return one


def errors(outcome: Outcome) -> list[str]:
    return [one.code for one in outcome.findings if one.severity is Severity.ERROR]


def decay(
    count: int, start: float = 3.0, end: float = 1.0, noise: float = 0.05, seed: int = 0
) -> list[float]:
    """Losses that fall and level off, with the scatter of batches."""
    steps = np.arange(count)
    curve = end + (start - end) * np.exp(-4.0 * steps / count)
    scatter = np.random.default_rng(seed).normal(0.0, noise, count)
    return [float(value) for value in np.round(curve + scatter, 4)]
