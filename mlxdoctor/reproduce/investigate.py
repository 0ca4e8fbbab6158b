"""Which experiments are made, in which order, and what they say of each cause."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from mlxdoctor.causes import Cause
from mlxdoctor.confirmation import Agreement
from mlxdoctor.diagnosis import Diagnosed, rank
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.training_log import TrainingLog
from mlxdoctor.experiments import Counterfactual, Direct, Experiment, Measured
from mlxdoctor.experiments.shared.bench import Bench, Failure
from mlxdoctor.experiments.shared.laboratory import BudgetSpent
from mlxdoctor.experiments.shared.rules import (
    PROBE,
    Limits,
    Question,
    Ruling,
    Trials,
    judge_plain,
    undecided,
)
from mlxdoctor.experiments.shared.symptoms import symptom_checks
from mlxdoctor.judge.remedy import fix_for
from mlxdoctor.reproduce.agreement import agreement
from mlxdoctor.run import Run
from mlxdoctor.safety.errors import InputError

#: Leading causes that are tried.
CAUSES = 3
_MORE_TIME = "more time (--budget): the same command goes on from there"


@dataclass(frozen=True)
class Investigation:
    """What was tried and what came of it.

    Attributes:
        rulings: cause -> the verdict on it.
        measured: every direct experiment, by its cause.
        agreement: how the rerun as recorded compares with the log; None: it can't.
        iterations: of each rerun; None where none was made.
    """

    rulings: Mapping[str, Ruling] = field(default_factory=dict)
    measured: Mapping[str, Measured] = field(default_factory=dict)
    agreement: Agreement | None = None
    iterations: int | None = None


def candidates(
    failure: Failure,
    config: TrainingConfig,
    diagnosis: Sequence[Diagnosed],
    asked: Sequence[str],
) -> list[Diagnosed]:
    """The causes to try: those asked for, the leading ones, and their rivals, best first.

    A rival is a cause that shares a symptom and whose change restores a known value: what
    lowers the rate cures a scale that is too large just as well.
    """
    every = {one.cause.id: one for one in rank(failure.outcomes, failure.knowledge)}
    leading = diagnosis[:CAUSES]
    # To re-create a cause that the evidence all but rules out would prove nothing.
    near = leading[0].score - failure.limits.margin if leading else 0.0
    chosen = [one.cause.id for one in leading if not one.cause.inject or one.score > near]
    chosen += [
        name
        for name, one in every.items()
        if one.cause.change is not None
        and one.cause.change.operation == "set"
        and fix_for(one.cause.change, config) is not None
        and failure.recorded.of(one.cause) & failure.recorded.errors
    ]
    unsupported = {
        name: Diagnosed(failure.knowledge.causes[name], float("-inf"), (), (), (), ())
        for name in asked
    }
    known = unsupported | every
    wanted = dict.fromkeys((*chosen, *asked))
    return sorted((known[name] for name in wanted), key=lambda one: -one.score)


def investigate(
    bench: Bench,
    run: Run,
    causes: Sequence[Diagnosed],
    asked: Sequence[str],
    experiments: Sequence[Experiment],
) -> Investigation:
    """Try each cause: those that need no training first, the others most likely first.

    Args:
        bench: where reruns are made and written down.
        run: the run that was examined.
        causes: to try, best first.
        asked: ids of those that the user asked for, which are tried in any case.
        experiments: all there are.
    """
    direct = {one.cause: one for one in experiments if isinstance(one, Direct)}
    reruns = [one for one in experiments if isinstance(one, Counterfactual)]
    rulings: dict[str, Ruling] = {}
    measured: dict[str, Measured] = {}
    # Causes of which a direct experiment said what there is to say, and those it left to reruns.
    settled: set[str] = set()
    open_: dict[str, Ruling] = {}
    shown: list[str] = []
    same: Agreement | None = None
    wanted = list(causes)
    try:
        for one in [one.cause for one in causes if one.cause.id in direct]:
            measured[one.id] = direct[one.id].made(bench.lab, run)
            ruling = measured[one.id].ruling
            if ruling.verdict == "undecided" and any(other.shows(one) for other in reruns):
                open_[one.id] = ruling
            else:
                rulings[one.id] = ruling
                settled.add(one.id)
            if ruling.verdict == "confirmed" and not one.of_the_report:
                shown.append(one.id)
        if shown:
            # What was shown explains it: the rest is tried only where it was asked for.
            wanted = [one for one in causes if one.cause.id in (*settled, *asked)]
        rest = [one.cause for one in wanted if one.cause.id not in settled]
        found = _without_rerun(bench.failure, rest, reruns)
        rulings |= {name: _after(open_.get(name), one) for name, one in found.items()}
        rest = [one for one in rest if one.id not in found]
        bench = bench.shortened() if rest else bench
        plain = bench.plain() if rest else {}
        recorded = plain.get(bench.lab.recipe.seed)
        same = agreement(run.get(TrainingLog), recorded, bench.failure.limits)
        for cause in rest:
            ruling = _tried(bench, cause, plain, same, reruns)
            rulings[cause.id] = _after(open_.get(cause.id), ruling)
    except BudgetSpent as spent:
        rulings = _out_of_time(rulings, wanted, spent, settled)
    except InputError as error:
        # As recorded it can't be trained on at all: no cause has a rerun to be judged by.
        reason = f"the rerun as recorded is refused: {error}"
        for name in (one.cause.id for one in wanted):
            ruling = undecided(reason, "files that mlx_lm.lora trains on")
            rulings.setdefault(name, _after(open_.get(name), ruling))
    rerun = {name: one for name, one in rulings.items() if name not in settled}
    resolved = resolve(rerun, causes, bench.failure.limits)
    verdicts = {**rulings, **_behind(shown, resolved)}
    return Investigation(verdicts, measured, same, bench.failure.iterations)


def _after(before: Ruling | None, ruling: Ruling) -> Ruling:
    """The verdict of reruns on a cause that a direct experiment had left open."""
    if before is None or ruling.verdict != "undecided":
        return ruling
    wanted = dict.fromkeys((before.wanted, ruling.wanted))
    return undecided(f"{before.reason}; {ruling.reason}", " or ".join(wanted))


def _without_rerun(
    failure: Failure, causes: Sequence[Cause], reruns: Sequence[Counterfactual]
) -> dict[str, Ruling]:
    """The verdicts on causes of which no rerun could say anything."""
    found: dict[str, Ruling] = {}
    for one in causes:
        if one.no_experiment:
            remedy = "the remedy tried where the run was made, and that run diagnosed"
            found[one.id] = undecided(one.no_experiment, remedy)
        elif not _question(failure, one, reruns).wanted:
            reason = "none of the symptoms that a rerun could show is one of this cause"
            found[one.id] = undecided(reason, _symptom_of(one))
    return found


def _symptom_of(cause: Cause) -> str:
    """The finding that a rerun could show and that speaks for a cause most, as what is wanted."""
    names = {one.name for one in symptom_checks()}
    codes = [one for one in cause.weights if one.split(".", 1)[0] in names]
    if not codes:
        return "the remedy tried where the run was made, and that run diagnosed"
    likeliest = max(codes, key=lambda one: cause.weights[one])
    return f"a finding such as {likeliest}, which this run does not have"


def _question(failure: Failure, cause: Cause, reruns: Sequence[Counterfactual]) -> Question:
    question = failure.question(cause)
    any_symptom = any(one.any_symptom and one.shows(cause) for one in reruns)
    return failure.everything if any_symptom and not question.wanted else question


def _tried(
    bench: Bench,
    cause: Cause,
    plain: Trials,
    same: Agreement | None,
    reruns: Sequence[Counterfactual],
) -> Ruling:
    question = _question(bench.failure, cause, reruns)
    fails = judge_plain(question, plain) is not False
    if not fails:
        if any(not question.is_sound(one) for one in plain.values()):
            reason = "rerun as recorded it fails, but with none of the symptoms of this cause"
            return Ruling("refuted", reason)
        if same is not None and same.agrees and cause.changes_losses:
            return Ruling(
                "refuted",
                "the reference trainer, which does not have this fault, gives the recorded losses "
                f"to within {same.difference:.2g} nats (up to iteration {same.last:,})",
            )
    for one in reruns:
        if one.of == ("failing" if fails else "sound") and one.shows(cause):
            try:
                ruling = one.make(bench, cause, question, plain)
            except InputError as error:
                return undecided(f"it can't be tried: {error}", "files with which it can be")
            if ruling is not None:
                return ruling
    return _untried_as_it_fails(cause) if fails else _untried_as_it_is_sound(bench.failure)


def _untried_as_it_fails(cause: Cause) -> Ruling:
    if cause.only_in_code:
        return Ruling(
            "refuted",
            "the reference trainer, which does not have this fault, fails in the same way",
        )
    if cause.change is not None:
        return Ruling("refuted", f"{cause.change.key} already has the value that would cure it")
    reason = "it is reproduced, but no single change that would cure this cause is known"
    return undecided(
        reason, "a healthy run to compare with (`mlxdoctor diagnose --against HEALTHY`)"
    )


def _untried_as_it_is_sound(failure: Failure) -> Ruling:
    if failure.onset is not None and failure.onset > failure.iterations:
        return undecided(
            f"{failure.iterations} iterations are sound, but the run went wrong at "
            f"{failure.onset:,}",
            f"longer reruns (--iters {2 * failure.onset})",
        )
    return Ruling(
        "refuted",
        f"rerun as recorded with the reference trainer, {failure.iterations} iterations are "
        "sound: the configuration is not what made it fail",
    )


def _out_of_time(
    rulings: Mapping[str, Ruling],
    causes: Sequence[Diagnosed],
    spent: BudgetSpent,
    settled: Collection[str],
) -> dict[str, Ruling]:
    """The verdicts so far; what was not tried says so, and what was confirmed waits for it."""
    left = [one.cause.id for one in causes if one.cause.id not in rulings]
    found: dict[str, Ruling] = {}
    for name, one in rulings.items():
        if one.verdict == "confirmed" and name not in settled:
            rivals = f"the time was over before {', '.join(left)} could be tried as well"
            found[name] = undecided(f"{one.reason}; but {rivals}", _MORE_TIME)
        else:
            found[name] = one
    for place, name in enumerate(left):
        reason = "the time was over before it was tried"
        if place == 0:
            reason = f"the time was over before this could be done: {spent}"
        found[name] = undecided(reason, _MORE_TIME)
    return found


def _behind(shown: Sequence[str], resolved: Mapping[str, Ruling]) -> dict[str, Ruling]:
    """The verdicts of reruns, behind what was shown directly and explains the failure."""
    return {
        name: undecided(
            f"{one.reason}; but {shown[0]} was shown directly",
            "that cured first, and the run diagnosed again",
        )
        if shown and one.verdict == "confirmed"
        else one
        for name, one in resolved.items()
    }


def resolve(
    rulings: Mapping[str, Ruling], causes: Sequence[Diagnosed], limits: Limits
) -> dict[str, Ruling]:
    """The verdicts, with one cause confirmed at the most.

    A smaller step cures a scale that is too large, and a smaller scale a rate that is too
    high: where a change that restores a known value (`set`) cures, one that only makes a
    value smaller or larger says nothing of its own. Otherwise the fault that re-creates more
    of the failure is the cause; and where that does not tell them apart the evidence of the
    run itself has to, by a margin.
    """
    tried = {one.cause.id: one for one in causes}
    resolved = {
        name: _behind_the_evidence(one, tried[name], rulings, causes, limits)
        for name, one in rulings.items()
    }
    confirmed = [tried[name] for name, one in resolved.items() if one.verdict == "confirmed"]
    if len(confirmed) < 2:
        return resolved
    best = max(
        confirmed, key=lambda one: (_restores(one), rulings[one.cause.id].strength, one.score)
    )
    for one in confirmed:
        if one is best:
            continue
        if _beats(best, one, rulings, limits):
            reason = (
                f"{rulings[one.cause.id].reason}; but so does the experiment for "
                f"{best.cause.id}, which explains the failure better"
            )
            resolved[one.cause.id] = undecided(reason, f"the cure of {best.cause.id} tried first")
            continue
        reason = "the experiments for {} succeed as well, and nothing tells them apart"
        resolved[one.cause.id] = undecided(reason.format(best.cause.id), PROBE)
        resolved[best.cause.id] = undecided(reason.format(one.cause.id), PROBE)
    return resolved


def _behind_the_evidence(
    ruling: Ruling,
    cause: Diagnosed,
    rulings: Mapping[str, Ruling],
    causes: Sequence[Diagnosed],
    limits: Limits,
) -> Ruling:
    """A re-creation of a cause that the evidence all but rules out proves little."""
    ahead = [
        one.cause.id
        for one in causes
        if one.score - cause.score >= limits.margin
        and rulings.get(one.cause.id, ruling).verdict == "undecided"
    ]
    if ruling.verdict != "confirmed" or not cause.cause.inject or not ahead:
        return ruling
    return undecided(
        f"{ruling.reason}; but what the run left speaks for {ahead[0]} by far, which is undecided",
        f"what decides {ahead[0]}",
    )


def _restores(one: Diagnosed) -> bool:
    return one.cause.change is not None and one.cause.change.operation == "set"


def _beats(
    best: Diagnosed, other: Diagnosed, rulings: Mapping[str, Ruling], limits: Limits
) -> bool:
    if _restores(best) and not _restores(other) and other.cause.change is not None:
        return True
    mine, theirs = rulings[best.cause.id].strength, rulings[other.cause.id].strength
    return mine > theirs or best.score - other.score >= limits.margin
