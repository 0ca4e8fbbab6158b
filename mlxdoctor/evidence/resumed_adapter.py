"""The adapter that a run was resumed from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mlxdoctor.evidence.adapter import Adapter
from mlxdoctor.evidence.source import Source


@dataclass(frozen=True)
class ResumedAdapter:
    """The file that `resume_adapter_file` named, as it is now.

    Attributes:
        adapter: its tensors.
    """

    kind: ClassVar[str] = "adapter resumed from"

    adapter: Adapter

    @property
    def sources(self) -> tuple[Source, ...]:
        """The file."""
        return self.adapter.sources
