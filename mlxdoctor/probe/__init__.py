"""What one training step of a user's own trainer does; importing the functions loads nothing."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mlx import nn

    from mlxdoctor.evidence.kind import Progress
    from mlxdoctor.probe.probing import ProbeResult


def probe(  # noqa: PLR0917 the order is the one in which a training script has them
    model: nn.Module,
    loss_fn: Callable[..., Any],
    batch: Any,
    optimizer: Any | None = None,
    tokenizer: Any | None = None,
    steps: int | None = None,
    *,
    step: Callable[..., Any] | None = None,
    expect: str | None = None,
    rewards: str | int | Callable[[float], Any] | None = None,
    pairs: tuple[str | int, str | int] | str | None = None,
    progress: Progress | None = None,
) -> ProbeResult:
    """Make training steps, measure them, and hand the model back as it was.

    Arrays are shared, not copied, so that memory is that of training.

    Args:
        model: as it is when training begins: frozen, adapter attached.
        loss_fn: gives the loss, alone or first of a tuple; called with `(model, *batch)`,
            or with as much of that as it takes.
        batch: a real batch of the run.
        optimizer: the run's own; its state is put back. Adam otherwise.
        tokenizer: tells where answers begin and end.
        steps: training steps to make; five where it is not said. A step of your own that
            changes nothing so far is called further, up to 32 times.
        step: one step of the run's own, taking the batch as `loss_fn` does. Give it where
            the trainer does anything between gradient and update, such as filtering.
        expect: what is meant to be trained: "lora", "dora" or "full". An adapter where the
            model has one, or says that it has; otherwise nothing is expected.
        rewards: where the batch's rewards or advantages are: the name of the loss's parameter
            or of a key, or a position; or a function of a factor that gives the batch with its
            rewards times that. What is named as rewards or advantages is found by itself.
        pairs: where the batch's chosen and rejected tokens are, two names or positions, or
            "halves" for rows of one array. What is named as chosen and rejected is found.
        progress: called phase by phase.

    Raises:
        InputError: `model` is no MLX module, the loss cannot be called with it, what was named
            is not in the batch, or the trainer's code ends the program.
    """
    from mlxdoctor.measure.training_step.measurement import STEPS, measure
    from mlxdoctor.measure.training_step.trainer import Trainer
    from mlxdoctor.probe.probing import judge

    trainer = Trainer(model, loss_fn, batch, optimizer, tokenizer, step, expect, rewards, pairs)
    return judge(measure(trainer, steps=STEPS if steps is None else steps, progress=progress))


def assert_training_step_sound(
    model: Any,
    loss_fn: Callable[..., Any],
    batch: Any,
    *,
    allow: Collection[str] = (),
    warnings: bool = False,
    **more: Any,
) -> ProbeResult:
    """Make a training step and fail where something is wrong with it.

        def test_training_step():
            model, loss_fn, batch, optimizer = parts_of_my_trainer()
            assert_training_step_sound(model, loss_fn, batch, optimizer=optimizer)

    Args:
        allow: codes of findings that are meant, such as `step-state.outside-adapter`.
        warnings: whether a warning fails it as well.
        more: what `mlxdoctor.probe` takes besides: optimizer, tokenizer, step, expect,
            rewards, pairs, steps.

    Raises:
        AssertionError: there is such a finding; the message says what was measured and what
            to do.
    """
    from mlxdoctor.finding import Severity

    result = probe(model, loss_fn, batch, **more)
    least = Severity.WARNING if warnings else Severity.ERROR
    lines = [
        f"[{finding.code}] {finding.message} Fix: {finding.fix}."
        for finding in result.findings
        if finding.severity.rank >= least.rank and finding.code not in allow
    ]
    if lines:
        raise AssertionError("the training step is not sound:\n" + "\n".join(lines))
    return result
