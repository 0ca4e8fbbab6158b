"""The founding incidents in the fragments that their authors had: each gets its right answer."""

from pathlib import Path

import pytest

from mlxdoctor.api import diagnose
from mlxdoctor.formats import terminal
from mlxdoctor.verdict import Verdict
from tests.conftest import FIXTURES

AS_FOUND = FIXTURES / "as_found"
#: What is given -> the causes of which one comes first, and a code that must be among the findings.
FAILED: dict[str, tuple[set[str], str]] = {
    # The collapsed run: its configuration and the end of its log, near 10.
    "s000/nyay": ({"learning-rate-too-high"}, ""),
    "s000/gen3": ({"learning-rate-too-high"}, "token-collapse.single-token"),
    "s000/ppl": ({"learning-rate-too-high"}, "metric-consistency.not-this-model"),
    "s000/ppl2": ({"learning-rate-too-high"}, "metric-consistency.not-this-model"),
    "s000/mini_real.log": ({"learning-rate-too-high"}, "loss-trend.diverged"),
    "s001/acc": ({"evaluated-without-adapter", "adapter-not-loaded"}, ""),
    "s002/train.log": ({"program-error"}, ""),
    "s002/train2.log": ({"program-error"}, ""),
    "s003/c.log": ({"no-supervised-tokens"}, ""),
    "s003/both": ({"no-supervised-tokens"}, "trainer-source.unguarded-mean"),
    "s003/a.log": ({"no-supervised-tokens"}, ""),
    "s003/cfg": ({"no-supervised-tokens"}, ""),
    "formats/skipped.jsonl": ({"numeric-overflow"}, "series-facts.batches-skipped"),
    "formats/flat_nan_mid.jsonl": ({"numeric-overflow"}, ""),
    "formats/nanall.jsonl": ({"no-supervised-tokens"}, ""),
    "s004/a.log": ({"gradients-blocked"}, "series-facts.gradient-zero"),
    "s004/a2.log": ({"gradients-blocked"}, "series-facts.gradient-zero"),
    "formats/batch.log": ({"gradients-blocked"}, ""),
    "formats/time.log": ({"gradients-blocked"}, ""),
}
#: Logs of home-made trainers, each of twelve reports.
ROWS = [f"{kind}{end}.log" for kind in ("batch", "epochavg", "sit", "time") for end in ("", "-nan")]


@pytest.mark.parametrize("name", FAILED)
def test_it_failed_and_the_cause_comes_first(name: str) -> None:
    causes, code = FAILED[name]
    report = diagnose([AS_FOUND / name], allow_model=False)
    assert report.verdict is Verdict.UNHEALTHY
    assert report.root.cause.id in causes
    assert not code or code in {one.code for one in report.findings}


def test_a_rate_ten_times_too_high_is_said_before_the_run() -> None:
    report = diagnose([AS_FOUND / "s000" / "cfg"], allow_model=False)
    assert report.suspected.cause.id == "learning-rate-too-high"
    assert "learning-rate.above-guideline" in {one.code for one in report.findings}
    assert "learning_rate: 0.0002 -> 2e-05" in terminal.render(report)


@pytest.mark.parametrize("name", ["s003/b.log", "s004/b.log", *(f"formats/{one}" for one in ROWS)])
def test_nothing_of_a_broken_run_is_healthy(name: str) -> None:
    report = diagnose([AS_FOUND / name], allow_model=False)
    assert report.verdict is not Verdict.HEALTHY


def test_the_exception_is_quoted() -> None:
    report = diagnose([AS_FOUND / "s002" / "train.log"], allow_model=False)
    assert "'dict' object has no attribute 'forward'" in report.findings[0].message


def test_every_fragment_is_asked_for() -> None:
    files = {
        path.relative_to(AS_FOUND).as_posix() for path in AS_FOUND.rglob("*") if path.is_file()
    }
    asked = {*FAILED, "s000/cfg", "s003/b.log", "s004/b.log", *(f"formats/{one}" for one in ROWS)}
    left = {
        one for one in files if not any(one == name or one.startswith(f"{name}/") for name in asked)
    }
    assert {Path(one).name for one in left} <= {"README.md"}
