"""Before the hours are spent: would this run fail, does it fit, how long does it take?

A configuration, its data and its base model are looked at as `diagnose` looks at a run: by the
same checks, of which some look at what is planned only (checks/planned_*.py). The function
stands here, and loads the rest when it is called, as that of `mlxdoctor.probe` does.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mlxdoctor.api import AnyPath, RunReport
    from mlxdoctor.check import Thresholds
    from mlxdoctor.evidence.kind import Progress

__all__ = ["preflight"]


def preflight(
    config: Any,
    *,
    options: Mapping[str, Any] | None = None,
    base: AnyPath | None = None,
    data: AnyPath | None = None,
    steps: bool = False,
    seconds: float = 120.0,
    elsewhere: bool = False,
    memory: int | None = None,
    thresholds: Thresholds | None = None,
    with_text: bool = True,
    progress: Progress | None = None,
) -> RunReport:
    """Look at a run before it is made.

    Args:
        config: the configuration's file; or its keys and values as a mapping, or as the
            attributes of an object, such as the arguments that `mlx_lm.lora` is run with; None
            for `options` alone.
        options: mlx-lm's keys that go before those of the file.
        base: the base model's folder, where it is not where the configuration says.
        data: the data folder, likewise.
        steps: make steps with the model too: which rate, how much memory, how long.
        seconds: that these may take, about.
        elsewhere: the run will be made on another machine: this one's memory and graphics card
            are not looked at.
        memory: bytes of the machine that will train; by default those of this one.
        thresholds: check -> threshold -> value, in place of those that ship.
        with_text: let the report quote training rows.
        progress: called with what is being done, a count done, and a total.

    Returns:
        The report; its `planned.readiness` is the answer.

    Raises:
        InputError: the configuration can't be read or is none.
    """
    from mlxdoctor.preflight.examine import examine

    return examine(
        config,
        options or {},
        base=None if base is None else Path(base),
        data=None if data is None else Path(data),
        steps=steps,
        seconds=seconds,
        elsewhere=elsewhere,
        memory=memory,
        thresholds=thresholds,
        with_text=with_text,
        progress=progress,
    )
