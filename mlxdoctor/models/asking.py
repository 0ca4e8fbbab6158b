"""Asking a loaded model: progress told, the base's answers remembered, failures said alike."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import TypeVar

import numpy as np

from mlxdoctor.evidence.kind import Progress
from mlxdoctor.models.base_memory import as_before
from mlxdoctor.models.forward import Continuation, continuation_losses
from mlxdoctor.models.load import LoadedModels, Which
from mlxdoctor.safety.errors import InputError

T = TypeVar("T")


def told(
    progress: Progress | None, doing: str, before: int = 0, total: int | None = None
) -> Callable[[int, int], None] | None:
    """Progress of one stage, told as that of the whole.

    Args:
        progress: of the run; None where nobody listens.
        doing: what is being done, in words.
        before: how many were done before this stage.
        total: how many there are in all; None for those of this stage.
    """
    if progress is None:
        return None
    if total is None:
        return lambda done, most: progress(doing, before + done, most)
    # Of some rows more than one thing is asked.
    return lambda done, _: progress(doing, min(before + done, total), total)


def ask(models: LoadedModels, which: Which, question: Hashable, run: Callable[[], T]) -> T:
    """What a model says: asked now, or, of the base, as it said before.

    Args:
        models: those of the run.
        which: of them.
        question: everything that the answer depends on besides the model.
        run: asks it. The answer is shared, and may not be changed.

    Raises:
        InputError: the model cannot be run on this.
    """
    try:
        return as_before(models.base, question, run) if which == "base" else run()
    except (ValueError, TypeError, RuntimeError) as error:
        raise InputError(
            models.base.path,
            f"cannot be run ({type(error).__name__}: {error})",
            "check that data, tokenizer and model belong together",
        ) from None


def mean_losses(
    models: LoadedModels,
    which: Which,
    texts: Sequence[Continuation],
    progress: Progress | None,
    doing: str,
) -> list[float]:
    """The mean loss of each text to one of the models, nats a token.

    Raises:
        InputError: the model cannot be run on them.
    """
    question = "continuations", tuple((one.tokens.tobytes(), one.start) for one in texts)
    run = partial(continuation_losses, models.select(which), texts, told(progress, doing))
    return [float(np.mean(one, dtype=np.float64)) for one in ask(models, which, question, run)]


def evenly(total: int, wanted: int) -> list[int]:
    """Places, at most as many as wanted, evenly over so many in all."""
    count = min(total, wanted)
    return [round(i * (total - 1) / max(1, count - 1)) for i in range(count)]
