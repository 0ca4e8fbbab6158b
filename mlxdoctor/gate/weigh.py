"""What the policy makes of what was examined."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path

from mlxdoctor.causes import load_causes
from mlxdoctor.evidence.options import NOT_ASKED
from mlxdoctor.finding import LOOKED, Severity, Status
from mlxdoctor.formats.gated import MAIN_KINDS
from mlxdoctor.formats.summary import headline, missing
from mlxdoctor.gate.baseline import Known, figures_of
from mlxdoctor.gate.examine import Examined
from mlxdoctor.gate.policy import Ignore, Policy, Rules, matches
from mlxdoctor.gate_result import GatedFinding, GateItem, ItemStatus
from mlxdoctor.report import Report
from mlxdoctor.verdict import Readiness, Verdict

#: Kinds of evidence as their classes call them, which this process need not import.
ADAPTER, BASE, ROWS, LOSSES = "adapter", "base model", "dataset", "token losses"
CONFIGURATION, TUNED = "training configuration", "tuned model"
#: Reasons named for evidence that was missing.
_MISSING = 3
#: Where another adapter may lie below an item's own.
_DEPTHS = ("*/", "*/*/")
#: Checks that run models, and what a warning of theirs says against an adapter.
_AGAINST_IT = {
    "end-state": "it is not what its log says",
    "reach": "it did not learn what its rows teach",
}
#: Checks that see, with the models run, whether an adapter is better than its base at its own rows.
_WITNESSES = ("learned-targets", "reach", "generation-effect")


@dataclass(frozen=True)
class Weighed:
    """An item, and what it says about the policy.

    Attributes:
        used: ignores and baseline entries that suppressed a finding of it.
        idle: those that could have and did not.
        failing: its findings that fail it, as a baseline would know them.
    """

    item: GateItem
    used: frozenset[Ignore | Known] = frozenset()
    idle: frozenset[Ignore | Known] = frozenset()
    failing: frozenset[Known] = frozenset()


def judge(
    path: str, examined: Examined, policy: Policy, known: frozenset[Known], today: date
) -> Weighed:
    """Apply the policy to one item; `known` are the baseline's entries for it."""
    report, seconds, key = examined.report, examined.seconds, policy.key(path)
    if report is None:
        return Weighed(GateItem(path, ItemStatus.UNUSABLE, (examined.problem,), seconds=seconds))
    rules = policy.rules_for(key)
    ignores = [
        ignore for ignore in policy.ignores if not ignore.paths or matches(ignore.paths, key)
    ]
    in_force = [ignore for ignore in ignores if not ignore.has_expired(today)]
    gated: list[GatedFinding] = []
    used: set[Ignore | Known] = set()
    failing: set[Known] = set()
    reopened: list[str] = []
    # The files of a run itself, whatever their order and place. Of what is too large to be
    # hashed, the note has the size.
    own = [file for file in report.evidence if file.kind in MAIN_KINDS] or report.evidence
    hashes = "\n".join(sorted({file.sha256 or file.note for file in own}))
    files = hashlib.sha256(hashes.encode()).hexdigest() if own else ""
    for finding in report.findings:
        figures = figures_of(finding.measured)
        entry = Known(key, finding.code, finding.fingerprint, files, figures)
        # Branches that were merged may have left several.
        entries = sorted(accepted for accepted in known if accepted.identity == entry.identity)
        changes = [accepted.reopened_by(entry) for accepted in entries]
        names = {finding.code, finding.code.split(".", 1)[0]}
        # An effect that is left of a run which learned what its rows teach.
        is_left = report.verdict is Verdict.HEALTHY and load_causes().is_effect(finding.code)
        is_error = finding.severity is Severity.ERROR
        severity = Severity.WARNING if is_left and is_error else finding.severity
        accepting = [ignore for ignore in in_force if ignore.code in names]
        used.update(accepting)
        if accepting:
            gated.append(GatedFinding(finding, "suppressed", "ignore", accepting[0].reason))
        elif not all(changes):
            used.update(entries)
            gated.append(GatedFinding(finding, "suppressed", "baseline"))
        elif names & rules.fail or severity.reaches(rules.fail_on):
            used.update(entries)
            reopened += changes[:1]
            failing.add(entry)
            gated.append(GatedFinding(finding, "fails"))
        else:
            gated.append(GatedFinding(finding, "noted"))
    # A check that did not look says nothing about a suppression of its findings.
    looked = {outcome.check for outcome in report.outcomes if outcome.status in LOOKED}
    suppressions: tuple[Ignore | Known, ...] = (*ignores, *known)
    idle = {each for each in suppressions if each.code.split(".", 1)[0] in looked} - used
    item = replace(_item(path, report, rules, gated, reopened), seconds=seconds)
    return Weighed(item, frozenset(used), frozenset(idle), frozenset(failing))


def notices(policy: Policy, judged: Sequence[Weighed], today: date) -> Iterator[str]:
    """What is wrong with the policy, as far as the items tell, a sentence each."""
    idle = {suppression for judgement in judged for suppression in judgement.idle}
    idle -= {suppression for judgement in judged for suppression in judgement.used}
    for ignore in sorted(policy.ignores, key=lambda ignore: not ignore.has_expired(today)):
        where = f" in {', '.join(ignore.paths)}" if ignore.paths else ""
        suppression = f"the ignore of {ignore.code}{where}"
        if ignore.has_expired(today):
            yield (
                f"{suppression} expired on {ignore.expires} and suppresses nothing any more: "
                "remove it, or renew it with its reason"
            )
        elif ignore in idle:
            yield f"{suppression} suppresses nothing: remove it"
    for entry in sorted(entry for entry in idle if isinstance(entry, Known)):
        yield (
            f"the baseline knows {entry.code} in {entry.path}, where it is gone: "
            "renew the baseline with --write-baseline"
        )


def renewed(known: frozenset[Known], judgements: Sequence[Weighed]) -> frozenset[Known]:
    """The baseline with what fails now, and without what is gone."""
    failing = {entry for judgement in judgements for entry in judgement.failing}
    idle = {entry for judgement in judgements for entry in judgement.idle}
    anew = {entry.identity for entry in failing}
    return frozenset({entry for entry in known - idle if entry.identity not in anew} | failing)


def _item(
    path: str, report: Report, rules: Rules, gated: Sequence[GatedFinding], reopened: Sequence[str]
) -> GateItem:
    fails = any(held.ruling == "fails" for held in gated)
    undecided = list(_undecided(report, rules))
    # What fails is not asked for more: no models are run for what its files failed.
    if rules.require_generate and not fails and _is_adapter(report):
        undecided += _not_learned(report)
        noted = [held.finding for held in gated if held.ruling == "noted"]
        undecided += [
            f"{said}: {finding.message}"
            for finding in noted
            if finding.severity is Severity.WARNING
            and (said := _AGAINST_IT.get(finding.code.partition(".")[0]))
        ]
    is_open = any(
        held.ruling != "suppressed" and held.finding.severity is not Severity.INFO for held in gated
    )
    suspicion = headline(report) if report.suspected is not None and is_open else ""
    # A run that failed never passes, whichever of its findings is an error.
    is_bad = report.verdict is Verdict.UNHEALTHY and is_open and not fails
    is_bad &= rules.fail_on != "never" and not report.unreadable
    # A verdict may rest on what was accepted: on an error, or on what its first cause has.
    basis = report.diagnosis[0].supporting if report.diagnosis else ()
    is_bad &= not any(
        held.finding.severity is Severity.ERROR or held.finding.code in basis
        for held in gated
        if held.ruling == "suppressed"
    )
    is_refused = is_bad or (bool(suspicion) and rules.suspect == "fail")
    if fails or is_refused:
        status = ItemStatus.FAILED
    elif report.unreadable and (
        report.planned is not None or report.verdict is not Verdict.HEALTHY
    ):
        # An unread log holds no model back that reached what its rows teach.
        status = ItemStatus.UNUSABLE
    else:
        status = ItemStatus.INCONCLUSIVE if undecided else ItemStatus.PASSED
    refused = [headline(report)] if is_refused else []
    unexplained = (*reopened, *refused, *report.unreadable, *undecided)
    item = GateItem(path, status, unexplained, report, tuple(gated))
    if status is not ItemStatus.PASSED:
        return item
    return replace(item, suspicion=suspicion, unseen=(*_unseen(report), *_below(path, report)))


def _below(path: str, report: Report) -> Iterator[str]:
    """The adapters in an item's folders that were not judged, a clause each."""
    judged = {Path(file.source).parent for file in report.evidence if file.kind == ADAPTER}
    for depth in _DEPTHS:
        for file in sorted(Path(path).glob(f"{depth}adapters.safetensors")):
            if judged and file.parent not in judged:
                yield f"whether the adapter below, in {file.parent}, is sound: name it"


def _undecided(report: Report, rules: Rules) -> Iterator[str]:
    """Why the item can't pass although nothing fails it, a sentence each."""
    by_check = {outcome.check: outcome for outcome in report.outcomes}
    # What a policy requires to be looked at is what a run leaves.
    for name in rules.require if report.planned is None else ():
        outcome = by_check[name]
        if outcome.status not in LOOKED:
            why = f": {outcome.reason}" if outcome.reason else ""
            yield f"the required check {name} is {outcome.status}{why}"
    for outcome in report.outcomes:
        if outcome.status is Status.CRASHED and outcome.check not in rules.require:
            yield f"the check {outcome.check} crashed: {outcome.reason}"
    kinds = {file.kind for file in report.evidence}
    # What could not be read is a reason of its own.
    if report.unreadable:
        return
    if report.planned is not None:
        if report.planned.readiness is Readiness.UNKNOWN:
            yield report.planned.open_because
    elif CONFIGURATION in kinds and kinds.isdisjoint((ADAPTER, TUNED)):
        yield "its configuration lies there, and no weights"
    # An adapter that is sound as far as files can tell passes: nobody trains in CI.
    elif report.verdict is Verdict.INCONCLUSIVE and not report.seen:
        lacking = "; ".join(list(missing(report))[:_MISSING])
        yield f"there was too little to judge it by{': ' if lacking else ''}{lacking}"


def _not_learned(report: Report) -> Iterator[str]:
    """Why models did not show that an adapter is better than its base, a sentence each."""
    outcomes = [outcome for outcome in report.outcomes if outcome.check in _WITNESSES]
    if any(seen.learned for outcome in outcomes for seen in outcome.seen):
        return
    reasons = (outcome.reason for outcome in outcomes if outcome.reason)
    why = next(reasons, "its loss is about the base's").partition("; ")[0]
    why = "needs --generate" if why.startswith(NOT_ASKED) else why
    yield f"no model shows that it is better than its base at its own rows: {why}"


def _is_adapter(report: Report) -> bool:
    return any(file.kind == ADAPTER for file in report.evidence)


def _unseen(report: Report) -> tuple[str, ...]:
    """What was not seen of an adapter, and what it takes, a clause each."""
    if not _is_adapter(report):
        return ()
    missing = {absent.kind: absent.why for absent in report.missing}
    if BASE in missing:
        return ("needs the base: whether names and sizes are its own, and what it answers",)
    if missing.get(LOSSES, "").startswith(NOT_ASKED):
        return ("needs --generate: what it answers",)
    if ROWS in missing:
        return ("needs its rows: whether it learned them",)
    return tuple(
        f"whether it learned as much as its rows teach: {outcome.reason}"
        for outcome in report.outcomes
        if outcome.check == "reach" and outcome.arises and outcome.status not in LOOKED
    )
