"""Results of the gate, made from the fixture runs."""

import os
from datetime import date
from functools import cache
from pathlib import Path

from mlxdoctor.api import diagnose
from mlxdoctor.gate.examine import Examined
from mlxdoctor.gate.policy import Ignore, Policy, Rules
from mlxdoctor.gate.weigh import judge
from mlxdoctor.gate_result import GatedFinding, GateItem, GateResult, ItemStatus
from mlxdoctor.report import Report
from tests.conftest import ROOT, RUNS
from tests.formats import sample

COLLAPSED, HEALTHY, OVERFITTED = "collapse-frequent-token", "healthy-ordinary", "overfitting"
#: A finding of a run that fails, which the policy below accepts.
ACCEPTED = Ignore("loss-trend", "known since the last release")
ABSENT = "there is no such file or folder; check the path"


@cache
def report(name: str) -> Report:
    """The report of a fixture run, its paths from the checkout's root."""
    before = Path.cwd()
    os.chdir(ROOT)
    try:
        return diagnose([RUNS / name], allow_model=False).alone
    finally:
        os.chdir(before)


def item(name: str, policy: Policy | None = None) -> GateItem:
    """A fixture run under a policy, or under none."""
    return judged(f"fixtures/runs/{name}", report(name), policy)


def judged(path: str, report: Report, policy: Policy | None = None) -> GateItem:
    """Any report under a policy, or under none."""
    today = date(2026, 11, 21)
    examined = Examined(report, "", 2.5)
    return judge(path, examined, policy or Policy(ROOT), frozenset(), today).item


def unusable(path: str = "fixtures/runs/absent") -> GateItem:
    """An item that is not there."""
    return GateItem(path, ItemStatus.UNUSABLE, (f"{path}: {ABSENT}",))


def result() -> GateResult:
    """Of everything something: failed, suppressed, passed, noted, inconclusive, unusable."""
    accepting = Policy(ROOT, ignores=(ACCEPTED,))
    return GateResult(
        (
            item(COLLAPSED, accepting),
            item(HEALTHY),
            item(OVERFITTED, Policy(ROOT, rules=Rules(fail_on="never"))),
            judged("fixtures/runs", sample.made(sample.inconclusive() | {"unreadable": []})),
            unusable(),
        ),
        policy="pyproject.toml",
        notices=("the ignore of label-mask suppresses nothing: remove it",),
        unfinished=("fixtures/runs/rate-too-low",),
    )


def hostile(text: str) -> GateResult:
    """A failed item into which somebody wrote `text` wherever an artifact has a say."""
    finding = sample.finding(
        "loss-trend.diverged", "error", text, where=text, expected=text, fix=text
    )
    noted = sample.finding("data-quality.repeated", "warning", text, where=text)
    outcomes = [
        sample.outcome("loss-trend", "found", finding),
        sample.outcome("data-quality", "found", noted),
        sample.outcome("label-mask", "skipped", reason=text),
        sample.outcome("end-token", "crashed", reason=text),
    ]
    data = sample.unhealthy() | {"outcomes": outcomes, "unreadable": [text], "name": text}
    held = sample.made(data)
    remark = sample.made_finding(noted)
    findings = (
        GatedFinding(sample.made_finding(finding), "fails"),
        GatedFinding(remark, "suppressed", "ignore", text),
    )
    failed = GateItem(text, ItemStatus.FAILED, (text,), held, findings, 1.0)
    passed = GateItem(text, ItemStatus.PASSED, (), held, (GatedFinding(remark, "noted"),), 1.0)
    return GateResult((failed, passed, unusable(text)), text, (text,), (text,))
