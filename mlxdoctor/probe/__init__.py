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

    The arguments are those of `mlxdoctor.probe.probing.probe`, which does the work.
    """
    from mlxdoctor.probe import probing

    return probing.probe(
        model, loss_fn, batch, optimizer, tokenizer, steps, step=step, progress=progress
    )
