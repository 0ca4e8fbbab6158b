"""Every cause has an experiment or a reason; which changes a cause asks for."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fixtures.lab.faults import FAULTS
from mlxdoctor.causes import ROWS, load_causes
from mlxdoctor.evidence.dataset import Dataset
from mlxdoctor.reproduce.changes import NO_END, Cure, cure_of
from mlxdoctor.reproduce.repairs import named_rows, others_left_out, rows_left_out

CAUSES = load_causes().causes


@pytest.mark.parametrize("name", CAUSES)
def test_every_cause_has_an_experiment_or_a_reason(name: str) -> None:
    cause = CAUSES[name]
    has_rerun = cause.change or cause.leave_out or cause.inject or name == NO_END
    assert cause.no_experiment or cause.shown_by_diagnosis or has_rerun


def test_experiments_are_for_known_causes_with_known_faults(tmp_path: Path) -> None:
    assert {name for cause in CAUSES.values() for name in cause.inject} <= FAULTS.keys()
    (tmp_path / "train.jsonl").write_text('{"prompt": "a", "completion": "b"}\n')
    dataset = Dataset.read(tmp_path)
    assert not named_rows(dataset.splits["train"], ROWS)


@pytest.mark.parametrize(
    ("codes", "fault"),
    [
        (["data-format.empty-answers", "data-quality.duplicates"], rows_left_out),
        ([], None),
    ],
)
def test_rows_that_findings_name_are_left_out(codes: list[str], fault: Any) -> None:
    findings = [SimpleNamespace(code=code) for code in codes]
    bench: Any = SimpleNamespace(failure=SimpleNamespace(findings=findings, iterations=9))
    cure = cure_of(bench, CAUSES["bad-data"])
    if fault is None:
        assert not isinstance(cure, Cure)
        return
    assert isinstance(cure, Cure)
    assert [change.fault for change in cure.changes] == [fault]
    assert cure.placebo is not None
    assert cure.placebo.fault is others_left_out
