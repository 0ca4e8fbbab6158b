"""Tells the folder of one run from a folder above several."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path

#: Folders that belong to a run: a save with a log of its own, as PEFT's trainer makes them, and
#: what W&B keeps of a run.
_PART_OF_A_RUN = re.compile(r"checkpoint-\d+|wandb")


def separate_runs(
    folder: Path, saved: Collection[Path], configs: Collection[Path], logs: Collection[Path]
) -> tuple[Path, ...]:
    """The folders of several runs below one folder; empty where it is one run's.

    Several are folders side by side, nothing of a run beside them: each with a log, and an
    adapter or a configuration; or, where there is no log at all, each with an adapter.

    Args:
        folder: the folder that was asked about.
        saved: adapters in it, and the configurations that were saved with them.
        configs: other configurations in it.
        logs: training logs in it.
    """
    everything = (*saved, *configs, *logs)
    names = {path.relative_to(folder).parts[0] for path in everything}
    if not names or any(folder / name in everything for name in names):
        return ()
    places = [folder / name for name in sorted(names)]
    if len(places) == 1:
        return separate_runs(places[0], saved, configs, logs)
    named = [one for one in places if not _PART_OF_A_RUN.fullmatch(one.name)]
    settings = (*saved, *configs) if logs else saved
    runs = [one for one in named if _holds(one, settings) and (not logs or _holds(one, logs))]
    return tuple(runs) if len(runs) > 1 else ()


def _holds(folder: Path, files: Collection[Path]) -> bool:
    return any(one.is_relative_to(folder) for one in files)
