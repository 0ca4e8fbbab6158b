"""The configuration file that a run was started with, beside what it says it used."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from mlxdoctor.evidence.source import Source
from mlxdoctor.evidence.yaml_file import read_yaml_object

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True)
class StatedConfig:
    """The YAML file that an adapter_config.json names as its own configuration, as it is now.

    Attributes:
        sources: the file.
        values: its keys and values.
    """

    kind: ClassVar[str] = "configuration file of the run"

    sources: tuple[Source, ...]
    values: Mapping[str, Any]

    @classmethod
    def read(cls, path: Path) -> StatedConfig:
        """Read it.

        Raises:
            InputError: the file can't be read or is not a YAML mapping.
        """
        values, source = read_yaml_object(path)
        return cls((source,), values)
