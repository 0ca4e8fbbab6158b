"""A throughput that falls for good."""

from __future__ import annotations

from pathlib import Path

import pytest

from mlxdoctor.evidence.training_log import TrainingLog
from tests.checks.log_evidence import LogWriter, finding, found, judge
from tests.conftest import LOGS, check_called

memory = check_called("memory")


@pytest.fixture
def logs(tmp_path: Path) -> LogWriter:
    return LogWriter(tmp_path)


def speeds(logs: LogWriter, *values: float, peak: float = 30.0) -> TrainingLog:
    return logs.text(
        *(
            f"Iter {i}0: Train loss 2.0, Tokens/sec {one}, Peak mem {peak} GB"
            for i, one in enumerate(values, 1)
        )
    )


@pytest.mark.parametrize(
    ("late", "peak", "symptoms"),
    [(30.0, 30.0, {"slowed": "warning"}), (40.0, 30.0, {}), (30.0, 0.5, {})],
)
def test_slowed(logs: LogWriter, late: float, peak: float, symptoms: dict[str, str]) -> None:
    log = speeds(logs, 5.0, *[100.0] * 10, *[late] * 10, peak=peak)
    outcome = judge(memory, log)
    assert found(outcome) == symptoms
    if symptoms:
        assert finding(outcome, "slowed").onset == 120


def test_single_slow_reports_do_not_count(logs: LogWriter) -> None:
    assert found(judge(memory, speeds(logs, *([100.0, 100.0, 10.0] * 8)))) == {}


def test_too_little_to_tell(logs: LogWriter) -> None:
    assert judge(memory, speeds(logs, *[100.0] * 5)).status.value == "inconclusive"
    mixtral = TrainingLog.read([LOGS / "mlx-examples-557-a-mixtral-4bit.log"])
    assert judge(memory, mixtral).status.value == "inconclusive"
    assert judge(memory).status.value == "skipped"


def peaks(logs: LogWriter, *values: float, head: str = "", speed: float = 100.0) -> TrainingLog:
    return logs.text(
        head,
        *(
            f"Iter {i}0: Train loss 2.0, Tokens/sec {speed}, Peak mem {one} GB"
            for i, one in enumerate(values, 1)
        ),
    )


@pytest.mark.parametrize(
    ("step", "every", "hit"), [(0.5, 1, True), (0.5, 3, False), (0.05, 1, False)]
)
def test_a_peak_that_goes_on_growing(logs: LogWriter, step: float, every: int, hit: bool) -> None:
    values = [20.0 + step * (at // every) for at in range(24)]
    assert found(judge(memory, peaks(logs, *values))) == ({"grows": "warning"} if hit else {})


def test_a_small_run_may_grow(logs: LogWriter) -> None:
    assert found(judge(memory, peaks(logs, *[0.5 + 0.1 * at for at in range(24)]))) == {}


@pytest.mark.parametrize(
    "head",
    [
        "{'memory_size': 17179869184, 'architecture': 'applegpu_g13g'}",
        "GPU = Tesla T4. Max memory = 14.748 GB.",
        "systemMemory: 16.00 GB",
    ],
)
def test_more_than_the_machine_has(logs: LogWriter, head: str) -> None:
    outcome = judge(memory, peaks(logs, *[13.0] * 4, *[18.5] * 9, head=head))
    assert found(outcome) == {"more-than-there-is": "warning"}
    assert finding(outcome, "more-than-there-is").onset == 50
    assert found(judge(memory, peaks(logs, *[13.0] * 13, head=head))) == {}


@pytest.mark.parametrize(("speed", "hit"), [(0.6, True), (0.8, False)])
def test_a_speed_that_only_swapping_explains(logs: LogWriter, speed: float, hit: bool) -> None:
    head = "Trainable parameters: 0.041% (2.9M/7000.0M)"
    outcome = judge(memory, peaks(logs, *[30.0] * 13, head=head, speed=speed))
    assert found(outcome) == ({"crawls": "warning"} if hit else {})


@pytest.mark.parametrize("path", sorted(LOGS.glob("*.log")), ids=lambda path: path.stem[:30])
def test_logs_of_users_are_not_short_of_memory(path: Path) -> None:
    assert found(judge(memory, TrainingLog.read([path]))) == {}
