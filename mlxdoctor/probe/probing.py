"""The probe: training steps, measured and judged by the checks of a step."""

from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

from mlxdoctor.check import discover
from mlxdoctor.evidence.run_files import RunFiles
from mlxdoctor.finding import LOOKED, Finding, Outcome, Severity, plain
from mlxdoctor.measure.training_step.measurement import TrainingStep
from mlxdoctor.run import Run

#: The order in which the checks of a step are shown; those of other packages come after them.
ORDER = ("step-state", "step-alignment", "step-preferences", "step-update")


@dataclass(frozen=True)
class ProbeResult:
    """What the probe measured, and what its checks found in it."""

    measured: TrainingStep
    outcomes: tuple[Outcome, ...]

    def __repr__(self) -> str:
        counts = ", ".join(f"{count} {severity}" for severity, count in self.counts.items())
        return f"<probe of a training step: {counts}>"

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Every finding, check by check."""
        return tuple(finding for outcome in self.outcomes for finding in outcome.findings)

    @property
    def asked(self) -> tuple[Outcome, ...]:
        """The checks whose question arises for this loss."""
        return tuple(outcome for outcome in self.outcomes if outcome.arises)

    @property
    def unjudged(self) -> tuple[Outcome, ...]:
        """Those that could not judge."""
        return tuple(outcome for outcome in self.asked if outcome.status not in LOOKED)

    @property
    def counts(self) -> dict[str, int]:
        """How many findings there are of each severity, the worst first."""
        counts = Counter(finding.severity for finding in self.findings)
        return {severity.value: counts[severity] for severity in reversed(Severity)}

    @property
    def sound(self) -> bool:
        """Whether no error and no warning was found, and every check could judge."""
        return not (self.counts["error"] or self.counts["warning"] or self.unjudged)

    @property
    def headline(self) -> str:
        """The verdict in one sentence: what was found, counted."""
        names = {"error": "error", "warning": "warning", "info": "note"}
        parts = [
            f"{count} {names[severity]}{'' if count == 1 else 's'}"
            for severity, count in self.counts.items()
            if count
        ]
        if self.unjudged:
            parts.append(f"{len(self.unjudged)} of {len(self.asked)} checks could not judge")
        if not parts:
            return "the training step is sound: nothing was found"
        begins = "nothing wrong was found, "
        if self.counts["error"]:
            begins = "the training step is wrong: "
        elif self.counts["warning"]:
            begins = "no error, "
        return begins + " and ".join(filter(None, [", ".join(parts[:-1]), parts[-1]]))

    def to_dict(self) -> dict[str, Any]:
        """The result as JSON shows it, without the arrays."""
        step = self.measured
        return {
            "sound": self.sound,
            "headline": self.headline,
            "counts": self.counts,
            "unjudged": {outcome.check: outcome.reason for outcome in self.unjudged},
            "seconds": round(step.seconds, 3),
            "outcomes": [outcome.to_dict() for outcome in self.outcomes],
            "findings": [plain(finding) for finding in self.findings],
            "state": asdict(step.state),
            "forward": None if step.forward is None else asdict(step.forward),
            "update": None if step.update is None else asdict(step.update),
        }


def judge(measured: TrainingStep) -> ProbeResult:
    """What the checks of a step find in what was measured."""
    checks = [
        check
        for check in discover()
        if any(need.kind is TrainingStep and not need.optional for need in check.requirements)
    ]
    checks.sort(key=lambda check: ORDER.index(check.name) if check.name in ORDER else len(ORDER))
    run = Run(RunFiles(())).having(measured)
    return ProbeResult(measured, tuple(check.run(run) for check in checks))
