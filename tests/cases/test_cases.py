"""Reported failures: each that can be rebuilt gets the cause or the finding it should."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from fixtures.lab.cases.__main__ import PAGE, summary
from fixtures.lab.cases.builders import BUILDERS
from fixtures.lab.cases.case import Case, Judged, cases, examine
from fixtures.lab.cases.training import trained as trained_run
from fixtures.lab.cases.workshop import Workshop, copied_run
from mlxdoctor.api import diagnose
from tests.conftest import LOGS


@pytest.fixture(autouse=True)
def nothing_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fixtures.lab.cases.case.KEPT", tmp_path / "kept")


@pytest.fixture(scope="session")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    """Runs that several cases share are trained in it once."""
    return Workshop(tmp_path_factory.mktemp("workshop"))


def rebuilt() -> Iterator[object]:
    """The rebuilt cases; those that are missed must fail, so that the page stays true."""
    for case in cases().values():
        if case.how:
            missed = pytest.mark.xfail(reason=case.missed, raises=AssertionError, strict=True)
            yield pytest.param(case, id=case.id, marks=[missed] if case.missed else [])


@pytest.mark.slow
@pytest.mark.parametrize("case", list(rebuilt()))
def test_a_reported_failure_gets_its_cause(case: Case, workshop: Workshop, tmp_path: Path) -> None:
    result = examine(case, workshop, tmp_path / case.id)
    if result.crashed:
        raise RuntimeError(f"{case.id}: {', '.join(result.crashed)} crashed")
    if case.cause is not None:
        assert case.cause in result.causes[: case.place]
    assert not result.lacking


def test_every_case_that_is_rebuilt_has_a_builder_and_is_on_the_page() -> None:
    rebuilt = [one for one in cases().values() if one.how]
    assert {one.by for one in rebuilt} == BUILDERS.keys()
    assert len(rebuilt) >= 40
    shown = re.findall(r"^\| \[([\w-]+)\]\(", PAGE.read_text(), re.MULTILINE)
    assert shown == list(cases()), "run `python -m fixtures.lab.cases`"


def test_the_page_calls_missed_what_the_records_say_is_missed() -> None:
    missed = set(re.findall(r"^\| \[([\w-]+)\].*\| \*\*missed\*\* \|$", PAGE.read_text(), re.M))
    known = {one.id for one in cases().values() if one.missed}
    assert missed == known, "run `python -m fixtures.lab.cases`"


def test_the_summary_counts_causes_and_findings_apart() -> None:
    def case(name: str, cause: str | None, *codes: str) -> Case:
        return Case(name, "", "", "told", cause, codes)

    def said(one: Case, *causes: str, code: str = "") -> Judged:
        return Judged(one, "unhealthy", causes, (code,))

    first, third, fourth = case("a", "x"), case("b", "x"), case("c", "x")
    given, lacking = case("d", None, "k.y"), case("e", None, "k.y")
    results = {
        "a": said(first, "x", "u"),
        "b": said(third, "u", "v", "x"),
        "c": said(fourth, "u", "v", "w", "x"),
        "d": said(given, code="k.y"),
        "e": said(lacking, "x", code="k.z"),
    }
    text = summary([first, third, fourth, given, lacking, Case("f", "", "", why="gone")], results)
    assert "6 cases: 5 rebuilt, 1 not" in text
    assert "3 have a root cause: right first 1, in first three 2" in text
    assert "2 have a finding: given 1. Missed 2." in text


@pytest.mark.parametrize("name", sorted(one.name for one in LOGS.glob("CONTROL-*")))
def test_a_sound_log_that_was_reported_gives_no_error(name: str) -> None:
    report = diagnose([LOGS / name], allow_model=False)
    assert "error" not in {one.severity for one in report.findings}
    assert report.diagnosis == ()


def test_the_copied_run_is_sound_before_anything_is_changed(tmp_path: Path) -> None:
    report = diagnose([copied_run(tmp_path / "run")], allow_model=False)
    assert report.verdict == "inconclusive"


@pytest.mark.slow
def test_the_short_run_is_sound_before_a_mistake_is_made(workshop: Workshop) -> None:
    report = diagnose([trained_run(workshop, "sound")], allow_model=False)
    # It is short, which is no mistake but worth a warning.
    assert report.verdict == "suspect"
