"""Whether a planned run fits into the memory of this machine.

What it finds. Before a run: a peak of memory above the memory there is, or so near to it that the
prediction can't tell.

Why it matters. Memory runs out at the longest batch, which may come after an hour: the system ends
the run, or swaps, which is very slow.

How it is measured. Weights, adapters, the optimiser's state, what the backward pass keeps of the
longest batch, and the logits follow from shapes (reports/preflight-memory.md: predicted beside
what MLX reported). The memory is the machine's, or on a Mac what Metal recommends to use.

When it is wrong. If other programs use memory, or the run is made on another machine: say so with
`--elsewhere` or `--memory`. The memory of unknown kinds of layers is estimated.

What to do. Recompute activations, which only costs time. Smaller batches with accumulation cost
more time; shorter rows lose their ends, and fewer layers learn less.
"""

from collections.abc import Iterator

from mlxdoctor.check import check
from mlxdoctor.finding import Measurement, Seen, Severity, Sign, Symptom
from mlxdoctor.measure.run_cost import SAFE_SHARE, RunCost

_SAYS = (
    "Training takes {peak_gb:.3g} GB at its peak, predicted from shapes, on {batch_size:* row} of "
    "{tokens:,} tokens[; there are {memory_gb:.3g} GB]."
)


@check(
    codes={
        "does-not-fit": Symptom.error(
            "the run needs more memory than there is, or nearly all of it",
            "a predicted peak below 87% of the memory",
            "set grad_checkpoint: true[, with which it takes {checkpointed_gb:.3g} GB], lower "
            "batch_size and accumulate, or shorten the rows",
            says=_SAYS,
        ),
    },
)
def predicted_memory(cost: RunCost) -> Iterator[Sign | Seen]:
    measured: dict[str, Measurement] = {
        "peak_gb": cost.peak / 1e9,
        "memory_gb": None if cost.memory is None else cost.memory / 1e9,
        "batch_size": cost.batch_size,
        "tokens": cost.tokens,
    }
    # The memory is not known for a run on another machine.
    if cost.memory is None or cost.peak <= SAFE_SHARE * cost.memory:
        yield Seen(_SAYS, measured)
        return
    if cost.checkpointed is not None and cost.checkpointed <= SAFE_SHARE * cost.memory:
        measured |= {"checkpointed_gb": cost.checkpointed / 1e9, "advised_grad_checkpoint": True}
    is_unsure = cost.is_rough or cost.peak <= cost.memory
    yield Sign("does-not-fit", measured, severity=Severity.WARNING if is_unsure else None)
