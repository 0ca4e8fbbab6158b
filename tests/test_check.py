"""What a check is: requirements from annotations, outcomes, discovery."""

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

import mlxdoctor.check
import mlxdoctor.run
from mlxdoctor.check import Check, Inconclusive, NotApplicable, check, discover, selected
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.training_log import TrainingLog
from mlxdoctor.finding import Outcome, Severity, Sign, Status, Symptom
from mlxdoctor.run import Run
from mlxdoctor.safety import reading_limits
from mlxdoctor.safety.errors import InputError
from mlxdoctor.safety.limits import TimeLimitExceeded, time_limit
from tests.conftest import RUNS, Call, example_of
from tests.given import Given


class Pulse:
    """A kind of evidence made for these tests."""


class Chart:
    """Another."""


FAST = Symptom.error(
    "the pulse is fast",
    says="The pulse is {beats}.",
    expected="below {beats}",
    fix="Wait[ for {minutes:* minute}].",
)


def sign(symptom: str = "fast", severity: Severity | None = None) -> Sign:
    return Sign(symptom, {"beats": 190}, severity=severity)


def made(function: Callable[..., Any]) -> Check:
    return check(codes={"fast": FAST})(function)


def test_a_check_gets_the_evidence_that_its_annotations_name() -> None:
    received: dict[str, Any] = {}

    def run(pulse: Pulse, chart: Chart | None) -> Iterator[Sign]:
        received.update(pulse=pulse, chart=chart)
        yield sign()

    pulse = Pulse()
    outcome = made(run).run(Given(pulse))
    assert received == {"pulse": pulse, "chart": None}
    assert (outcome.check, outcome.status) == ("test-check", Status.FOUND)
    assert [one.code for one in outcome.findings] == ["test-check.fast"]


@pytest.mark.parametrize(
    ("yielded", "error", "status", "reason"),
    [
        ([], None, Status.PASSED, ""),
        ([], Inconclusive("two beats only"), Status.INCONCLUSIVE, "two beats only"),
        ([], NotApplicable("no heart"), Status.SKIPPED, "no heart"),
        ([], InputError("chart.txt", "is empty"), Status.SKIPPED, "chart.txt: is empty"),
        ([], ZeroDivisionError("division by zero"), Status.CRASHED, "division by zero"),
        # What was found before it gave up stays found; after a crash it is no whole answer.
        (["fast"], Inconclusive("the rest is too short"), Status.FOUND, "the rest is too short"),
        (["fast"], KeyError("beat"), Status.CRASHED, "beat"),
        ([], MemoryError(), Status.CRASHED, "needed more memory than there is"),
        # A code that is not declared.
        (["slow"], None, Status.CRASHED, "test-check.slow"),
    ],
)
def test_what_was_found_and_an_exception_are_an_outcome(
    yielded: list[str], error: Exception | None, status: Status, reason: str
) -> None:
    def run(pulse: Pulse) -> Iterator[Sign]:
        yield from map(sign, yielded)
        if error is not None:
            raise error

    outcome = made(run).run(Given(Pulse()))
    assert outcome.status is status
    assert reason in outcome.reason
    assert len(outcome.findings) == yielded.count("fast")


def test_its_sentence_what_was_expected_and_the_fix_are_filled_from_the_figures() -> None:
    def run(pulse: Pulse) -> Iterator[Sign]:
        yield sign(severity=Severity.INFO)
        yield Sign("fast", {"beats": 170, "minutes": 1}, expected="none", fix="Rest.")
        yield Sign("fast", {})

    outcome = made(run).run(Given(Pulse()))
    assert [(one.message, one.expected, one.fix) for one in outcome.findings] == [
        # The worst first.
        ("The pulse is 170.", "none", "Rest."),
        ("The pulse is 190.", "below 190", "Wait."),
    ]
    assert outcome.status is Status.CRASHED
    assert "beats" in outcome.reason


def test_a_code_without_a_sentence_and_a_parameter_without_annotation_are_refused() -> None:
    def run(pulse) -> Iterator[Sign]:  # type: ignore[no-untyped-def]
        yield sign()

    with pytest.raises(TypeError, match=r"no sentence .* for fast"):
        check(codes={"fast": Symptom.error("the pulse is fast")})(run)
    with pytest.raises(TypeError, match="pulse has no annotation"):
        made(run)


NEW_CHECK = example_of('"""Answers that are too short.')


@pytest.mark.usefixtures("found_anew")
def test_a_file_in_checks_is_a_new_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib

    package = importlib.import_module("mlxdoctor.checks")
    (tmp_path / "contributed_check.py").write_text(NEW_CHECK)
    monkeypatch.setattr(package, "__path__", [*package.__path__, str(tmp_path)])
    try:
        names = {one.name: one for one in discover()}
        assert "contributed-check" in names
        assert "loss-trend" in names
    finally:
        sys.modules.pop("mlxdoctor.checks.contributed_check", None)


@pytest.mark.usefixtures("found_anew")
def test_another_package_may_not_take_a_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "loss_trend.py").write_text(NEW_CHECK.replace('"short"', '"diverged"'))
    monkeypatch.syspath_prepend(str(tmp_path))
    point = EntryPoint("other", "elsewhere.loss_trend", mlxdoctor.check.ENTRY_POINT_GROUP)
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [point])
    with pytest.raises(ValueError, match=r"loss-trend\.diverged"):
        discover()


@pytest.mark.usefixtures("found_anew")
def test_a_check_of_another_package_that_cannot_be_imported_is_told_as_its_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    (tmp_path / "heat.py").write_text("def heat(:\n")
    info = tmp_path / "machine_heat-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: machine-heat\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[mlxdoctor.checks]\nany = heat\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    checks = {one.name: one for one in discover()}
    assert "loss-trend" in checks
    outcome = checks["heat"].run(Given())
    assert outcome.status is Status.CRASHED
    assert outcome.reason.startswith("a fault of the package machine-heat, not imported: SyntaxErr")
    assert outcome.reason.endswith("heat.py:1")
    code, explained, _ = call("explain", "heat")
    assert (code, "machine-heat" in explained) == (0, True)


def test_select_and_ignore_take_names_and_codes_and_refuse_others() -> None:
    checks = discover()
    assert [one.name for one in selected(checks, ["loss-trend"], [])] == ["loss-trend"]
    assert [one.name for one in selected(checks, ["loss-trend.diverged"], [])] == ["loss-trend"]
    assert "loss-trend" not in {one.name for one in selected(checks, [], ["loss-trend"])}
    with pytest.raises(InputError, match="'loss-trned'"):
        selected(checks, ["loss-trned"], [])


def raised(values: dict[str, Any]) -> Any:
    """Limits of reading for the body, as `--limit` sets them."""
    return reading_limits.using(f"{name}={value}" for name, value in values.items())


def test_a_check_that_loops_is_stopped_whatever_it_catches_and_keeps_what_it_found() -> None:
    def run(pulse: Pulse) -> Iterator[Sign]:
        yield sign()
        for _ in range(3):
            try:
                time.sleep(10)
            except Exception:  # as careless code does
                continue

    with raised({"check_seconds": 0.2}):
        outcome = made(run).run(Given(Pulse()))
    assert (outcome.status, len(outcome.findings)) == (Status.CRASHED, 1)
    assert outcome.reason.startswith("took longer than 0.2 s, the limit check_seconds")


def test_evidence_that_takes_too_long_is_not_read_again_and_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def read(run: Run) -> TrainingLog:
        calls.append(run)
        time.sleep(30)
        raise AssertionError

    def needs_log(log: TrainingLog) -> Iterator[Sign]:
        yield from ()

    def quick(config: TrainingConfig) -> Iterator[Sign]:
        yield sign()

    monkeypatch.setattr(TrainingLog, "find", read)
    run = Run.discover([RUNS / "healthy-ordinary"], allow_model=False)
    with raised({"check_seconds": 0.2}):
        outcomes = [made(one).run(run) for one in (needs_log, needs_log, quick)]
    statuses = [one.status for one in outcomes]
    assert statuses == [Status.CRASHED, Status.SKIPPED, Status.FOUND]
    assert outcomes[1].reason == "reading it took longer than 0.2 s"
    assert len(calls) == 1


@pytest.fixture
def alarms() -> Iterator[list[int]]:
    """The user's own alarm, and what it was called with."""
    called: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda number, frame: called.append(number))
    yield called
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def test_a_later_alarm_of_the_user_is_still_due_afterwards(alarms: list[int]) -> None:
    signal.setitimer(signal.ITIMER_REAL, 100, 7)
    with time_limit(50.0):
        assert signal.getitimer(signal.ITIMER_REAL)[0] <= 50
    due, interval = signal.getitimer(signal.ITIMER_REAL)
    assert 50 < due <= 100
    assert interval == 7
    signal.raise_signal(signal.SIGALRM)
    assert alarms == [signal.SIGALRM]


def test_an_earlier_alarm_of_the_user_goes_off_inside(alarms: list[int]) -> None:
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    with time_limit(50.0):
        while not alarms:
            time.sleep(0.01)
    assert alarms == [signal.SIGALRM]


def test_of_two_limits_the_inner_may_be_the_shorter_or_the_longer() -> None:
    before = signal.getsignal(signal.SIGALRM)
    with time_limit(50.0):
        with pytest.raises(TimeLimitExceeded, match=r"0\.1 s"), time_limit(0.1):
            time.sleep(30)
        assert signal.getitimer(signal.ITIMER_REAL)[0] > 0
    with pytest.raises(TimeLimitExceeded, match=r"0\.1 s"), time_limit(0.1), time_limit(50.0):
        time.sleep(30)
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0
    assert signal.getsignal(signal.SIGALRM) is before


def test_in_another_thread_a_check_runs_without_a_limit() -> None:
    def run(pulse: Pulse) -> Iterator[Sign]:
        time.sleep(0.05)
        yield sign()

    outcomes: list[Outcome] = []
    one = made(run)
    with raised({"check_seconds": 0.01}):
        thread = threading.Thread(target=lambda: outcomes.append(one.run(Given(Pulse()))))
        thread.start()
        thread.join()
    assert outcomes[0].status is Status.FOUND
