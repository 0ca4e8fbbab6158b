"""Which experiments are made, in which order, and what they say of each cause."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from mlxdoctor.causes import Cause
from mlxdoctor.diagnosis import Diagnosed
from mlxdoctor.evidence.training_log import TrainingLog
from mlxdoctor.experiments import DIRECT, Measured, measured
from mlxdoctor.judge.remedy import Fix
from mlxdoctor.reproduce import untried
from mlxdoctor.reproduce.agreement import Agreement, agreement
from mlxdoctor.reproduce.bench import Bench
from mlxdoctor.reproduce.case import Case
from mlxdoctor.reproduce.change import fixes_for, try_change
from mlxdoctor.reproduce.injection import try_injection
from mlxdoctor.reproduce.laboratory import BudgetSpent
from mlxdoctor.reproduce.repair import REPAIRED, try_repair
from mlxdoctor.reproduce.resolve import resolve
from mlxdoctor.reproduce.rules import Judgement, Question, Trials, judge_plain
from mlxdoctor.run import Run
from mlxdoctor.safety.errors import InputError


@dataclass(frozen=True)
class Investigation:
    """What was tried and what came of it.

    Attributes:
        judgements: cause -> the verdict on it.
        measured: every direct experiment, by its cause.
        fixes: cause -> the change that was tried for it, as it cured or failed to.
        agreement: how the rerun as recorded compares with the log; None: it can't.
    """

    judgements: Mapping[str, Judgement] = field(default_factory=dict)
    measured: Mapping[str, Measured] = field(default_factory=dict)
    fixes: Mapping[str, Fix] = field(default_factory=dict)
    agreement: Agreement | None = None


def investigate(
    bench: Bench, run: Run, causes: Sequence[Diagnosed], asked: Sequence[str]
) -> Investigation:
    """Try each cause: those that need no training first, the others most likely first.

    Args:
        bench: where reruns are made and written down.
        run: the run that was examined.
        causes: to try, best first.
        asked: ids of those that the user asked for, which are tried in any case.
    """
    judgements: dict[str, Judgement] = {}
    direct: dict[str, Measured] = {}
    fixes: dict[str, Fix] = {}
    same: Agreement | None = None
    wanted = list(causes)
    try:
        for one in [one for one in causes if one.cause.id in DIRECT]:
            direct[one.cause.id] = measured(bench.lab, run, one.cause.id)
            judgements[one.cause.id] = direct[one.cause.id].judgement
        if _shown(direct, causes):
            wanted = [one for one in causes if one.cause.id in (*DIRECT, *asked)]
        judgements |= _without_rerun(bench.case, wanted)
        rest = [one.cause for one in wanted if one.cause.id not in judgements]
        plain = bench.plain() if rest else {}
        same = _agreement(bench, run, plain)
        for cause in rest:
            judgements[cause.id], fix = _tried(bench, cause, plain, same)
            fixes |= {cause.id: fix} if fix is not None else {}
    except BudgetSpent as spent:
        judgements = _out_of_time(judgements, wanted, spent)
    except InputError as error:
        # As recorded it can't be trained on at all: no cause has a rerun to be judged by.
        reason = f"the rerun as recorded is refused: {error}"
        for one in wanted:
            judgements.setdefault(one.cause.id, Judgement("undecided", reason))
    rerun = {name: one for name, one in judgements.items() if name not in DIRECT}
    resolved = resolve(rerun, causes, bench.case.limits)
    return Investigation(
        judgements={**judgements, **_behind(_shown(direct, causes), resolved)},
        measured=direct,
        fixes=fixes,
        agreement=same,
    )


def _without_rerun(case: Case, causes: Sequence[Diagnosed]) -> dict[str, Judgement]:
    """The verdicts on causes of which no rerun could say anything."""
    found: dict[str, Judgement] = {}
    for one in [one.cause for one in causes if one.cause.id not in DIRECT]:
        if one.no_experiment:
            found[one.id] = Judgement("undecided", one.no_experiment)
        elif not _question(case, one).wanted:
            found[one.id] = untried.no_symptom()
    return found


def _tried(
    bench: Bench, cause: Cause, plain: Trials, same: Agreement | None
) -> tuple[Judgement, Fix | None]:
    try:
        return _experiment(bench, cause, _question(bench.case, cause), plain, same)
    except InputError as error:
        return Judgement("undecided", f"it can't be tried: {error}"), None


def _question(case: Case, cause: Cause) -> Question:
    question = case.question(cause)
    # Rows can be wrong in so many ways that any symptom may be theirs.
    return case.everything if not question.wanted and cause.id in REPAIRED else question


def _experiment(
    bench: Bench, cause: Cause, question: Question, plain: Trials, same: Agreement | None
) -> tuple[Judgement, Fix | None]:
    fixes = fixes_for(bench.lab.recipe.config, bench.case, cause)
    if judge_plain(question, plain) is not False:
        if fixes:
            return try_change(bench, cause, question, plain, fixes)
        if cause.id in REPAIRED:
            return try_repair(bench, cause, question, plain), None
        return untried.of_failing(cause), None
    if any(not question.is_sound(one) for one in plain.values()):
        return untried.fails_otherwise(), None
    if same is not None and same.agrees and cause.changes_losses:
        return untried.of_same_losses(same), None
    if cause.inject and not fixes:
        return try_injection(bench, cause, question, plain), None
    return untried.of_sound(bench.case), None


def _out_of_time(
    judgements: Mapping[str, Judgement], causes: Sequence[Diagnosed], spent: BudgetSpent
) -> dict[str, Judgement]:
    """The verdicts so far; what was not tried says so, and what was confirmed waits for it."""
    left = [one.cause.id for one in causes if one.cause.id not in judgements]
    found: dict[str, Judgement] = {}
    for name, one in judgements.items():
        if one.verdict == "confirmed" and name not in DIRECT:
            rivals = f"the time was over before {', '.join(left)} could be tried as well"
            found[name] = Judgement("undecided", f"{one.reason}; but {rivals}")
        else:
            found[name] = one
    for place, name in enumerate(left):
        reason = "the time was over before it was tried"
        if place == 0:
            reason = f"the time was over before this could be done: {spent}"
        found[name] = Judgement("undecided", f"{reason}; the same command goes on from there")
    return found


def _shown(direct: Mapping[str, Measured], causes: Sequence[Diagnosed]) -> list[str]:
    """The causes that were shown directly and explain the failure, the first one first."""
    of_the_model = {one.cause.id for one in causes if not one.cause.of_the_report}
    return [
        name
        for name, one in direct.items()
        if one.judgement.verdict == "confirmed" and name in of_the_model
    ]


def _behind(shown: Sequence[str], resolved: Mapping[str, Judgement]) -> dict[str, Judgement]:
    """The verdicts of reruns, behind what was shown directly."""
    return {
        name: Judgement("undecided", f"{one.reason}; but {shown[0]} was shown directly")
        if shown and one.verdict == "confirmed"
        else one
        for name, one in resolved.items()
    }


def _agreement(bench: Bench, run: Run, plain: Trials) -> Agreement | None:
    seen, log = plain.get(bench.lab.recipe.seed), run.get(TrainingLog)
    if seen is None or log is None:
        return None
    return agreement(log, seen, bench.case.limits)
