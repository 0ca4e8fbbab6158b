"""Formats of logs are found: one file adds one, and everything that reads logs reads it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from mlxdoctor.evidence import log_formats
from mlxdoctor.evidence.logs.log_format import DocumentFormat, LineFormat, LogFormat, formats
from mlxdoctor.evidence.training_log import TrainingLog, looks_like_log
from mlxdoctor.safety.errors import InputError
from mlxdoctor.watch.follow import Follower
from mlxdoctor.watch.growing_log import GrowingLog
from tests.fuzzing import seeds

EXAMPLE = "<1> L 2.5000\n<2> L 2.2500\n"
SOURCE = f"""
import re

from mlxdoctor.evidence.logs.log_format import LineFormat

_EPOCH = re.compile(r"<(\\d+)> L (\\S+)")


class Angles(LineFormat):
    name = "angles"
    priority = 15
    understood = "angles"
    example = {EXAMPLE!r}

    def read(self, number, line):
        if match := _EPOCH.match(line):
            self.add(number, ("epoch", float(match[1])), {{"train_loss": float(match[2])}})
        return 1 // (match is not None) == 1
"""


@pytest.fixture
def _angles(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    folder = tmp_path_factory.mktemp("more_formats")
    (folder / "angles_for_this_test.py").write_text(SOURCE)
    monkeypatch.setattr(log_formats, "__path__", [*log_formats.__path__, str(folder)])
    formats.cache_clear()
    yield
    formats.cache_clear()


@pytest.fixture
def log(path: Path) -> Path:
    path.write_text(EXAMPLE)
    return path


@pytest.mark.usefixtures("_angles")
def test_one_file_adds_a_format(log: Path) -> None:
    assert looks_like_log(log)
    read = TrainingLog.read([log])
    assert read.format == "angles"
    series = read.main.series["train_loss"]
    assert series.iterations.tolist() == [1, 2]
    assert series.values.tolist() == [2.5, 2.25]
    assert EXAMPLE.encode() in seeds.text_logs()


@pytest.mark.usefixtures("_angles")
def test_a_format_that_raises_is_named_and_the_rest_is_read(log: Path) -> None:
    log.write_text(f"hello\n{EXAMPLE}once more\nIter 3: Train loss 2.000, It/sec 1.0\n")
    read = TrainingLog.read([log])
    assert read.main.series["train_loss"].values.tolist() == [2.5, 2.25, 2.0]
    (problem,) = read.notes.problems
    assert "the log format angles failed on it (ZeroDivisionError: “" in str(problem)
    told: list[str] = []
    Follower(GrowingLog(log), notify=lambda _, text: told.append(text)).run(at_once=True)
    assert told == [str(problem)]
    log.write_text("hello\n")
    with pytest.raises(InputError, match="the log format angles failed"):
        TrainingLog.read([log])


def test_without_its_file_the_format_is_not_read(log: Path) -> None:
    assert not looks_like_log(log)


@pytest.mark.parametrize("kind", formats(LogFormat), ids=lambda one: one.__name__)
def test_every_format_reads_its_example(kind: type[LogFormat], path: Path) -> None:
    path.write_text(kind.example)
    assert looks_like_log(path)
    log = TrainingLog.read([path])
    if not kind.name and not log.segments:
        assert log.notes.failures or log.notes.trainable
        return
    assert not kind.name or kind.name in log.format.split(", ")
    assert len(log.main.series["train_loss"]) >= 1


def test_formats_are_asked_in_one_order() -> None:
    for kind in (LineFormat, DocumentFormat):
        ranks = [one.priority for one in formats(kind)]
        assert ranks == sorted(set(ranks)), "two of the same priority"
    assert {*formats(LineFormat), *formats(DocumentFormat)} == set(formats(LogFormat))
    for one in formats(LogFormat):
        assert one.__doc__
        assert one.__module__.startswith("mlxdoctor.evidence.log_formats.")
