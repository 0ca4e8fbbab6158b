"""How many files a second `lint` examines: the Python files of real packages that use MLX.

The packages are downloaded from PyPI and unpacked; nothing of them is installed or run. Other
linters examine the same files, each for what it is made for: pyflakes on one core, as it does.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

from tests.benchmarks.peers import Peers
from tests.benchmarks.table import Line
from tests.benchmarks.timing import measure

PACKAGES = (
    "chuk-lazarus==0.4.1", "mflux==0.24.0", "mlx-audio==0.6.2", "mlx-forge==0.8.0",
    "mlx-lm==0.32.2", "mlx-lm-lora==5.10.2", "mlx-tune==0.6.0", "mlx-vlm==0.7.10",
    "mlxsmith==0.1.9", "sillm-mlx==0.2.0", "telos-ml==1.2.0", "textpolicy==0.1.11",
)  # fmt: skip
#: Wheels for a Mac: some packages have no other.
FOR_A_MAC = ("--platform", "macosx_15_0_arm64", "--platform", "any", "--python-version", "3.12")
#: Files a second of two cores, and seconds a file.
LEAST, LONGEST = 400, 1.0
ALONE = (
    "import sys; from pathlib import Path; from mlxdoctor.lint.linter import lint; "
    "lint([Path(sys.argv[1])])"
)


def fetched(folder: Path) -> Path:
    """A folder with the Python files of the packages."""
    wheels, source = folder / "wheels", folder / "source"
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:"]
    subprocess.run([*command, *FOR_A_MAC, "-d", str(wheels), *PACKAGES], check=True)
    for wheel in sorted(wheels.glob("*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            names = [one for one in archive.namelist() if one.endswith(".py")]
            archive.extractall(source / wheel.name.split("-")[0], names)
    return source


def slowest(files: list[Path]) -> tuple[float, Path]:
    """The file that takes longest, and how long; of two turns the shorter."""
    from mlxdoctor.lint.linter import lint

    def seconds(path: Path) -> float:
        begun = time.perf_counter()
        lint([path])
        return time.perf_counter() - begun

    return max((min(seconds(path), seconds(path)), path) for path in files)


def measured(scratch: Path, peers: Peers) -> Iterator[Line]:
    """The rows of the table."""
    source = fetched(scratch)
    files = sorted(source.rglob("*.py"))
    count, cores = len(files), os.cpu_count() or 1

    def row(what: str, command: list[str], least: float | None = None) -> Line:
        found = measure(command, repeats=3)
        rate = count / found.seconds
        aim = "" if least is None else f"at least {least:g} a second of two cores"
        met = None if least is None else rate >= least * cores / 2
        return Line(what, found.seconds, found.peak_mib, f"{rate:.0f} files a second", aim, met)

    yield row(f"pyflakes, {count:,} files, 1 process", [peers.command("pyflakes"), str(source)])
    yield row("`lint`, the same files, 1 process", [sys.executable, "-c", ALONE, str(source)])
    yield row(
        f"`lint`, {cores} processes",
        [sys.executable, "-m", "mlxdoctor", "lint", str(source), "--fail-on", "error"],
        LEAST,
    )
    longest, path = slowest(files)
    lines = len(path.read_bytes().splitlines())
    yield Line(
        f"the file that takes longest, {lines:,} lines",
        longest,
        aim=f"at most {LONGEST:g} s",
        met=longest <= LONGEST,
    )
