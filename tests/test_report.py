"""What a report is: its JSON, its pieces, and that it can be packed."""

import pickle
from dataclasses import FrozenInstanceError, replace

import pytest

from mlxdoctor.api import diagnose
from mlxdoctor.exhibits import LossCurve, SampleAnswer
from mlxdoctor.verdict import Verdict
from tests.conftest import RUNS
from tests.formats import sample


@pytest.mark.parametrize("kind", ["unhealthy", "healthy", "inconclusive"])
def test_the_json_has_every_section_of_it(kind: str) -> None:
    data = getattr(sample, kind)()
    told = sample.made(data).to_dict()
    # Compared as texts: NaN is no number that equals itself.
    assert {key: str(one) for key, one in told.items()} == {
        key: str(one) for key, one in data.items()
    }
    assert told.keys() == data.keys()


def test_a_report_does_not_change() -> None:
    report = sample.made(sample.healthy())
    with pytest.raises(FrozenInstanceError):
        report.verdict = Verdict.UNHEALTHY  # type: ignore[misc]


def test_findings_come_worst_first() -> None:
    found = sample.made(sample.unhealthy()).findings
    assert [one.severity for one in found] == ["error", "error", "info"]


def test_figures_are_what_the_checks_measured_with_the_onset_that_they_saw() -> None:
    report = sample.made(sample.unhealthy())
    assert list(report.figures) == ["loss"]
    assert report.onset == 10
    shown = report.figures["loss"]
    assert isinstance(shown, LossCurve)
    assert shown.onset == 10
    # Notes mark nothing, nor does a check that says nothing of the course.
    unmarked = tuple(replace(one, marks_onset=False) for one in report.outcomes)
    assert replace(report, outcomes=unmarked).onset is None


def test_a_report_comes_with_its_run_and_is_packed_without() -> None:
    report = diagnose([RUNS / "rate-too-high-garbled"], allow_model=False)
    assert report.run.name == report.name
    again = pickle.loads(pickle.dumps(report.alone))
    assert str(again.to_dict()) == str(report.to_dict())
    assert again.findings == report.findings
    assert again.exhibit(SampleAnswer) == report.sample


def test_what_a_check_measures_is_shown_though_it_ends_inconclusive() -> None:
    report = diagnose([RUNS / "rate-far-too-high-nan"], allow_model=False, select=["loss-trend"])
    [outcome] = report.outcomes
    assert outcome.status == "inconclusive"
    assert list(report.figures) == ["loss"]
