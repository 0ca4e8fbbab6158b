"""A kind of evidence is a class that finds itself; nothing has to be told of it."""

from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

import mlxdoctor.check
from mlxdoctor.api import run_checks
from mlxdoctor.check import discover
from mlxdoctor.finding import Outcome
from mlxdoctor.report import MissingEvidence
from mlxdoctor.run import Run

PACKAGE = '''
"""Whether the machine ran hot. What it finds. Temperatures over the limit."""

from dataclasses import dataclass

from mlxdoctor.check import check
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.kind import Missing
from mlxdoctor.evidence.source import read_text
from mlxdoctor.finding import Severity, Sign, Symptom


@dataclass(frozen=True)
class Temperatures:
    """What a sensor recorded, in degrees Celsius."""

    kind = "temperatures"

    sources: tuple
    degrees: tuple
    iters: int

    @classmethod
    def find(cls, run):
        path = next((one for one in run.files.unrecognised if one.suffix == ".degrees"), None)
        if path is None:
            raise Missing("no sensor recorded anything; put a .degrees file beside the log")
        text, source = read_text(path)
        iters = run.need(TrainingConfig).iters
        return cls((source,), tuple(map(float, text.split())), iters)


SAYS = "It reached {hottest:g} degrees."


@check(codes={"hot": Symptom("it ran hot", Severity.WARNING, "under 90", "cool it", SAYS)})
def machine_heat(temperatures: Temperatures):
    hottest = max(temperatures.degrees)
    if hottest > 90:
        measured = {"hottest": hottest, "iters": temperatures.iters}
        yield Sign("hot", measured)
'''


def examined(folder: Path) -> tuple[Outcome, Run]:
    run = Run.discover([folder], allow_model=False)
    (check,) = [one for one in discover() if one.name == "machine-heat"]
    (outcome,) = run_checks([check], run)
    return outcome, run


@pytest.fixture
def run_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, found_anew: None) -> Path:
    """A run, and another package with a check and its kind of evidence in one file."""
    package = tmp_path / "package"
    package.mkdir()
    (package / "machine_heat.py").write_text(PACKAGE)
    monkeypatch.syspath_prepend(str(package))
    point = EntryPoint("heat", "machine_heat", mlxdoctor.check.ENTRY_POINT_GROUP)
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [point])
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "adapter_config.json").write_text('{"learning_rate": 1e-5, "iters": 300}')
    return folder


def test_a_kind_of_another_package_works_with_a_check_of_that_package(run_folder: Path) -> None:
    sensor = run_folder / "sensor.degrees"
    sensor.write_text("71 94.5 88")
    outcome, run = examined(run_folder)
    (finding,) = outcome.findings
    assert finding.code == "machine-heat.hot"
    assert finding.measured == {"hottest": 94.5, "iters": 300}
    assert [file.source for file in run.evidence if file.kind == "temperatures"] == [str(sensor)]

    sensor.write_bytes(b"")
    outcome, run = examined(run_folder)
    assert outcome.status == "skipped"
    assert [error.path for error in run.unreadable] == [sensor]

    sensor.unlink()
    outcome, run = examined(run_folder)
    reason = "no sensor recorded anything; put a .degrees file beside the log"
    assert (outcome.status, outcome.reason) == ("skipped", reason)
    assert run.missing == (MissingEvidence("temperatures", reason),)
    with pytest.raises(TypeError, match="int is not a kind of evidence"):
        run.get(int)
