"""The numbered checkpoints of a run, oldest first."""

from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar

from mlxdoctor.evidence.adapter import Adapter, adapter_file
from mlxdoctor.evidence.kind import Missing, RunView
from mlxdoctor.evidence.run_files import iteration_in
from mlxdoctor.evidence.source import Source, hash_file
from mlxdoctor.safety.errors import InputError


@dataclass(frozen=True)
class Checkpoint:
    """One saved state of the adapter.

    Attributes:
        iteration: the iteration in its name; None for the final file, which has none.
        path: the file of weights.
    """

    iteration: int | None
    path: Path

    @property
    def label(self) -> str:
        """How a person calls it: "iteration 300" or "the final file"."""
        return "the final file" if self.iteration is None else f"iteration {self.iteration}"

    @cached_property
    def adapter(self) -> Adapter:
        """Its tensors' names and shapes.

        Raises:
            InputError: the file is unusable.
        """
        return Adapter.read(self.path)

    @cached_property
    def source(self) -> Source:
        """The file, hashed when first asked for, if it can be read and is not too large."""
        try:
            return hash_file(self.path)
        except InputError as error:
            return Source(self.path, None, f"not read: it {error.problem}")


@dataclass(frozen=True)
class CheckpointHistory:
    """The checkpoints that a run saved.

    Attributes:
        path: the run's folder.
        checkpoints: the numbered ones by iteration, then the final file if there is one.
    """

    kind: ClassVar[str] = "checkpoint history"

    path: Path
    checkpoints: tuple[Checkpoint, ...]

    @classmethod
    def find(cls, run: RunView) -> "CheckpointHistory":
        if not run.files.checkpoints:
            raise Missing("no numbered checkpoints were found")
        return cls.read(run.files.checkpoints[0].parent)

    @classmethod
    def read(cls, path: Path) -> "CheckpointHistory":
        """Find the checkpoints in a run's folder.

        Raises:
            InputError: it is not a folder, or it holds no numbered checkpoint.
        """
        if not path.is_dir():
            raise InputError(path, "is not a folder", "name the folder that holds the checkpoints")
        numbered = [
            Checkpoint(iteration, entry)
            for entry in path.iterdir()
            if (iteration := iteration_in(entry.name)) is not None
        ]
        if not numbered:
            raise InputError(path, "holds no numbered checkpoint", "save them with `save_every`")
        numbered.sort(key=lambda save: (save.iteration or 0, save.path.name))
        with suppress(InputError):
            final = adapter_file(path)
            if all(final != save.path for save in numbered):
                numbered.append(Checkpoint(None, final))
        return cls(path, tuple(numbered))

    @cached_property
    def sources(self) -> tuple[Source, ...]:
        """Every checkpoint's file, hashed when first asked for."""
        return tuple(save.source for save in self.checkpoints)
