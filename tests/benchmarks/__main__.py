"""Every benchmark, in one command: a Markdown table with the machine's description.

    python -m tests.benchmarks [--peers FOLDER] [-o FILE] [NAME...]

Peers are installed from PyPI, each into an environment of its own below FOLDER (a temporary one
by default). Machines are noisy: compare the figures of one run with each other, not with those
of another day. On Linux, preload OpenBLAS (LD_PRELOAD), or models run on the reference BLAS.
Minutes in all, and 5 GB of disk.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path

from tests.benchmarks.peers import Peers
from tests.benchmarks.separate import lines_of
from tests.benchmarks.table import markdown

#: Module -> its heading.
BENCHMARKS = {
    "startup": "Start",
    "logs": "Logs",
    "weights": "Weights",
    "gate": "Gate",
    "lint": "Lint",
    "generation": "Answers",
    "real_base": "At real size",
    "trainer": "Training",
}
PEERS = ("runmedic", "trainproof", "adaptersentry", "pyflakes")
HEAD = """# Speed, measured

Medians, side by side in one run of `python -m tests.benchmarks`, peers from PyPI.
"""


def machine() -> str:
    """The machine in a line."""
    name = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        lines = info.read_text().splitlines()
        names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
        name = names[0] if names else name
    preloaded = Path(os.environ.get("LD_PRELOAD", "")).name
    blas = f", {preloaded} preloaded" if preloaded else ""
    return (
        f"{os.cpu_count()} cores of {name}, {platform.system()}, "
        f"Python {platform.python_version()}, numpy {version('numpy')}, mlx {version('mlx')}{blas}."
    )


def page(names: Sequence[str], peers: Peers) -> str:
    """The tables of these benchmarks."""
    parts = []
    for name in names:
        print(BENCHMARKS[name], file=sys.stderr, flush=True)
        # A new process for each: what a process holds counts as the peak memory of those that
        # it starts, which inherit it for a moment.
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            lines = pool.submit(lines_of, name, peers).result()
        if not lines:
            # What it is measured on was not made.
            continue
        parts.append(f"## {BENCHMARKS[name]}\n\n{markdown(lines)}")
    used = [f"{one} {peers.version(one)}" for one in PEERS if peers.has(one)]
    versions = f"\nPeers: {', '.join(used)}.\n" if used else ""
    return f"{HEAD}\n{machine()}\n{versions}\n" + "\n".join(parts)


def main() -> None:
    """Measure, and print the page or write it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(BENCHMARKS))
    parser.add_argument("--peers", type=Path, help="where peers are, or are to be installed")
    parser.add_argument("-o", "--output", type=Path, help="write the page here")
    options = parser.parse_args()
    if unknown := set(options.names) - set(BENCHMARKS):
        parser.error(f"no benchmark is called {sorted(unknown)[0]!r}: {', '.join(BENCHMARKS)}")
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.peers or Path(scratch)
        text = page(options.names or list(BENCHMARKS), Peers(folder.resolve()))
    if options.output is None:
        print(text, end="")
    else:
        options.output.write_text(text)


if __name__ == "__main__":
    main()
