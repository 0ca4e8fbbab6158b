"""What several tests need: the fixture runs, and the logs of reported ones."""

import hashlib
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mlxdoctor.check import Check, discover
from mlxdoctor.cli import main
from tests.checks.log_evidence import LogWriter

ROOT = Path(__file__).parents[1]
FIXTURES = ROOT / "fixtures"
RUNS = FIXTURES / "runs"
BASE, HEALTHY = FIXTURES / "base", RUNS / "healthy-ordinary"
#: Logs with the figures of reported runs, in every format that users have.
LOGS = FIXTURES / "logs"

#: Runs a command; gives its exit code, its standard output and its standard error.
Call = Callable[..., tuple[int, str, str]]
#: Copies a fixture run.
Copy = Callable[[str], Path]
#: Starts Python code in a process of its own.
Start = Callable[[str], subprocess.Popen[str]]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that take longest are begun first, so that no worker is left alone with one.

    Of a function marked `sweep(n)`, all cases but n, spread over the whole, are marked `long`.
    """
    swept: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("sweep") is not None:
            swept.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for cases in swept.values():
        marker = cases[0].get_closest_marker("sweep")
        kept = min(marker.args[0], len(cases)) if marker is not None else 0
        places = {place * len(cases) // kept for place in range(kept)}
        for place, item in enumerate(cases):
            if place not in places:
                item.add_marker("long")

    def stated(item: pytest.Item) -> int:
        marker = item.get_closest_marker("slow")
        return marker.args[0] if marker is not None and marker.args else 0

    items.sort(key=stated, reverse=True)


def check_called(name: str) -> Check:
    """The check of that name, found as the tool finds it."""
    return next(one for one in discover() if one.name == name)


@pytest.fixture
def found_anew() -> Iterator[None]:
    """The checks are looked for again in a test, and after it."""
    discover.cache_clear()
    yield
    discover.cache_clear()


def example_of(start: str) -> str:
    """The example in CONTRIBUTING.md that begins so."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    (example,) = re.findall(rf"^```python\n({re.escape(start)}.*?)^```$", text, re.M | re.S)
    return example


def run_names() -> list[str]:
    """The fixture runs, by name."""
    return sorted(path.parent.name for path in RUNS.glob("*/expected.json"))


def expected(name: str) -> dict[str, Any]:
    """What is known of a fixture run: its cause (None for a healthy one) and verdict."""
    known: dict[str, Any] = json.loads((RUNS / name / "expected.json").read_text())
    return known


@pytest.fixture
def logs(tmp_path: Path) -> LogWriter:
    """Writes a log into the test's folder, and reads it back."""
    return LogWriter(tmp_path)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a log may be written."""
    return tmp_path / "train.log"


@pytest.fixture
def copied(tmp_path: Path) -> Copy:
    """Copies a fixture run, so that a test may damage it."""

    def copy(name: str) -> Path:
        target = tmp_path / name
        shutil.copytree(RUNS / name, target)
        return target

    return copy


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    """Calls the program as the command line does."""

    def run(*arguments: object) -> tuple[int, str, str]:
        code = main([*map(str, arguments)])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts Python code that says "ready" first; it is ended after the test."""
    running: list[subprocess.Popen[str]] = []

    def begin(code: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", code],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        running.append(process)
        assert process.stdout.readline() == "ready\n"
        return process

    yield begin
    for process in running:
        process.kill()
        process.communicate()


def digest(folder: Path) -> dict[str, tuple[str, int]]:
    """What lies in a folder: the content of every file, and when it and each folder changed."""
    return {
        str(path.relative_to(folder)): (
            hashlib.sha256(path.read_bytes() if path.is_file() else b"").hexdigest(),
            path.stat().st_mtime_ns,
        )
        for path in (folder, *sorted(folder.rglob("*")))
    }
