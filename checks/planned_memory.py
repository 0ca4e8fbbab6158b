"""Whether a planned run fits into the memory of this machine.

What it finds. Before a run: a peak of memory that is more than there is, or so near to it that the
prediction can't tell.

Why it matters. Memory runs out at the longest batch, which may come after an hour: the system ends
the run, or swaps, which is slower than any other machine.

How it is measured. Weights, adapters, the optimiser's state, what the backward pass keeps of the
longest batch, and the logits follow from shapes (reports/preflight-memory.md: predicted beside
what MLX reported). With `--steps` one real step on the longest batch corrects it. The memory is the
machine's, or on a Mac what Metal recommends to use.

When it is wrong. Where other programs hold memory, or the run is made on another machine: say so
with `--elsewhere` or `--memory`. A model that is known by its name alone is guessed at.

What to do. What the finding says, in the order of what it costs: recomputed activations cost time
alone, smaller batches with accumulation more time, shorter rows their ends, fewer layers what they
would have learned.
"""

from collections.abc import Iterator

from mlxdoctor.check import NotApplicable, check
from mlxdoctor.finding import ADVISED, Measurement, Seen, Severity, Sign, Symptom
from mlxdoctor.measure.run_cost import RunCost, in_gigabytes

_EXPECTED = "a predicted peak below 87% of the memory"


@check(
    codes={
        "does-not-fit": Symptom.error("the run needs more memory than there is", _EXPECTED),
        "may-not-fit": Symptom.warning("the run needs nearly all memory", _EXPECTED),
    },
)
def planned_memory(cost: RunCost) -> Iterator[Sign | Seen]:
    """Hold the predicted peak against the memory."""
    if cost.memory is None or cost.room is None:
        raise NotApplicable("the run is to be made on another machine")
    how = "takes" if cost.is_measured else "is predicted to take"
    said = (
        f"Training {how} {in_gigabytes(cost.peak)} at its peak, on {cost.batch_size} rows of "
        f"{cost.tokens:,} tokens; there are {in_gigabytes(cost.memory)}"
    )
    measured: dict[str, Measurement] = {
        "peak": cost.peak,
        "memory": cost.memory,
        "batch_size": cost.batch_size,
        "tokens": cost.tokens,
    }
    room = cost.memory if cost.is_measured else cost.room
    if cost.peak <= room:
        yield Seen(f"{said}.", measured)
        return
    way = cost.ways[0] if cost.ways else None
    for key, value in (way.settings if way is not None else {}).items():
        measured[f"{ADVISED}{key}"] = value
    fits = f" With that it takes {in_gigabytes(way.peak)}." if way is not None else ""
    yield Sign(
        "does-not-fit" if cost.peak > cost.memory else "may-not-fit",
        f"{said}.",
        measured,
        severity=Severity.WARNING if cost.is_rough else None,
        fix=f"{' '.join(way.sentences)}{fits}"
        if way is not None
        else "take a smaller model, or a machine with more memory",
    )
