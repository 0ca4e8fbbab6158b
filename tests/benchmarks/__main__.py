"""Every benchmark, in one command: a Markdown table with the machine's description.

    python -m tests.benchmarks [NAME...]                  all, or these
    python -m tests.benchmarks --smallest --no-peers      to see that everything runs

Peers are installed from PyPI, each into an environment of its own below the folder of `--peers` (a
temporary one by default), and so is this checkout, as a user has it. Machines are noisy: compare
the figures of one run with each other, not with those of another day. OpenBLAS is preloaded where
Linux has it. Minutes in all, 6 GB of disk.
"""

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

from fixtures.lab.harness import restart_with_openblas, write_page
from tests.benchmarks.setup import Setup, lines_of, markdown

#: Name -> its heading, and the function that measures it.
BENCHMARKS = {
    "startup": ("Start", "commands:startup"),
    "logs": ("Logs", "commands:logs"),
    "weights": ("Weights", "weights:measured"),
    "gate": ("Gate", "gate:measured"),
    "lint": ("Lint", "commands:lint"),
    "generation": ("Answers", "commands:generation"),
    "real_base": ("At real size", "weights:at_real_size"),
    "trainer": ("Training", "trainer:measured"),
    "tests": ("The README's tests", "commands:tests"),
}
PEERS = ("runmedic", "trainproof", "adaptersentry", "pyflakes")
CODE = ("mlxdoctor", "checks", "tests/benchmarks")
HEAD = """# Speed, measured

Medians, side by side in one run of `python -m tests.benchmarks`, peers from PyPI."""


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


def page(names: Sequence[str], setup: Setup) -> list[str]:
    """The tables of these benchmarks."""
    setup.install_ours()
    parts = []
    for name in names:
        heading, function = BENCHMARKS[name]
        print(heading, file=sys.stderr, flush=True)
        # A new process for each: what a process holds counts as the peak memory of those that
        # it starts, which inherit it for a moment.
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            lines = pool.submit(lines_of, function, setup).result()
        # Without lines, what it is measured on was not made.
        parts += [f"## {heading}\n\n{markdown(lines)}"] if lines else []
    used = [f"{one} {known}" for one in PEERS if (known := setup.version(one))]
    return [HEAD, machine(), *([f"Peers: {', '.join(used)}."] if used else []), *parts]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print the page or write it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(BENCHMARKS))
    parser.add_argument("--peers", type=Path, help="where peers are, or are to be installed")
    parser.add_argument("--no-peers", action="store_true", help="do without them, and the network")
    parser.add_argument("--smallest", action="store_true", help="as small as it can be")
    parser.add_argument("-o", "--output", type=Path, help="write the page here")
    options = parser.parse_args(arguments)
    if unknown := set(options.names) - set(BENCHMARKS):
        parser.error(f"no benchmark is called {sorted(unknown)[0]!r}: {', '.join(BENCHMARKS)}")
    if arguments is None:
        restart_with_openblas("tests.benchmarks")
    with tempfile.TemporaryDirectory() as scratch:
        folder = None if options.no_peers else (options.peers or Path(scratch)).resolve()
        setup = Setup(folder, options.smallest)
        parts = page(options.names or list(BENCHMARKS), setup)
    if options.output is None:
        print("\n\n".join(parts))
    else:
        write_page(options.output, parts, CODE)


if __name__ == "__main__":
    main()
