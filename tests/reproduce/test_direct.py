"""What needs no rerun: facts of the diagnosis, and an adapter loaded by other names."""

from __future__ import annotations

from pathlib import Path

import pytest

from mlxdoctor.api import diagnose
from mlxdoctor.causes import load_causes
from mlxdoctor.reproduce.bench import Failure
from mlxdoctor.reproduce.direct import loaded_by_other_names, shown_by_diagnosis
from mlxdoctor.reproduce.rules import Ruling
from mlxdoctor.run import Run
from mlxdoctor.twin.rerun import Laboratory, recipe_of
from tests.conftest import RUNS


def loaded(folder: Path, work: Path) -> Ruling:
    """What loading the adapter of a run by other names says."""
    run = Run.discover([folder], allow_model=False)
    return loaded_by_other_names(Laboratory(recipe_of(run), work), run)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "verdict", "said"),
    [
        ("adapter-not-loaded", "confirmed", "renamed in a copy"),
        ("collapse-frequent-token", "refuted", "already has the name"),
        ("wrong-base-model", "undecided", "no renaming"),
    ],
)
def test_an_adapter_whose_tensors_have_other_names(
    tmp_path: Path, name: str, verdict: str, said: str
) -> None:
    ruling = loaded(RUNS / name, tmp_path / "work")
    assert ruling.verdict == verdict
    assert said in ruling.reason
    assert not list((tmp_path / "work").rglob("*.safetensors"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cause", "name", "verdict"),
    [
        ("evaluated-without-adapter", "evaluated-without-adapter", "confirmed"),
        ("resume-mismatch", "resume-nothing-loaded", "confirmed"),
        ("resume-mismatch", "healthy-ordinary", "refuted"),
        ("wrong-base-model", "wrong-base-model", "confirmed"),
        ("wrong-base-model", "healthy-ordinary", "refuted"),
        ("wrong-base-model", "adapter-not-loaded", "undecided"),
        ("no-validation-data", "healthy-ordinary", "refuted"),
    ],
)
def test_facts_of_a_real_run(cause: str, name: str, verdict: str) -> None:
    report = diagnose([RUNS / name])
    knowledge = load_causes()
    coverage = {one.cause: one for one in report.coverage}
    failure = Failure(report.outcomes, knowledge, (0, 1, 2), 50, coverage=coverage)
    assert shown_by_diagnosis(failure, knowledge.causes[cause]).verdict == verdict
