"""Reported failures: each that can be rebuilt gets the cause or the finding it should."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from fixtures.lab.cases import made, trained
from fixtures.lab.cases.case import Absent, Evidence, Rebuilt
from fixtures.lab.cases.catalogue import CATALOGUE
from fixtures.lab.cases.judge import Judged, examine, report_of
from fixtures.lab.cases.page import PAGE, summary
from fixtures.lab.cases.training import trained as trained_run
from fixtures.lab.cases.workshop import Workshop, copied_run, reports
from tests.conftest import LOGS

#: Made by training, or judged by running models: seconds each.
SLOW = {case.id for case in (*trained.CASES, *made.CASES)} | {
    case.id for case in CATALOGUE.values() if isinstance(case, Rebuilt) and case.models
}


@pytest.fixture(scope="session")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    """Runs that several cases share are trained in it once."""
    return Workshop(tmp_path_factory.mktemp("workshop"))


def rebuilt() -> Iterator[object]:
    """The rebuilt cases; those that are missed must fail, so that the page stays true."""
    for case in CATALOGUE.values():
        if isinstance(case, Absent):
            continue
        marks = [pytest.mark.slow] if case.id in SLOW else []
        if case.missed is not None:
            marks.append(pytest.mark.xfail(reason=case.missed, raises=AssertionError, strict=True))
        yield pytest.param(case, id=case.id, marks=marks)


@pytest.mark.slow
@pytest.mark.parametrize("case", list(rebuilt()))
def test_a_reported_failure_gets_its_cause(
    case: Rebuilt, workshop: Workshop, tmp_path: Path
) -> None:
    result = examine(case, workshop, tmp_path / case.id)
    if result.crashed:
        raise RuntimeError(f"{case.id}: {', '.join(result.crashed)} crashed")
    if case.cause is not None:
        assert case.cause in result.causes[: case.place]
    assert not result.lacking


def test_every_report_is_in_the_catalogue_and_on_the_page() -> None:
    ids = list(reports())
    assert set(ids) == set(CATALOGUE)
    shown = re.findall(r"^\| \[([\w-]+)\]\(", PAGE.read_text(), re.MULTILINE)
    assert shown == ids, "run `python -m fixtures.lab.cases`"


def test_at_least_forty_are_rebuilt() -> None:
    assert sum(isinstance(case, Rebuilt) for case in CATALOGUE.values()) >= 40


def test_the_page_calls_missed_what_the_catalogue_says_is_missed() -> None:
    missed = set(re.findall(r"^\| \[([\w-]+)\].*\| \*\*missed\*\* \|$", PAGE.read_text(), re.M))
    known = {one.id for one in CATALOGUE.values() if isinstance(one, Rebuilt) and one.missed}
    assert missed == known, "run `python -m fixtures.lab.cases`"


def test_the_summary_counts_causes_and_findings_apart() -> None:
    def case(name: str, cause: str | None, *codes: str) -> Rebuilt:
        return Rebuilt(name, "", "", lambda _, __: None, cause=cause, codes=codes)  # type: ignore[arg-type, return-value]

    def said(one: Rebuilt, *causes: str, code: str = "") -> Judged:
        return Judged(one, "unhealthy", causes, (code,), ())

    first, third, fourth = case("a", "x"), case("b", "x"), case("c", "x")
    given, lacking = case("d", None, "k.y"), case("e", None, "k.y")
    results = {
        "a": said(first, "x", "u"),
        "b": said(third, "u", "v", "x"),
        "c": said(fourth, "u", "v", "w", "x"),
        "d": said(given, code="k.y"),
        "e": said(lacking, "x", code="k.z"),
    }
    text = summary([first, third, fourth, given, lacking, Absent("f", "", "")], results)
    assert "6 cases: 5 rebuilt, 1 not" in text
    assert "3 have a root cause: right first 1, in first three 2" in text
    assert "2 have a finding: given 1. Missed 2." in text


@pytest.mark.parametrize("name", sorted(one.name for one in LOGS.glob("CONTROL-*")))
def test_a_sound_log_that_was_reported_gives_no_error(name: str, workshop: Workshop) -> None:
    data = report_of(Evidence((LOGS / name,)), workshop, models=False)
    findings = [one for outcome in data["outcomes"] for one in outcome["findings"]]
    assert "error" not in {one["severity"] for one in findings}
    assert data["diagnosis"] == []


def test_the_copied_run_is_sound_before_anything_is_changed(
    workshop: Workshop, tmp_path: Path
) -> None:
    data = report_of(Evidence((copied_run(tmp_path / "run"),)), workshop, models=False)
    assert data["verdict"] == "inconclusive"


@pytest.mark.slow
def test_the_short_run_is_sound_before_a_mistake_is_made(workshop: Workshop) -> None:
    data = report_of(Evidence((trained_run(workshop, "sound"),)), workshop, models=False)
    # It is short, which is no mistake but worth a warning.
    assert data["verdict"] == "suspect"
