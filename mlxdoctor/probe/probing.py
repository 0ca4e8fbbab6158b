"""The probe: one training step, measured in five phases and judged by the checks of a step."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from mlxdoctor.check import discover
from mlxdoctor.finding import LOOKED, Finding, Outcome, Severity
from mlxdoctor.measure.training_step.calls import require_module
from mlxdoctor.measure.training_step.measurement import TrainingStep
from mlxdoctor.models.parameters import count_parameters

T = TypeVar("T")

#: The order in which the phases are judged; other checks of a step come after them.
PHASES = (
    *("step-state", "step-forward", "step-inputs", "step-alignment"),
    *("step-pairs", "step-rewards", "step-gradients", "step-update"),
)


@dataclass(frozen=True)
class ProbeResult:
    """What the probe measured, and what its checks found in it."""

    measured: TrainingStep
    outcomes: tuple[Outcome, ...]

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Every finding, phase by phase."""
        return tuple(finding for outcome in self.outcomes for finding in outcome.findings)

    @property
    def asked(self) -> tuple[Outcome, ...]:
        """The phases whose question arises for this loss."""
        return tuple(one for one in self.outcomes if one.arises)

    @property
    def unjudged(self) -> tuple[Outcome, ...]:
        """Those that could not be judged."""
        return tuple(one for one in self.asked if one.status not in LOOKED)

    @property
    def counts(self) -> dict[str, int]:
        """How many findings there are of each severity, the worst first."""
        found = Counter(one.severity for one in self.findings)
        return {one.value: found[one] for one in reversed(Severity)}

    @property
    def sound(self) -> bool:
        """Whether no error and no warning was found, and every phase could be judged."""
        return not (self.counts["error"] or self.counts["warning"] or self.unjudged)

    @property
    def headline(self) -> str:
        """The verdict in one sentence: what was found, counted."""
        names = {"error": "error", "warning": "warning", "info": "note"}
        found = [
            f"{count} {names[one]}{'' if count == 1 else 's'}"
            for one, count in self.counts.items()
            if count
        ]
        if self.unjudged:
            found.append(f"{len(self.unjudged)} of {len(self.asked)} phases not judged")
        if not found:
            return "the training step is sound: nothing was found"
        begins = "the training step is wrong: " if self.counts["error"] else "no error, "
        if not (self.counts["error"] or self.counts["warning"]):
            begins = "nothing wrong was found, "
        return begins + _listed(found)

    def to_dict(self) -> dict[str, Any]:
        """The result as JSON shows it, without the arrays."""
        step = self.measured
        return {
            "sound": self.sound,
            "headline": self.headline,
            "counts": self.counts,
            "unjudged": {one.check: one.reason for one in self.unjudged},
            "seconds": round(step.seconds, 3),
            "outcomes": [one.to_dict() for one in self.outcomes],
            "findings": [one.to_dict() for one in self.findings],
            "state": asdict(step.state),
            "forward": None if step.forward is None else asdict(step.forward),
            "reference": None if step.reference is None else asdict(step.reference),
            "update": None if step.update is None else asdict(step.update),
        }


def _listed(parts: list[str]) -> str:
    *before, last = parts
    return f"{', '.join(before)} and {last}" if before else last


def judge(measured: TrainingStep) -> ProbeResult:
    """What the checks of a step find in what was measured."""
    of_a_step = [
        one
        for one in discover()
        if any(need.kind is TrainingStep and not need.optional for need in one.requirements)
    ]
    of_a_step.sort(key=lambda one: PHASES.index(one.name) if one.name in PHASES else len(PHASES))
    given = _Given(measured)
    return ProbeResult(measured, tuple(one.run(given) for one in of_a_step))


def cost_of(model: Any, steps: int) -> str:
    """What a probe of so many steps will take, said beforehand.

    Raises:
        InputError: `model` is no MLX module.
    """
    require_module(model)
    count = sum(sum(part.values()) for part in count_parameters(model))
    return (
        f"Probing {count / 1e6:,.1f}M parameters: {steps} training steps and what {steps + 2} more "
        f"would cost (two further ones where there are rewards), with the memory of training."
    )


@dataclass(frozen=True)
class _Given:
    """The one piece of evidence that the checks of a step take."""

    measured: TrainingStep

    def get(self, kind: type[T]) -> T | None:
        return self.measured if isinstance(self.measured, kind) else None

    def why_missing(self, kind: type[Any]) -> str:
        return f"a probe has no {getattr(kind, 'kind', kind.__name__)}"
