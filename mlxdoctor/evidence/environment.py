"""The versions in play: of the run, where it recorded them, and of this machine."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from types import MappingProxyType
from typing import ClassVar

from mlxdoctor.evidence.kind import RunView
from mlxdoctor.evidence.source import Source

_PACKAGES = ("mlxdoctor", "mlx", "mlx-lm", "numpy", "transformers")


@dataclass(frozen=True)
class Environment:
    """Versions by package name.

    Attributes:
        sources: empty: nothing of the run is read for it.
        here: versions installed where the diagnosis runs. They say nothing
            about the machine that trained.
        machine: operating system and architecture of this machine.
    """

    kind: ClassVar[str] = "environment"

    sources: tuple[Source, ...]
    here: Mapping[str, str]
    machine: str

    @classmethod
    def find(cls, run: RunView) -> Environment:
        """What is installed here, whatever the run; see `Evidence`."""
        del run
        return cls.read()

    @classmethod
    def read(cls) -> Environment:
        """The versions installed here, without importing any of the packages."""
        return cls((), _installed(), f"{platform.system()} {platform.machine()}")


@cache  # they are looked up for every adapter of a gate, and can't change meanwhile
def _installed() -> Mapping[str, str]:
    here = {}
    for package in _PACKAGES:
        try:
            here[package] = version(package)
        except PackageNotFoundError:
            continue
    return MappingProxyType(here)
