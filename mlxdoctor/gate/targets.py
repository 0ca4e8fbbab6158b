"""Which adapters and runs a gate's arguments name."""

import glob
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from mlxdoctor.evidence.run_files import is_data_path, is_model_folder, iteration_in

#: Files by which a folder is known as an adapter or a run.
ADAPTER_NAMES = frozenset(
    {"adapters.safetensors", "adapter_model.safetensors", "adapters.npz", "adapter.safetensors"}
    | {"adapter_config.json"}
)


#: Endings of files that lie in a run's own folder.
_OF_A_RUN = frozenset({".log", ".yaml", ".yml"})


@dataclass(frozen=True)
class Target:
    """One item: its path, and why it can't be examined, a sentence; "" where it can."""

    path: str
    problem: str = ""


def targets(arguments: Iterable[str]) -> tuple[Target, ...]:
    """The items that the arguments name, each once, in order; those of a glob by name.

    Rules go by the path: of several that lead to one item, the one through the fewest links names
    it. An argument that names nothing, or a folder of several runs, is an item that can't be
    examined: it fails the gate and does not stop the rest.
    """
    items: dict[str, Target] = {}
    for argument in arguments:
        for target in _expanded(argument):
            identity = os.path.realpath(target.path)
            before = items.setdefault(identity, target)
            if before.path != target.path and _links(target.path) < _links(before.path):
                items[identity] = target
    return tuple(items.values())


def _links(path: str) -> int:
    whole = Path(os.path.abspath(path))  # noqa: PTH100 - as written: links are counted
    return sum(folder.is_symlink() for folder in (whole, *whole.parents))


def _expanded(argument: str) -> Iterator[Target]:
    # A name with brackets in it is a name first.
    if Path(argument).exists() or not glob.has_magic(argument):
        yield _target(argument)
    elif matched := sorted(glob.glob(argument, recursive=True)):  # noqa: PTH207 - keeps the slash
        yield from map(_target, matched)
    else:
        yield Target(argument, f"{argument}: nothing matches; check the pattern")


def _target(path: str) -> Target:
    folder = Path(path)
    shown = path.rstrip("/") or path
    if not folder.exists():
        return Target(shown, f"{shown}: there is no such file or folder; check the path")
    if folder.is_dir() and (runs := _runs_below(folder)) > 1:
        problem = f"{shown}: holds {runs} adapters or runs and is none itself"
        return Target(shown, f"{problem}; name them with a glob in quotes: '{shown}/*/'")
    return Target(shown)


def _runs_below(folder: Path) -> int:
    """How many folders in this one are adapters or runs; 0 where it is one itself."""
    try:
        entries = sorted(folder.iterdir())
        if _is_run(entries) or is_model_folder(folder) or is_data_path(folder):
            return 0
        # A run in several parts has its logs and configurations beside their adapters.
        if any(entry.suffix in _OF_A_RUN for entry in entries):
            return 0
        below = (entry for entry in entries if entry.is_dir() and not entry.name.startswith("."))
        return sum(_is_run(list(entry.iterdir())) for entry in below)
    except OSError:
        # What can't be listed is named when it is examined.
        return 0


def _is_run(entries: list[Path]) -> bool:
    return any(
        entry.name in ADAPTER_NAMES or iteration_in(entry.name) is not None for entry in entries
    )
