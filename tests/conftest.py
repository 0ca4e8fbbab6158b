"""What several tests need: the fixture runs, and the logs of reported ones."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from mlxdoctor.check import Check, discover

ROOT = Path(__file__).parents[1]
FIXTURES = ROOT / "fixtures"
RUNS = FIXTURES / "runs"
#: Logs with the figures of reported runs, in every format that users have.
LOGS = FIXTURES / "logs"


#: Processor seconds that a test may take which is not marked `slow`.
MOST_SECONDS = 2.0


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--strict-time",
        type=float,
        metavar="FACTOR",
        help=f"fail a test not marked slow that takes over FACTOR x {MOST_SECONDS} processor "
        "seconds: 1 for what you write, more on a machine that others use too",
    )
    parser.addoption("--times", metavar="FILE", help="append every test's processor seconds to it")


def _processor_seconds() -> float:
    # Not the clock's: the machine may be busy with something else. Children count when they end.
    return sum(os.times()[:4])


def _note(item: pytest.Item, seconds: float, phase: str = "") -> None:
    if times := item.config.getoption("--times"):
        with Path(times).open("a") as file:
            file.write(f"{seconds:.2f} {item.nodeid}{phase}\n")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    start = _processor_seconds()
    yield
    # What several tests share is made before one of them.
    if (seconds := _processor_seconds() - start) > 0.1:
        _note(item, seconds, " setup")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    start = _processor_seconds()
    yield
    seconds = _processor_seconds() - start
    _note(item, seconds)
    is_slow = item.get_closest_marker("slow") is not None
    factor = item.config.getoption("--strict-time")
    if factor and seconds > factor * MOST_SECONDS and not is_slow:
        pytest.fail(f"{seconds:.1f} processor seconds: mark it slow, or make it faster")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that take longest are begun first, so that no worker is left alone with one."""

    def stated(item: pytest.Item) -> int:
        marker = item.get_closest_marker("slow")
        return marker.args[0] if marker is not None and marker.args else 0

    items.sort(key=stated, reverse=True)


@cache
def _checks() -> dict[str, Check]:
    return {one.name: one for one in discover()}


def check_called(name: str) -> Check:
    """The check of that name, found as the tool finds it."""
    return _checks()[name]


def run_names() -> list[str]:
    """The fixture runs, by name."""
    return sorted(path.parent.name for path in RUNS.glob("*/expected.json"))


def expected(name: str) -> dict[str, Any]:
    """What is known of a fixture run: its cause (None for a healthy one) and verdict."""
    known: dict[str, Any] = json.loads((RUNS / name / "expected.json").read_text())
    return known


@pytest.fixture
def copied(tmp_path: Path) -> Callable[[str], Path]:
    """Copies a fixture run, so that a test may damage it."""

    def copy(name: str) -> Path:
        target = tmp_path / name
        shutil.copytree(RUNS / name, target)
        return target

    return copy
