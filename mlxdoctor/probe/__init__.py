"""What one training step of a user's own trainer does, measured and judged.

The function stands here, and loads the rest when it is called, so that `mlxdoctor.probe` is
the function wherever it is imported from, and importing it costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mlx import nn

    from mlxdoctor.evidence.kind import Progress
    from mlxdoctor.probe.probing import ProbeResult

__all__ = ["probe"]


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
    from mlxdoctor.measure.training_step.measurement import measure
    from mlxdoctor.measure.training_step.trainer import Trainer
    from mlxdoctor.probe.probing import judge

    trainer = Trainer(model, loss_fn, batch, optimizer, tokenizer, step)
    return judge(measure(trainer, steps=steps, progress=progress))
