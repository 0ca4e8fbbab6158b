"""What a check is: requirements from annotations, outcomes, discovery."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

import mlxdoctor.check
from mlxdoctor.check import Check, Inconclusive, NotApplicable, check, discover, selected
from mlxdoctor.errors import InputError
from mlxdoctor.finding import Finding, Severity, Status


class Pulse:
    """A kind of evidence made for these tests."""


class Chart:
    """Another."""


@dataclass(frozen=True)
class Limits:
    """Thresholds made for these tests."""

    beats: int = 3


class Source:
    """Evidence of the given kinds, as a `Run` would give it."""

    def __init__(self, **evidence: Any) -> None:
        self.evidence = {Pulse: evidence.get("pulse"), Chart: evidence.get("chart")}

    def get(self, kind: type[Any]) -> Any:
        return self.evidence[kind]

    def why_missing(self, kind: type[Any]) -> str:
        return f"no {kind.__name__.lower()} was found"


def finding(code: str = "test-check.fast", severity: Severity = Severity.ERROR) -> Finding:
    return Finding(code=code, severity=severity, message="The pulse is fast.")


def made(function: Callable[..., Any], limits: Any = None) -> Check:
    return check(codes={"fast": "the pulse is fast"}, limits=limits)(function)


def test_a_check_gets_the_evidence_that_its_annotations_name() -> None:
    received: dict[str, Any] = {}

    def run(pulse: Pulse, chart: Chart | None, limits: Limits) -> Iterator[Finding]:
        received.update(pulse=pulse, chart=chart, limits=limits)
        yield finding()

    pulse = Pulse()
    outcome = made(run, Limits(5)).run(Source(pulse=pulse))
    assert received == {"pulse": pulse, "chart": None, "limits": Limits(5)}
    assert (outcome.check, outcome.status) == ("test-check", Status.FOUND)
    assert [one.code for one in outcome.findings] == ["test-check.fast"]


def test_without_required_evidence_it_is_skipped_with_the_reason() -> None:
    def run(pulse: Pulse) -> Iterator[Finding]:
        yield finding()

    outcome = made(run).run(Source())
    assert (outcome.status, outcome.reason) == (Status.SKIPPED, "no pulse was found")


def test_nothing_found_is_passed() -> None:
    def run(pulse: Pulse) -> Iterator[Finding]:
        yield from ()

    assert made(run).run(Source(pulse=Pulse())).status is Status.PASSED


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (Inconclusive("two beats only"), Status.INCONCLUSIVE),
        (NotApplicable("no heart"), Status.SKIPPED),
        (InputError("chart.txt", "is empty"), Status.SKIPPED),
        (ZeroDivisionError("division by zero"), Status.CRASHED),
    ],
)
def test_an_exception_is_an_outcome(error: Exception, status: Status) -> None:
    def run(pulse: Pulse) -> Iterator[Finding]:
        raise error
        yield

    outcome = made(run).run(Source(pulse=Pulse()))
    assert outcome.status is status
    assert str(error) in outcome.reason


def test_what_was_found_before_it_gave_up_stays_found() -> None:
    def run(pulse: Pulse) -> Iterator[Finding]:
        yield finding()
        raise Inconclusive("the rest is too short")

    outcome = made(run).run(Source(pulse=Pulse()))
    assert (outcome.status, len(outcome.findings)) == (Status.FOUND, 1)
    assert outcome.reason == "the rest is too short"


def test_a_crash_after_a_finding_is_still_a_crash() -> None:
    def run(pulse: Pulse) -> Iterator[Finding]:
        yield finding()
        raise KeyError("beat")

    outcome = made(run).run(Source(pulse=Pulse()))
    assert (outcome.status, len(outcome.findings)) == (Status.CRASHED, 1)


def test_an_undeclared_code_is_a_crash() -> None:
    def run(pulse: Pulse) -> Iterator[Finding]:
        yield finding("test-check.slow")

    outcome = made(run).run(Source(pulse=Pulse()))
    assert outcome.status is Status.CRASHED
    assert "test-check.slow" in outcome.reason


def test_findings_come_worst_first() -> None:
    def run(pulse: Pulse) -> Iterator[Finding]:
        yield finding(severity=Severity.INFO)
        yield finding(severity=Severity.ERROR)
        yield finding(severity=Severity.WARNING)

    outcome = made(run).run(Source(pulse=Pulse()))
    assert [one.severity.value for one in outcome.findings] == ["error", "warning", "info"]


def test_a_parameter_without_annotation_is_refused() -> None:
    def run(pulse) -> Iterator[Finding]:  # type: ignore[no-untyped-def]
        yield finding()

    with pytest.raises(TypeError, match="pulse has no annotation"):
        made(run)


def test_every_shipped_check_is_documented_and_its_limits_have_sources() -> None:
    sections = ("What it finds.", "Why it matters.", "How it is measured.")
    sections += ("When it is wrong.", "What to do.")
    for one in discover():
        for section in sections:
            assert section in one.documentation, f"{one.name} lacks {section!r}"
        for limit in mlxdoctor.check.describe_limits(one.limits):
            assert {"unit", "source", "false_alarms"} <= limit.keys(), f"{one.name}.{limit['name']}"


NEW_CHECK = '''
"""A check that a contributor wrote.

What it finds. Nothing.
"""

from collections.abc import Iterator

from mlxdoctor.check import check
from mlxdoctor.evidence.environment import Environment
from mlxdoctor.finding import Finding, Severity


@check(codes={"seen": "it ran"})
def run(environment: Environment) -> Iterator[Finding]:
    yield Finding(code="CODE.seen", severity=Severity.INFO, message="It ran.")
'''


def test_a_file_in_checks_is_a_new_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib

    package = importlib.import_module("mlxdoctor.checks")
    (tmp_path / "contributed_check.py").write_text(NEW_CHECK.replace("CODE", "contributed-check"))
    monkeypatch.setattr(package, "__path__", [*package.__path__, str(tmp_path)])
    try:
        names = {one.name: one for one in discover()}
        assert "contributed-check" in names
        assert "loss-trend" in names
    finally:
        sys.modules.pop("mlxdoctor.checks.contributed_check", None)


def test_another_package_adds_a_check_through_an_entry_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "other_package_check.py").write_text(
        NEW_CHECK.replace("CODE", "other-package-check")
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    point = EntryPoint("other", "other_package_check", mlxdoctor.check.ENTRY_POINT_GROUP)
    monkeypatch.setattr(mlxdoctor.check, "entry_points", lambda group: [point])
    assert "other-package-check" in {one.name for one in discover()}


def test_two_checks_with_one_code_are_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "loss_trend.py").write_text(
        textwrap.dedent(NEW_CHECK)
        .replace("CODE", "loss-trend")
        .replace('"seen": "it ran"', '"diverged": "it ran"')
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    point = EntryPoint("other", "elsewhere.loss_trend", mlxdoctor.check.ENTRY_POINT_GROUP)
    monkeypatch.setattr(mlxdoctor.check, "entry_points", lambda group: [point])
    with pytest.raises(ValueError, match=r"loss-trend\.diverged"):
        discover()


def test_select_and_ignore_take_names_and_codes_and_refuse_others() -> None:
    checks = discover()
    assert [one.name for one in selected(checks, ["loss-trend"], [])] == ["loss-trend"]
    assert [one.name for one in selected(checks, ["loss-trend.diverged"], [])] == ["loss-trend"]
    assert "loss-trend" not in {one.name for one in selected(checks, [], ["loss-trend"])}
    with pytest.raises(InputError, match="'loss-trned'"):
        selected(checks, ["loss-trned"], [])
