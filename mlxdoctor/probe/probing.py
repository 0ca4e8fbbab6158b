"""The probe: one training step, measured in five phases and judged by the checks of a step."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeVar

import mlx.core as mx
from mlx import nn

from mlxdoctor.check import discover
from mlxdoctor.evidence.source import Source
from mlxdoctor.finding import Finding, Outcome, Severity
from mlxdoctor.measure.model_parameters import count_parameters
from mlxdoctor.measure.training_step.alignment import align
from mlxdoctor.measure.training_step.calls import Calls, as_called, bound, heard
from mlxdoctor.measure.training_step.measurement import Forward, TrainingStep
from mlxdoctor.measure.training_step.state import adapters_off, handed_back, read_state
from mlxdoctor.measure.training_step.steps import Loss, make_steps
from mlxdoctor.safety.errors import InputError
from mlxdoctor.safety.quoting import MAX_LINE, quoted

T = TypeVar("T")

#: Called with what is being done, a count done and a total.
Progress = Callable[[str, int, int], None]

#: The checks that judge a step, in the order of the phases.
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


def probe(  # noqa: PLR0917 the order is the one in which a training script has them
    model: nn.Module,
    loss_fn: Callable[..., Any],
    batch: Any,
    optimizer: Any | None = None,
    tokenizer: Any | None = None,
    steps: int = 2,
    *,
    step: Callable[..., Any] | None = None,
    progress: Progress | None = None,
) -> ProbeResult:
    """Make a training step, measure it, and hand the model back as it was.

    It costs two forward and two backward passes, and for each step one more of both and a
    forward pass; arrays are shared, not copied, so that memory is that of training.

    Args:
        model: as it is when training begins: frozen, adapter attached.
        loss_fn: gives the loss, alone or first of a tuple; called with `(model, *batch)`,
            or with as much of that as it takes.
        batch: a real batch of the run.
        optimizer: the run's own; its state is put back. Adam otherwise.
        tokenizer: tells where answers begin and end.
        steps: training steps to make.
        step: one step of the run's own, taking the batch as `loss_fn` does. Give it where
            the trainer does anything between gradient and update, such as filtering.
        progress: called phase by phase.

    Raises:
        InputError: `model` is no MLX module, or the loss cannot be called with it.
    """
    return judge(
        measure(
            model,
            loss_fn,
            batch,
            optimizer=optimizer,
            tokenizer=tokenizer,
            steps=steps,
            step=step,
            progress=progress,
        )
    )


def judge(measured: TrainingStep) -> ProbeResult:
    """What the checks of a step find in what was measured."""
    known = {one.name: one for one in discover()}
    given = _Given(measured)
    return ProbeResult(measured, tuple(known[name].run(given) for name in PHASES))


def cost_of(model: Any, steps: int) -> str:
    """What a probe of so many steps will take, said beforehand.

    Raises:
        InputError: `model` is no MLX module.
    """
    _require_module(model)
    count = sum(sum(part.values()) for part in count_parameters(model))
    return (
        f"Probing {count / 1e6:,.1f}M parameters: {steps} training steps and what {steps + 2} more "
        f"would cost, with the memory of training."
    )


def _require_module(model: Any) -> None:
    if not isinstance(model, nn.Module):
        raise InputError(None, f"the model is a {type(model).__name__}, not an mlx.nn.Module")


def measure(
    model: nn.Module,
    loss_fn: Callable[..., Any],
    batch: Any,
    *,
    optimizer: Any | None = None,
    tokenizer: Any | None = None,
    steps: int = 2,
    step: Callable[..., Any] | None = None,
    sources: Sequence[Source] = (),
    progress: Progress | None = None,
) -> TrainingStep:
    """As `probe`, without a judgement.

    Args:
        sources: the files that the trainer was taken from.
    """
    _require_module(model)
    begun = time.perf_counter()
    loss = as_called(loss_fn, model, batch)
    own = None if step is None else bound(step, model, batch)
    tell = progress or (lambda *_: None)
    tell("reading the model", 0, len(PHASES))
    result = TrainingStep(tuple(sources), read_state(model), None, None, None)
    with handed_back(model, optimizer):
        was_training = model.training
        # Dropout off: what is measured is the loss, not the noise.
        model.eval()
        try:
            with _uncompiled(), heard(model) as calls:
                tell("making a forward pass", 1, len(PHASES))
                result = replace(result, forward=_forward(loss, model, calls))
                tell("reading the gradient of the logits", 2, len(PHASES))
                alignment, unseen = align(loss, model, calls, tokenizer)
        except InputError:
            raise
        except Exception as error:  # a user's code may raise anything
            failure = f"{type(error).__name__}: {quoted(str(error), MAX_LINE)}"
            return replace(result, failure=failure, seconds=time.perf_counter() - begun)
        result = replace(result, alignment=alignment, unseen=unseen)
        model.train(was_training)
        tell("making training steps", 3, len(PHASES))
        update = make_steps(
            loss, model, optimizer, None if own is None else lambda: own(model), steps
        )
    return replace(result, update=update, seconds=time.perf_counter() - begun)


def _forward(loss: Loss, model: nn.Module, calls: Calls) -> Forward:
    value: Any = loss(model).item()
    seen = calls.logits[0] if calls.logits else None
    number = len(calls.logits)
    finite: Any = all(mx.isfinite(one).all().item() for one in calls.logits)
    shape = tuple(seen.shape) if seen is not None else None
    dtype = str(seen.dtype).rpartition(".")[2] if seen is not None else None
    calls.clear()
    with adapters_off(model) as has_adapter:
        without: Any = loss(model).item() if has_adapter else None
    calls.clear()
    # The gradient of the logits needs a pass whose calls are known.
    loss(model)
    return Forward(
        loss=float(value),
        without_adapter=without,
        uniform=math.log(shape[-1]) if shape is not None else None,
        dtype=dtype,
        shape=shape,
        finite_logits=bool(finite),
        calls=number,
    )


@contextmanager
def _uncompiled() -> Iterator[None]:
    """A compiled loss would keep the zeros of its first call as constants."""
    mx.disable_compile()
    try:
        yield
    finally:
        mx.enable_compile()


@dataclass(frozen=True)
class _Given:
    """The one piece of evidence that the checks of a step take."""

    measured: TrainingStep

    def get(self, kind: type[T]) -> T | None:
        return self.measured if isinstance(self.measured, kind) else None

    def why_missing(self, kind: type[Any]) -> str:
        return f"a probe has no {getattr(kind, 'kind', kind.__name__)}"
