"""One benchmark in a process of its own, which finds this by its name."""

from __future__ import annotations

import importlib
import tempfile
from pathlib import Path

from tests.benchmarks.peers import Peers
from tests.benchmarks.table import Line


def lines_of(name: str, peers: Peers) -> list[Line]:
    """The lines of one benchmark, made in a folder of its own that is removed afterwards."""
    module = importlib.import_module(f"tests.benchmarks.{name}")
    with tempfile.TemporaryDirectory() as scratch:
        return list(module.measured(Path(scratch), peers))
