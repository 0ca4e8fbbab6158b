"""The probe: one training step, measured in five phases and judged by the checks of a step."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from mlxdoctor.check import discover
from mlxdoctor.finding import Finding, Outcome, Severity
from mlxdoctor.measure.model_parameters import count_parameters
from mlxdoctor.measure.training_step.calls import require_module
from mlxdoctor.measure.training_step.measurement import TrainingStep

T = TypeVar("T")

#: The order in which the phases are judged; other checks of a step come after them.
PHASES = ("step-state", "step-forward", "step-alignment", "step-gradients", "step-update")


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
    def sound(self) -> bool:
        """Whether no finding is an error."""
        return not any(one.severity is Severity.ERROR for one in self.findings)

    def to_dict(self) -> dict[str, Any]:
        """The result as JSON shows it, without the arrays."""
        step = self.measured
        return {
            "sound": self.sound,
            "seconds": round(step.seconds, 3),
            "outcomes": [one.to_dict() for one in self.outcomes],
            "findings": [one.to_dict() for one in self.findings],
            "state": asdict(step.state),
            "forward": None if step.forward is None else asdict(step.forward),
            "update": None if step.update is None else asdict(step.update),
        }


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
        f"would cost, with the memory of training."
    )


@dataclass(frozen=True)
class _Given:
    """The one piece of evidence that the checks of a step take."""

    measured: TrainingStep

    def get(self, kind: type[T]) -> T | None:
        return self.measured if isinstance(self.measured, kind) else None

    def why_missing(self, kind: type[Any]) -> str:
        return f"a probe has no {getattr(kind, 'kind', kind.__name__)}"
