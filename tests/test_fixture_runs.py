"""Every fixture run gets its known cause first; the healthy ones get nothing."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from mlxdoctor.api import CLEAR, diagnose, texts_of
from mlxdoctor.cli.output import exit_code
from mlxdoctor.convert.conversion import convert
from mlxdoctor.finding import Status
from mlxdoctor.formats.withheld import without_text
from mlxdoctor.report import Report
from mlxdoctor.verdict import CauseStatus
from tests.conftest import FIXTURES, RUNS, expected, run_names
from tests.convert.given import write_files
from tests.formats.test_no_text import pieces, rendered, secrets_of

#: Kinds of fault that the runs cover; a run that goes missing is noticed here.
KINDS = 18


def agrees(report: Report, name: str, *, models: bool) -> None:
    known = expected(name)
    diagnosed = [one.cause.id for one in report.diagnosis]
    assert not [one for one in report.outcomes if one.status is Status.CRASHED]
    if known["cause"] is None and not models:
        # Faults of the kinds that are left open show in nothing that files hold: with the models
        # run, the same run is healthy, as the test below says.
        assert report.verdict == "inconclusive"
        assert any(one.learned for one in report.seen)
        assert report.next.command.startswith("mlxdoctor diagnose ")
        assert report.next.command.endswith(name)
        assert set(report.next.settles) == {one.cause for one in report.causes(CauseStatus.OPEN)}
        assert exit_code(report, "error") == 3
    else:
        assert report.verdict == known["verdict"]
        assert exit_code(report, "error") == (0 if known["cause"] is None else 1)
    if known["cause"] is None:
        assert diagnosed == []
    else:
        assert diagnosed[0] == known["cause"]


def test_the_runs_cover_the_causes() -> None:
    causes = [expected(name)["cause"] for name in run_names()]
    assert len(set(causes) - {None}) >= KINDS
    assert causes.count(None) >= 3
    assert causes.count("learning-rate-too-high") >= 3
    assert causes.count("labels-misaligned") >= 2


@pytest.mark.slow
@pytest.mark.parametrize("name", run_names())
def test_the_known_cause_comes_first_and_no_format_without_text_quotes_the_run(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = diagnose([RUNS / name], allow_model=False)
    agrees(report, name, models=False)
    # All that pictures show is in the JSON as well; drawing them is what takes the time.
    monkeypatch.setattr("mlxdoctor.formats.figures.draw", lambda *_: {})
    config = json.loads((RUNS / name / "adapter_config.json").read_text())
    secrets = secrets_of(RUNS / name, FIXTURES / config["data"])
    assert len(secrets) > 1_000
    for report_format, texts in rendered(without_text(report, texts_of(report.run))).items():
        assert not pieces(texts) & secrets, report_format


#: What the twin says of some runs; of healthy ones nothing.
TWIN_OF_RUNS: dict[str, set[str]] = {
    "b-never-trained": {"end-state.worse-than-logged", "reach.not-what-was-learned"},
    "collapse-frequent-token": {"reach.rate-too-high"},
    "targets-too-long": {
        "replay.token-just-given",
        "end-state.worse-than-logged",
        "reach.far-above",
    },
    "targets-with-prompt": {"replay.prompt-in-the-loss"},
}

LEARNED = {
    "targets-too-long": "wrong-shift-learned",
    "labels-double-shift": "wrong-shift-learned",
    "targets-with-prompt": "prompt-learned",
    "padding-supervised": "padding-learned",
    "b-never-trained": "nothing-learned",
    "gradients-blocked": "nothing-learned",
    "rate-too-low": "nothing-learned",
    "no-supervised-tokens": "not-finite",
    "overfitting": "memorised",
    "collapse-frequent-token": "end-token-unlearned",
    "missing-end-token": "end-token-unlearned",
}


def findings_of(report: Report, check: str) -> dict[str, str]:
    """Severity by code of what one check says; `agrees` has seen that it did not crash."""
    (outcome,) = (one for one in report.outcomes if one.check == check)
    return {finding.code: finding.severity.value for finding in outcome.findings}


@pytest.mark.sweep(3)
@pytest.mark.slow(60)
@pytest.mark.parametrize("name", run_names())
def test_the_known_cause_comes_first_when_models_are_run(name: str) -> None:
    """What the adapter learned is of the same seconds."""
    is_healthy = expected(name)["verdict"] == "healthy"
    is_replayed = is_healthy or name in TWIN_OF_RUNS
    report = diagnose([RUNS / name], replay=is_replayed, budget=300 if is_replayed else None)
    agrees(report, name, models=True)
    learned = findings_of(report, "learned-targets")
    if name in LEARNED:
        assert f"learned-targets.{LEARNED[name]}" in learned
        is_shifted = LEARNED[name] == "wrong-shift-learned"
        assert ("learned-targets.wrong-shift-learned" in learned) is is_shifted
    if is_healthy:
        assert set(learned.values()) <= {"info"}
    if is_replayed:
        said = [findings_of(report, check) for check in ("replay", "end-state", "reach")]
        faults = {code for codes in said for code, level in codes.items() if level != "info"}
        assert faults == TWIN_OF_RUNS.get(name, set())


COLLAPSED = RUNS / "collapse-frequent-token"
TWIN = ("replay", "end-state", "reach")


@pytest.mark.slow
def test_nothing_is_trained_again_where_the_cause_is_clear() -> None:
    report = diagnose(RUNS / "end-token-flood")
    outcomes = {outcome.check: outcome for outcome in report.outcomes}
    assert report.root.cause.id == "end-token-flood"
    assert {(outcomes[name].status, outcomes[name].reason) for name in TWIN} == {
        (Status.SKIPPED, CLEAR)
    }
    assert outcomes["token-collapse"].status is Status.FOUND
    covered = {one.cause: one for one in report.coverage}
    assert covered["trainer-differs"].status is not CauseStatus.RULED_OUT


@pytest.mark.slow
def test_a_rate_is_advised_with_which_the_twin_has_learned_these_rows() -> None:
    report = diagnose(COLLAPSED)
    (tried,) = (one for one in report.findings if one.code == "reach.rate-too-high")
    assert report.fix.after == {"learning_rate": tried.measured["rate"]}
    assert tried.measured["cured"] < tried.measured["own"] / 2


def adapter_alone(folder: Path) -> Path:
    for name in ("adapters.safetensors", "adapter_config.json"):
        shutil.copy(COLLAPSED / name, folder)
    return folder


@pytest.mark.parametrize(
    ("place", "code"),
    [
        (lambda _: COLLAPSED / "train.log", "loss-trend.diverged"),
        (adapter_alone, "weight-drift.exploded"),
        (
            lambda folder: write_files(folder / "peft", convert(COLLAPSED).files),
            "weight-drift.exploded",
        ),
        (lambda _: FIXTURES / "data" / "geography-empty", "data-format.empty-answers"),
    ],
    ids=["log", "adapter folder", "PEFT adapter", "data folder"],
)
def test_one_kind_of_evidence_alone_is_enough_for_a_report(
    place: Callable[[Path], Path], code: str, tmp_path: Path
) -> None:
    report = diagnose([place(tmp_path)], allow_model=False)
    assert code in {finding.code for finding in report.findings}
    skipped = [one for one in report.outcomes if one.status is Status.SKIPPED]
    assert skipped
    assert all(one.reason for one in skipped)
    assert report.missing
