"""A run that has not begun: its configuration, and what of it is on this machine.

Only a preflight has one. What asks for it looks at what would happen, and what is asked of a run
that was made does not arise here.
"""

from __future__ import annotations

import importlib.metadata
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from mlxdoctor.evidence.adapter import FILE_NAMES
from mlxdoctor.evidence.checkpoints import CHECKPOINT_NAME
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.kind import NoSuchThing, RunView
from mlxdoctor.evidence.mlx_lm_defaults import MLX_LM_ADAPTER_PATH
from mlxdoctor.evidence.run_files import resolve_file
from mlxdoctor.evidence.source import Source

#: The packages that give MLX a graphics card where it is not Apple's.
_CUDA = ("mlx-cuda", "mlx-cuda-12", "mlx-cuda-13")


@dataclass(frozen=True)
class PlannedRun:
    """What is planned.

    Attributes:
        config: the configuration, options of the command line included.
        has_gpu: whether the MLX of this machine has a graphics card to compute on, as far as
            can be told from what is installed.
        has_base: whether the base model is on this machine.
        has_data: whether the data are.
        resumes_from: the file that it starts from, where it names one and that is here.
        adapter_path: where it would write.
        older: the names of adapters and checkpoints that lie there already.
    """

    kind: ClassVar[str] = ""

    config: TrainingConfig
    has_gpu: bool
    has_base: bool
    has_data: bool
    resumes_from: Path | None
    adapter_path: str
    older: tuple[str, ...]

    @property
    def sources(self) -> tuple[Source, ...]:
        """None of its own: the configuration is listed as that."""
        return ()

    @classmethod
    def find(cls, run: RunView) -> PlannedRun:
        """The plan, in a preflight; see `Evidence`."""
        if not run.is_planned:
            raise NoSuchThing("the run was made, and not only planned")
        config = run.need(TrainingConfig)
        named = config.resume_adapter_file
        stated = config.values.get("adapter_path")
        path = stated if isinstance(stated, str) and stated else MLX_LM_ADAPTER_PATH
        return cls(
            config,
            has_gpu=has_gpu(),
            has_base=run.files.base is not None,
            has_data=run.files.data is not None,
            resumes_from=resolve_file(named, run.files.roots) if named else None,
            adapter_path=path,
            older=tuple(_older(Path(path))),
        )


def _older(folder: Path) -> list[str]:
    """The adapters in the folder that mlx-lm would write into, from the folder it is started in."""
    try:
        names = sorted(one.name for one in folder.iterdir())
    except (OSError, ValueError):
        return []
    return [one for one in names if one in FILE_NAMES or CHECKPOINT_NAME.match(one)]


def has_gpu() -> bool:
    """Whether MLX computes on a graphics card here: on a Mac, or with its CUDA package."""
    if platform.system() == "Darwin":
        return platform.machine() == "arm64"
    return any(_is_installed(one) for one in _CUDA)


def _is_installed(package: str) -> bool:
    try:
        importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True
