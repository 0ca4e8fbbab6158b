"""How long the commands take to begin with, and a diagnosis of a whole run."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from tests.benchmarks.peers import Peers
from tests.benchmarks.table import Line, at_most, plain
from tests.benchmarks.timing import measure

# Not from tests.conftest: what this process imports counts as its children's peak memory,
# which they inherit until they start.
FIXTURES = Path(__file__).parents[2] / "fixtures"


def measured(scratch: Path, peers: Peers) -> Iterator[Line]:
    """The rows of the table."""
    del peers
    ours = [sys.executable, "-m", "mlxdoctor"]
    click = measure([sys.executable, "-c", "import click"], repeats=15)
    yield plain('`python -c "import click"`', click)
    helped = measure([*ours, "--help"], repeats=15)
    yield at_most("`mlxdoctor --help`", helped, click, "click", 2)
    run = [*ours, "diagnose", str(FIXTURES / "runs" / "collapse-frequent-token")]
    output = ["-o", str(scratch / "reports")]
    found = measure([*run, "--no-generate", *output], cwd=FIXTURES)
    yield Line("`diagnose --no-generate` of a run, with figures", found.seconds, found.peak_mib)
    found = measure([*run, *output], repeats=2, cwd=FIXTURES)
    yield Line(
        "`diagnose` of it, the answers of both models included", found.seconds, found.peak_mib
    )
