"""Where a run that overfitted is to be stopped, and which save is nearest to it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import PurePath

from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.supervision import SupervisedRows
from mlxdoctor.evidence.training_log import Save, TrainingLog
from mlxdoctor.finding import Sign
from mlxdoctor.measure.losses.memorising import FEW_ROWS, different_rows
from mlxdoctor.safety.quoting import quoted


def with_a_stop(
    sign: Sign, log: TrainingLog, rows: SupervisedRows | None, config: TrainingConfig | None
) -> Sign:
    """The finding with what to do: where to stop, how many passes that is, and the save near it."""
    segment, at = log.main, sign.onset or 0
    counts_iterations = segment.axis in ("iteration", "step")
    end = int(segment.series["train_loss"].iterations[-1])
    # Before training there was nothing to stop at.
    first = at <= min(int(one.iterations[0]) for one in segment.series.values())
    if not counts_iterations or first or at >= end:
        return sign
    batch = config.batch_size if config is not None else None
    is_whole = rows is not None and 0 < len(rows.rows) == rows.total_rows
    different = different_rows(rows) if rows is not None and is_whole else 0
    stop = f"stop at {segment.unit} {at}"
    if different and batch:
        often = at * batch / different
        stop += f", which is {often:.{0 if often >= 2 else 1}f} passes over the {different} rows"
    saves = {one.iteration: one for one in log.saves if one.iteration is not None}
    near = min(saves, key=lambda one: abs(one - at), default=end)
    use = f"use {_file_of(saves[near])}, saved nearest to it; or " if near < end else ""
    few = 0 < different < FEW_ROWS
    more = f"; {different} rows are few, and more of them help most" if few else ""
    return replace(
        sign,
        fix=f"{use}train again and {stop}{more}",
        measured={**sign.measured, "advised_iters": at, "different_rows": different or None},
    )


def _file_of(save: Save) -> str:
    names = [PurePath(one).name for one in save.files]
    numbered = [one for one in names if str(save.iteration) in one]
    return quoted(numbered[0]) if numbered else f"the save of iteration {save.iteration}"
