"""What every benchmark uses: peers from PyPI, a command measured, a row of a table."""

import importlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fixtures.lab.harness import ROOT, table

#: Exit codes of a command that did its work; 3 is inconclusive, and what Python ends with nowhere.
DONE = (0, 1, 3)


@dataclass(frozen=True)
class Setup:
    """How benchmarks are run.

    Attributes:
        peers: the folder below which peers are, or are to be installed; None to do without them.
        smallest: everything as small as it can be: to see that it runs, not to measure.
    """

    peers: Path | None
    smallest: bool = False

    def peer(self, name: str) -> str | None:
        """The path of a peer's command, installed into an environment of its own on first use."""
        if self.peers is None:
            return None
        home = self.peers / name
        if not (home / "bin" / name).exists():
            _install(name, home)
        return str(home / "bin" / name)

    def install_ours(self) -> None:
        """Install this checkout as a user has it, beside the peers, where there are any."""
        if self.peers is not None:
            _install(str(ROOT), self.peers / "mlxdoctor")

    @property
    def python(self) -> str:
        """The interpreter that our command is run by."""
        return str(self.peers / "mlxdoctor/bin/python") if self.peers else sys.executable

    @property
    def ours(self) -> tuple[str, ...]:
        """Our command: the installed one, or without peers that of this environment."""
        if self.peers is None:
            return (self.python, "-m", "mlxdoctor")
        return (str(self.peers / "mlxdoctor/bin/mlxdoctor"),)

    def version(self, name: str) -> str | None:
        """The installed version of a peer, as pip tells it; None where it is not installed."""
        python = (self.peers or Path("nowhere")) / name / "bin" / "python"
        if not python.exists():
            return None
        code = "import importlib.metadata as m, sys; print(m.version(sys.argv[1]))"
        command = [str(python), "-c", code, name]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    def turns(self, repeats: int) -> int:
        """How often something is measured after a first time, which counts where it is all."""
        return 0 if self.smallest else repeats


@dataclass(frozen=True)
class Measurement:
    """The median of several runs of one command.

    Attributes:
        seconds: wall-clock time, process start included.
        peak_mib: the largest resident set, MiB.
    """

    seconds: float
    peak_mib: float


@dataclass(frozen=True)
class Line:
    """What was measured, and what was aimed at.

    Attributes:
        what: the work.
        found: the median time and the memory, None where a rate says more.
        result: the figure that is compared with the aim; empty for what only serves as a measure.
        aim: the target in words; empty where there is none.
        met: whether the result is within it; None without a target.
    """

    what: str
    found: Measurement | None = None
    result: str = ""
    aim: str = ""
    met: bool | None = None


def _install(what: str, home: Path) -> None:
    """Install a package, or a folder of source, into an environment that is made for it."""
    if not home.exists():
        venv.create(home, with_pip=True)
    subprocess.run([home / "bin" / "python", "-m", "pip", "install", "-q", what], check=True)


def at_most(what: str, found: Measurement, other: Measurement, peer: str, most: float) -> Line:
    """A row whose time is to be at most so many times another's."""
    ratio = found.seconds / other.seconds
    return Line(what, found, f"{ratio:.2f}x {peer}", f"at most {most:g}x", ratio <= most)


def markdown(rows: Iterable[Line]) -> str:
    """The rows as a table."""
    cells = []
    for row in rows:
        times = [f"{row.found.seconds:.3f} s", f"{row.found.peak_mib:.0f} MiB"] if row.found else []
        met = {None: "", True: "yes", False: "no"}[row.met]
        cells.append([row.what, *(times or ["", ""]), row.result, row.aim, met])
    return table(("work", "median", "peak memory", "measured", "aim", "met"), cells)


def measure(
    command: Sequence[str | Path],
    *,
    repeats: int = 5,
    cwd: Path | None = None,
    cold: Sequence[Path] = (),
    says: str = "",
) -> Measurement:
    """Run a command several times after a first one, which is not counted, and take medians.

    Args:
        cold: files that are read from the disk again each time.
        says: what it prints, or it did not do its work.

    Raises:
        RuntimeError: it did not end as it should: nothing was measured.
    """
    # An installed program is compiled once; the first run does it for a checkout.
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}
    seconds, peaks = [], []
    for number in range(repeats + 1):
        _forget(cold)
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            start = time.perf_counter()
            process = subprocess.Popen(command, cwd=cwd, env=environment, stdout=out, stderr=err)
            _, status, usage = os.wait4(process.pid, 0)
            elapsed = time.perf_counter() - start
            # The child is reaped: Popen must not wait for it again.
            process.returncode = os.waitstatus_to_exitcode(status)
            out.seek(0)
            err.seek(0)
            if process.returncode not in DONE or says.encode() not in out.read():
                words = " ".join(map(str, command))
                last = err.read().decode(errors="replace")[-500:]
                raise RuntimeError(f"{words} ended with {process.returncode}: {last}")
        if number or not repeats:
            seconds.append(elapsed)
            # ru_maxrss is in bytes on macOS and in KiB elsewhere.
            peaks.append(usage.ru_maxrss / (1 << 20 if sys.platform == "darwin" else 1 << 10))
    return Measurement(statistics.median(seconds), max(peaks))


def _forget(files: Sequence[Path]) -> None:
    """Let the system drop these files from its cache, where it can be asked to (Linux)."""
    for path in files if hasattr(os, "posix_fadvise") else ():
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def lines_of(name: str, setup: Setup) -> list[Line]:
    """The lines of one benchmark, made in a folder of its own that is removed afterwards."""
    module, _, function = name.partition(":")
    measured = getattr(importlib.import_module(f"tests.benchmarks.{module}"), function)
    with tempfile.TemporaryDirectory() as scratch:
        return list(measured(Path(scratch), setup))
