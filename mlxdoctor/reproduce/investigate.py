"""Which experiments are made, in which order, and what they say of each cause."""

from collections.abc import Mapping, Sequence

from mlxdoctor.causes import Cause, load_causes
from mlxdoctor.diagnosis import Diagnosed, rank, severities
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.finding import Severity
from mlxdoctor.judge.remedy import fix_for
from mlxdoctor.reproduce.bench import Bench, Failure
from mlxdoctor.reproduce.changes import try_cure, try_injection
from mlxdoctor.reproduce.observe import BudgetSpent, symptom_checks
from mlxdoctor.reproduce.rules import PROBE, Ruling, Trials, refuted, undecided
from mlxdoctor.run import Run
from mlxdoctor.safety.errors import InputError
from mlxdoctor.twin.replay import Replay
from mlxdoctor.verdict import CauseStatus

#: Leading causes that are tried.
CAUSES = 3
#: Log-odds by which a cause is far ahead of another: ln 9, as for a headline that says the cause
#: without `probable`.
MARGIN = 2.2
#: Checks of the rows themselves: what they find is a fact.
OF_ROWS = ("data-format.", "data-quality.")
_MORE_TIME = "more time (--budget), or shorter reruns (--iters)"
_REMEDY = "the remedy tried where the run was made, and that run diagnosed"


def candidates(
    failure: Failure,
    config: TrainingConfig,
    diagnosis: Sequence[Diagnosed],
    asked: Sequence[str],
) -> list[Diagnosed]:
    """The causes to try: those asked for, the leading ones, and their rivals, best first.

    A rival shares a symptom, and its change restores a known value.
    """
    ranked = {listed.cause.id: listed for listed in rank(failure.outcomes, load_causes())}
    leading = diagnosis[:CAUSES]
    # To re-create a cause that the evidence all but rules out would prove nothing.
    near = leading[0].score - MARGIN if leading else 0.0
    chosen = [
        listed.cause.id for listed in leading if not listed.cause.inject or listed.score > near
    ]
    chosen += [
        name
        for name, listed in ranked.items()
        if _restores(listed)
        and fix_for(listed.cause.change, config) is not None
        and failure.recorded.of(listed.cause) & failure.recorded.errors
    ]
    noted = severities(failure.outcomes)
    for name in asked:
        cause = load_causes().causes[name].seen_with(noted)
        ranked.setdefault(name, Diagnosed(cause, float("-inf"), (), (), (), ()))
    wanted = dict.fromkeys((*chosen, *asked))
    return sorted((ranked[name] for name in wanted), key=lambda listed: -listed.score)


def investigate(
    bench: Bench, run: Run, causes: Sequence[Diagnosed], asked: Sequence[str]
) -> dict[str, Ruling]:
    """Try each cause: those that need no training first, the others most likely first.

    Those whose ids were `asked` for are tried in any case.

    Returns:
        Cause -> the verdict on it.
    """
    failure = bench.failure
    wanted = [ranked.cause for ranked in causes]
    settled = {c.id: shown_by_diagnosis(failure, c) for c in wanted if c.shown_by_diagnosis}
    confirmed = {name for name, ruling in settled.items() if ruling.verdict == "confirmed"}
    shown = next((c.id for c in wanted if c.id in confirmed and not c.of_the_report), "")
    # What was shown explains it: the rest is tried only where it was asked for.
    rest = [c for c in wanted if c.id not in settled and (not shown or c.id in asked)]
    rulings = {c.id: ruling for c in rest if (ruling := _without_rerun(failure, c)) is not None}
    rest = [cause for cause in rest if cause.id not in rulings]
    try:
        if rest:
            plain = bench.plain()
            replay = run.get(Replay)
            for cause in rest:
                rulings[cause.id] = _tried(bench, cause, plain, replay)
    except BudgetSpent as spent:
        names = [cause.id for cause in rest if cause.id not in rulings]
        rulings = _out_of_time(rulings, names, spent)
    except InputError as error:
        # As recorded it can't be trained on at all: no cause has a rerun to be judged by.
        reason = f"the rerun as recorded is refused: {error}"
        refused = undecided(reason, "files that mlx_lm.lora trains on")
        rulings = dict.fromkeys((cause.id for cause in rest), refused) | rulings
    rulings = resolve(rulings, causes)
    for name, ruling in rulings.items():
        if shown and ruling.verdict == "confirmed":
            reason = f"{ruling.reason}; but {shown} was shown directly"
            rulings[name] = undecided(reason, "that cured first, and the run diagnosed again")
    return settled | rulings


def shown_by_diagnosis(failure: Failure, cause: Cause) -> Ruling:
    """The verdict on a cause whose proofs are facts, which no rerun could show better."""
    strongest = max(cause.weights, key=lambda code: cause.weights[code])
    coverage = failure.coverage.get(cause.id)
    is_named = coverage is not None and coverage.status is CauseStatus.NAMED
    # A warning is a fact, too, where the diagnosis names its cause.
    shown = {Severity.ERROR, Severity.WARNING} if is_named else {Severity.ERROR}
    for finding in failure.findings:
        weight = cause.weights.get(finding.code, 0.0)
        # That nothing can be told is itself the fault, and the rows show it.
        is_lack = cause.of_the_report and weight > 0.0 and finding.code.startswith(OF_ROWS)
        is_lack &= finding.severity is not Severity.INFO
        if is_lack or (weight >= cause.weights[strongest] and finding.severity in shown):
            message = finding.message.removesuffix(".")
            reason = f"the diagnosis itself shows it, no experiment was made: {message}"
            return Ruling("confirmed", reason, 1.0)
    wanted = f"a finding such as {strongest}, which this run does not have"
    if coverage is None or coverage.status is CauseStatus.NO_SIGN:
        return undecided("nothing that was looked at speaks for it, or rules it out", wanted)
    if coverage.status is CauseStatus.RULED_OUT:
        return refuted(f"looked for and not there: {coverage.why}")
    if coverage.status is CauseStatus.OPEN:
        return undecided(coverage.why, coverage.needs or wanted)
    return undecided(f"{coverage.why} speaks for it, and is no proof", wanted)


def _without_rerun(failure: Failure, cause: Cause) -> Ruling | None:
    """The verdict on a cause of which no rerun could say anything; None: one can."""
    if cause.no_experiment:
        return undecided(cause.no_experiment, _REMEDY)
    # What came too soon to an end shows in the loss alone.
    change = cause.change
    is_longer = change is not None and (change.key, change.operation) == ("iters", "multiply")
    if failure.question(cause).wanted or is_longer:
        return None
    # What only the run's own log or files can show is shown by these.
    if (ruling := shown_by_diagnosis(failure, cause)).verdict == "confirmed":
        return ruling
    # The finding that a rerun could show and that speaks for the cause most.
    checks = {check.name for check in symptom_checks()}
    codes = [code for code in cause.weights if code.split(".", 1)[0] in checks]
    likeliest = max(codes, key=cause.weights.__getitem__, default="")
    wanted = f"a finding such as {likeliest}, which this run does not have"
    reason = "none of the symptoms that a rerun could show is one of this cause"
    return undecided(reason, wanted if likeliest else _REMEDY)


def _tried(bench: Bench, cause: Cause, plain: Trials, replay: Replay | None) -> Ruling:
    failure = bench.failure
    question = failure.question(cause)
    fails = any(map(question.shows, plain.values()))
    if not fails:
        if not all(map(question.is_sound, plain.values())):
            return refuted(
                "rerun as recorded it fails, but with none of the symptoms of this cause"
            )
        if replay is not None and replay.is_step_for_step and cause.changes_losses:
            return refuted(
                "the reference trainer, which does not have this fault, computes the losses that "
                "the log begins with"
            )
    try:
        ruling = (try_cure if fails else try_injection)(bench, cause, question, plain)
    except InputError as error:
        return undecided(f"it can't be tried: {error}", "files with which it can be")
    if ruling is not None:
        return ruling
    if not fails:
        if failure.onset is not None and failure.onset > failure.iterations:
            return undecided(
                f"{failure.iterations} iterations are sound, but the run went wrong at "
                f"{failure.onset:,}",
                f"longer reruns (--iters {2 * failure.onset})",
            )
        return refuted(
            f"rerun as recorded with the reference trainer, {failure.iterations} iterations are "
            "sound: the configuration is not what made it fail"
        )
    if cause.only_in_code:
        return refuted(
            "the reference trainer, which does not have this fault, fails in the same way"
        )
    if cause.change is not None:
        return refuted(f"{cause.change.key} already has the value that would cure it")
    reason = "it is reproduced, but no single change that would cure this cause is known"
    return undecided(reason, "the configuration of a healthy run to compare with")


def _out_of_time(
    rulings: Mapping[str, Ruling], untried: Sequence[str], spent: BudgetSpent
) -> dict[str, Ruling]:
    """The verdicts so far; what was not tried says so, and what was confirmed waits for it."""
    after = dict(rulings)
    for name, ruling in rulings.items():
        if ruling.verdict == "confirmed":
            rivals = f"the time was over before {', '.join(untried)} could be tried as well"
            after[name] = undecided(f"{ruling.reason}; but {rivals}", _MORE_TIME)
    reason = f"the time was over before this could be done: {spent}"
    for name in untried:
        after[name] = undecided(reason, _MORE_TIME)
        reason = "the time was over before it was tried"
    return after


def resolve(rulings: Mapping[str, Ruling], causes: Sequence[Diagnosed]) -> dict[str, Ruling]:
    """The verdicts of reruns, with one cause confirmed at the most.

    A smaller step cures a scale that is too large, and a smaller scale a rate that is too high:
    where a change that restores a known value (`set`) cures, one that only makes a value smaller or
    larger says nothing. Otherwise the fault that re-creates more of the failure is the cause; and
    where that does not tell them apart the evidence of the run itself has to, by a margin.
    """
    tried = {listed.cause.id: listed for listed in causes}
    resolved = dict(rulings)
    for name, ruling in rulings.items():
        # A re-creation of a cause that the evidence all but rules out proves little.
        ahead = [
            listed.cause.id
            for listed in causes
            if listed.score - tried[name].score >= MARGIN
            and rulings.get(listed.cause.id, ruling).verdict == "undecided"
        ]
        if ruling.verdict == "confirmed" and tried[name].cause.inject and ahead:
            resolved[name] = undecided(
                f"{ruling.reason}; but what the run left speaks for {ahead[0]} by far, which is "
                "undecided",
                f"what decides {ahead[0]}",
            )
    confirmed = [tried[name] for name, ruling in resolved.items() if ruling.verdict == "confirmed"]
    if not confirmed:
        return resolved

    def strength(listed: Diagnosed) -> float:
        return rulings[listed.cause.id].strength

    best = max(confirmed, key=lambda listed: (_restores(listed), strength(listed), listed.score))
    first = best.cause.id
    for other in confirmed:
        name = other.cause.id
        if name == first:
            continue
        outranks = _restores(best) and not _restores(other) and other.cause.change is not None
        is_ahead = best.score - other.score >= MARGIN
        if outranks or strength(best) > strength(other) or is_ahead:
            better = f"so does the experiment for {first}, which explains the failure better"
            reason = f"{rulings[name].reason}; but {better}"
            resolved[name] = undecided(reason, f"the cure of {first} tried first")
            continue
        reason = "the experiments for {} succeed as well, and nothing tells them apart"
        resolved[name] = undecided(reason.format(first), PROBE)
        resolved[first] = undecided(reason.format(name), PROBE)
    return resolved


def _restores(listed: Diagnosed) -> bool:
    return listed.cause.change is not None and listed.cause.change.operation == "set"
