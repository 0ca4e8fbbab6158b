"""What a plan comes to, in sentences: rows and passes, lengths, and what the steps amount to."""

from __future__ import annotations

from collections.abc import Iterator

from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.dataset import Dataset
from mlxdoctor.evidence.supervision import SupervisedRows
from mlxdoctor.judge.rate import BandLimits, step_of
from mlxdoctor.measure.first_report import FirstReport
from mlxdoctor.measure.rate_range import RateRange
from mlxdoctor.measure.run_cost import RunCost, in_gigabytes
from mlxdoctor.run import Run


def facts(run: Run, config: TrainingConfig) -> Iterator[str]:
    """The sentences, as far as there is something to make them of."""
    yield from _passes(run, config)
    yield from _lengths(run)
    yield from _takes(run.get(RunCost))
    rates = run.get(RateRange)
    if rates is None:
        yield from _step(run, config)
    else:
        yield from rates.conclusions
        yield from filter(None, [rates.untold])
    first = run.get(FirstReport)
    if first is not None:
        yield (
            f"The first {first.iteration} iterations were made: at iteration {first.iteration} the "
            f"log will report a training loss of {first.loss:.3f}."
        )


def _passes(run: Run, config: TrainingConfig) -> Iterator[str]:
    dataset = run.get(Dataset)
    train = dataset.splits.get("train") if dataset is not None else None
    iters, batch = config.iters, config.batch_size
    if train is None or not train.rows or not iters or not batch or batch > len(train.rows):
        return
    passes = iters / (len(train.rows) // batch)
    yield (
        f"{len(train.rows):,} rows in batches of {batch}: {iters:,} iterations are "
        f"{passes:.2g} passes over them."
    )


def _lengths(run: Run) -> Iterator[str]:
    rows = run.get(SupervisedRows)
    if rows is None or not rows.rows:
        return
    longest = max(one.full_length for one in rows.rows)
    cut = sum(one.full_length > rows.max_seq_length for one in rows.rows)
    seen = "" if rows.examined_rows == rows.total_rows else f" of {rows.examined_rows:,} looked at"
    said = f"The longest row{seen} has {longest:,} tokens"
    if cut:
        yield f"{said}, and {cut:,} are cut after {rows.max_seq_length:,}."
    else:
        yield f"{said}: none is cut after {rows.max_seq_length:,}."


def _takes(cost: RunCost | None) -> Iterator[str]:
    if cost is None:
        return
    guessed = "about " if cost.is_rough else ""
    of = "" if cost.memory is None else f", of {in_gigabytes(cost.memory)}"
    how = "takes" if cost.is_measured else "will take"
    yield f"Training {how} {guessed}{in_gigabytes(cost.peak)} of memory at its peak{of}."
    if cost.seconds is not None:
        low, likely, high = map(_in_words, cost.seconds)
        yield (
            f"From its first iteration to its last the run takes about {likely} here ({low} to "
            f"{high}), what is compiled at first aside."
        )


def _in_words(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"


def _step(run: Run, config: TrainingConfig) -> Iterator[str]:
    step = step_of(config, run.get(BaseModel), BandLimits())
    if step is None or step.parameters is None or not step.low <= step.size <= step.high:
        return
    yield (
        f"Rate × scale is {step.size:.2g}, within what is usual for a model of this size "
        f"({step.low:.2g} to {step.high:.2g})."
    )
