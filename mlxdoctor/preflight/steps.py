"""Steps with the real model: the first as the probe has it, rates, and the first report."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from types import MappingProxyType

from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.dataset import Dataset
from mlxdoctor.run import Run
from mlxdoctor.safety.errors import InputError

#: Of the time, the share that the range of rates may take.
RATES_SHARE = 0.7
#: The share by the end of which the run's first iterations are made, as far as one gets.
FIRST_SHARE = 0.8


def make_steps(run: Run, config: TrainingConfig, seconds: float) -> Iterator[str]:
    """Make the steps, and give the run what they showed.

    Args:
        run: the planned run; its base model and data are here, or nothing is made.
        config: its configuration.
        seconds: that it may take, about.

    Yields:
        Why some could not be made, a sentence each.
    """
    from mlxdoctor.preflight.first_losses import first_report
    from mlxdoctor.preflight.first_step import first_step
    from mlxdoctor.preflight.prepared import prepared_run, settings_of
    from mlxdoctor.preflight.rates import range_test

    begun = time.perf_counter()
    base, dataset = run.get(BaseModel), run.get(Dataset)
    if base is None or dataset is None:
        yield "No step was made: it takes the base model and the data."
        return
    values = {**config.values, "model": str(base.path), "data": str(dataset.path)}
    try:
        here = replace(config, values=MappingProxyType(values))
        prepared = prepared_run(settings_of(here))
        run.give(first_step(prepared, sources=config.sources, progress=run.progress))
        spent = time.perf_counter() - begun
        left = max(RATES_SHARE * seconds - spent, 1.0)
        run.give(range_test(prepared, seconds=left, progress=run.progress))
        spent = time.perf_counter() - begun
        first = first_report(prepared, FIRST_SHARE * seconds - spent)
        if first is not None:
            run.give(first)
    except InputError as error:
        yield f"No step could be made, or not all: {error}."
