"""Every cause has an experiment or a reason; one file, or one table, adds another."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

import mlxdoctor.experiments
from mlxdoctor.causes import load_causes
from mlxdoctor.cli import main
from mlxdoctor.evidence.dataset import Dataset
from mlxdoctor.experiments import Direct, discover
from mlxdoctor.experiments.inject_fault import FAULTS
from mlxdoctor.experiments.leave_out_rows import named_rows
from tests.conftest import RUNS

CAUSES = load_causes().causes

#: What a newcomer writes.
ADDED = '''
"""Templates are counted."""

from pathlib import Path

from mlxdoctor.experiments import direct
from mlxdoctor.experiments.shared.laboratory import Laboratory
from mlxdoctor.experiments.shared.rules import Ruling
from mlxdoctor.run import Run


@direct("template-mismatch", "the template counted")
def count_templates(lab: Laboratory, run: Run, folder: Path) -> Ruling:
    """Confirm it, whatever the run."""
    return Ruling("confirmed", f"counted for {run.name}", 1.0)
'''


@pytest.mark.parametrize("name", CAUSES)
def test_every_cause_has_an_experiment_or_a_reason(name: str) -> None:
    cause = CAUSES[name]
    assert bool(cause.no_experiment) or any(one.shows(cause) for one in discover())


def test_every_direct_experiment_is_for_a_known_cause() -> None:
    assert CAUSES.keys() >= {one.cause for one in discover() if isinstance(one, Direct)}


def test_faults_that_are_injected_exist() -> None:
    assert {name for cause in CAUSES.values() for name in cause.inject} <= FAULTS.keys()


def test_rows_that_are_left_out_are_told_from_others(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text('{"prompt": "a", "completion": "b"}\n')
    dataset = Dataset.read(tmp_path)
    for cause in CAUSES.values():
        what = cause.leave_out.values()
        assert not named_rows(dataset.splits["train"], dataset.features, what)


@pytest.fixture
def added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An experiment in a file of its own, found like the others; the module's name."""
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "count_templates.py").write_text(ADDED)
    places = [*mlxdoctor.experiments.__path__, str(tmp_path / "files")]
    monkeypatch.setattr(mlxdoctor.experiments, "__path__", places)
    yield "mlxdoctor.experiments.count_templates"
    sys.modules.pop("mlxdoctor.experiments.count_templates", None)
    del mlxdoctor.experiments.count_templates


@pytest.mark.slow
@pytest.mark.usefixtures("added")
def test_one_file_adds_an_experiment(tmp_path: Path) -> None:
    run = RUNS / "collapse-frequent-token"
    command = ["reproduce", str(run), "-o", str(tmp_path / "out"), "--cause", "template-mismatch"]
    assert main(command) == 1
    (path,) = (tmp_path / "out").glob("*/reproduction/reproduction.json")
    experiments = json.loads(path.read_text())["experiments"]
    said = {one["cause"]: one["reason"] for one in experiments if one["experiment"] == "verdict"}
    assert said == {"template-mismatch": "counted for collapse-frequent-token"}
    made = {one["cause"]: one for one in experiments if one["experiment"] == "direct"}
    assert made["template-mismatch"]["label"] == "the template counted"


def test_two_experiments_that_show_one_cause_directly_are_refused(
    added: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = importlib.import_module(added)
    copy = SimpleNamespace(**vars(module))
    copy.another = replace(module.count_templates)
    point = SimpleNamespace(load=lambda: copy)
    monkeypatch.setattr(mlxdoctor.experiments, "entry_points", lambda group: [point])
    with pytest.raises(ValueError, match="two experiments show template-mismatch"):
        discover()
