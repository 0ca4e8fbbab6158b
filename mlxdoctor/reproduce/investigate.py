"""Which experiments to make, in which order, and what they say of each cause."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from mlxdoctor.causes import Cause, KnowledgeBase
from mlxdoctor.diagnosis import Diagnosed, diagnose, rank
from mlxdoctor.errors import InputError
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.finding import Outcome, Severity
from mlxdoctor.remedy import Fix, fix_for, usual_rates
from mlxdoctor.reproduce.judge import (
    Judgement,
    Question,
    Trials,
    judge_change,
    judge_injection,
    judge_plain,
)
from mlxdoctor.reproduce.laboratory import BudgetSpent, Condition, Laboratory
from mlxdoctor.reproduce.limits import Limits, needed
from mlxdoctor.reproduce.observation import Observation
from mlxdoctor.reproduce.recipe import changed_values
from mlxdoctor.reproduce.symptoms import Signs, key_sign, recorded_signs, signs_of

#: Leading causes that are tried.
CAUSES = 3
#: Checks whose onset says how long a rerun has to be.
_ONSET_CHECKS = frozenset({"loss-trend", "loss-finite", "loss-stability"})
#: Keys after whose change the held-out loss is over other tokens.
_OTHER_TOKENS = frozenset({"max_seq_length", "mask_prompt"})
#: Causes that a repair of the data would cure; see `forms.REPAIRS`.
REPAIRED = frozenset({"end-token-flood"})
#: Causes that only a trainer's code can have: where ours fails as well, they are not at work.
_TRAINER_ONLY = frozenset(
    {
        *("adapter-never-attached", "adapter-not-trained", "base-weights-changed"),
        *("gradients-blocked", "labels-misaligned"),
    }
)


@dataclass(frozen=True)
class Trial:
    """One experiment as the report lists it."""

    cause: str | None
    condition: Condition
    seed: int
    observation: Observation
    shows: bool


@dataclass(frozen=True)
class Investigation:
    """What was tried and what came of it.

    Attributes:
        judgements: cause -> the verdict on it.
        trials: every rerun.
        fixes: cause -> the change that was tried for it, as it cured or failed to.
        iterations: of each rerun.
        onset: the iteration at which the recorded run went wrong, where that is known.
    """

    judgements: Mapping[str, Judgement] = field(default_factory=dict)
    trials: tuple[Trial, ...] = ()
    fixes: Mapping[str, Fix] = field(default_factory=dict)
    iterations: int = 0
    onset: int | None = None


@dataclass(frozen=True)
class Case:
    """What is known of the recorded run before the first experiment."""

    outcomes: tuple[Outcome, ...]
    knowledge: KnowledgeBase
    recorded: Signs
    limits: Limits
    seeds: tuple[int, ...]
    iterations: int

    def question(self, wanted: frozenset[str], key: str | None = None) -> Question:
        """What is asked of a rerun, for these signs."""
        known = (self.recorded, self.knowledge, self.limits)
        return Question(wanted, key, *known, len(self.seeds))

    @property
    def onset(self) -> int | None:
        """When the recorded loss went wrong."""
        return onset_of(self.outcomes)


def case_of(
    outcomes: tuple[Outcome, ...],
    knowledge: KnowledgeBase,
    *,
    limits: Limits,
    seeds: tuple[int, ...],
    recorded_iterations: int,
    iterations: int | None = None,
) -> Case:
    """The case of a run; its reruns are as long as its onset asks for.

    Args:
        iterations: of each rerun, instead.
    """
    ranked = diagnose(outcomes, knowledge)
    length = iterations or length_of(
        onset_of(outcomes), ranked[0].cause if ranked else None, limits, recorded_iterations
    )
    recorded = recorded_signs(outcomes, knowledge)
    return Case(outcomes, knowledge, recorded, limits, seeds, length)


def onset_of(outcomes: Iterable[Outcome]) -> int | None:
    """The first iteration at which an error shows in the loss; None where none does."""
    onsets = [
        one.onset
        for outcome in outcomes
        if outcome.check in _ONSET_CHECKS
        for one in outcome.findings
        if one.onset is not None and one.severity is Severity.ERROR
    ]
    return min(onsets, default=None)


def length_of(onset: int | None, leading: Cause | None, limits: Limits, recorded: int) -> int:
    """Iterations that decide: past the onset, within the limits, no more than were recorded."""
    if leading is not None and leading.change is not None and leading.change.key == "iters":
        wanted = limits.past_minimum * onset if onset else limits.longest_overfitting
        return max(1, min(recorded, wanted, limits.longest_overfitting))
    wanted = limits.usual if onset is None else limits.past_onset * onset
    return max(1, min(recorded, limits.longest, max(limits.shortest, wanted)))


def candidates(case: Case, config: TrainingConfig, asked: Sequence[str]) -> list[Diagnosed]:
    """The causes to try: those asked for, the leading ones, and their rivals, best first.

    A rival is a cause that shares a symptom and whose change restores a known value: what
    lowers the rate cures a scale that is too large just as well.
    """
    every = {one.cause.id: one for one in rank(case.outcomes, case.knowledge)}
    leading = diagnose(case.outcomes, case.knowledge)[:CAUSES]
    # To re-create a cause that the evidence all but rules out would prove nothing.
    near = leading[0].score - case.limits.margin if leading else 0.0
    chosen = [one.cause.id for one in leading if not one.cause.inject or one.score > near]
    chosen += [
        name
        for name, one in every.items()
        if one.cause.change is not None
        and one.cause.change.operation == "set"
        and fix_for(one.cause.change, config) is not None
        and signs_of(one.cause, case.recorded, case.knowledge) & case.recorded.errors
    ]
    unsupported = {
        name: Diagnosed(case.knowledge.causes[name], float("-inf"), (), (), (), ())
        for name in asked
        if name not in every
    }
    known = every | unsupported
    wanted = dict.fromkeys((*chosen, *asked))
    return sorted((known[name] for name in wanted), key=lambda one: -one.score)


def investigate(lab: Laboratory, case: Case, causes: Sequence[Diagnosed]) -> Investigation:
    """Rerun as recorded, then try each cause, most likely first."""
    state = Investigation(iterations=case.iterations, onset=case.onset)
    everything = case.question(case.recorded.errors or case.recorded.all)
    as_recorded = Condition("as recorded", "rerun as recorded", case.iterations)
    try:
        plain = _observed(lab, as_recorded, case.seeds, everything)
    except BudgetSpent:
        return _out_of_time(state, causes)
    state = _with_trials(state, None, as_recorded, plain, everything)
    for one in causes:
        wanted = signs_of(one.cause, case.recorded, case.knowledge)
        key = key_sign(one.cause, case.recorded, case.knowledge)
        question = case.question(wanted, key)
        try:
            state = _try_cause(_Bench(lab, case, one.cause, question, plain), state)
        except BudgetSpent:
            return _out_of_time(state, causes)
        except InputError as error:
            state = _judged(state, one.cause, Judgement("undecided", f"it can't be tried: {error}"))
    return _resolved(state, causes, case)


@dataclass(frozen=True)
class _Bench:
    """What the experiments for one cause share."""

    lab: Laboratory
    case: Case
    cause: Cause
    question: Question
    plain: Trials

    @property
    def failing(self) -> list[int]:
        """The seeds with which the run fails as recorded."""
        return [seed for seed, one in self.plain.items() if self.question.shows(one)]


def _try_cause(bench: _Bench, state: Investigation) -> Investigation:
    case, cause, question, plain = bench.case, bench.cause, bench.question, bench.plain
    if not question.wanted:
        reason = "none of the symptoms that a rerun could show is one of this cause"
        return _judged(state, cause, Judgement("undecided", reason))
    fails = judge_plain(question, plain)
    fixes = _fixes(bench.lab.recipe.config, case, cause)
    if fails is not False:
        if fixes:
            return _try_change(bench, fixes, state)
        if cause.id in REPAIRED:
            return _try_repair(bench, state)
        return _judged(state, cause, _of_failing(cause))
    if any(not question.is_sound(one) for one in plain.values()):
        reason = "rerun as recorded it fails, but with none of the symptoms of this cause"
        return _judged(state, cause, Judgement("refuted", reason))
    if cause.inject and not fixes:
        return _try_injection(bench, state)
    return _judged(state, cause, _of_sound(case))


def _of_failing(cause: Cause) -> Judgement:
    if cause.id in _TRAINER_ONLY:
        return Judgement(
            "refuted", "the reference trainer, which has not this fault, fails in the same way"
        )
    if cause.change is not None:
        return Judgement(
            "refuted", f"the change it asks for ({cause.change.key}) changes nothing here"
        )
    reason = "it is reproduced, but no single change that would cure this cause is known"
    return Judgement("undecided", reason)


def _of_sound(case: Case) -> Judgement:
    if case.onset is not None and case.onset > case.iterations:
        return Judgement(
            "undecided",
            f"{case.iterations} iterations are sound, but the run went wrong at {case.onset:,}",
        )
    return Judgement(
        "refuted",
        f"rerun as recorded with the reference trainer, {case.iterations} iterations are sound: "
        "the configuration is not what made it fail",
    )


def _fixes(config: TrainingConfig, case: Case, cause: Cause) -> list[Fix]:
    """The change, mildest first: as it stands, to the usual range, and well into it."""
    usual = usual_rates([one for outcome in case.outcomes for one in outcome.findings])
    factor = cause.change.value if cause.change is not None else 1
    inner = {
        key: (min(low * factor, high), max(high / factor, low))
        for key, (low, high) in usual.items()
        if isinstance(factor, int | float) and factor > 0
    }
    fixes: dict[str, Fix] = {}
    for ranges in ({}, usual, inner):
        fix = fix_for(cause.change, config, ranges)
        if fix is not None:
            fixes.setdefault(str(fix.after), fix)
    return list(fixes.values())


def _try_change(bench: _Bench, fixes: Sequence[Fix], state: Investigation) -> Investigation:
    lab, case, cause = bench.lab, bench.case, bench.cause
    question, plain = bench.question, bench.plain
    key = next(iter(fixes[0].after))
    better = None if key in _OTHER_TOKENS else case.limits.better
    better = case.limits.better_earlier if key == "iters" else better
    failing = bench.failing
    if not failing:
        return _judged(state, cause, _of_sound(case))
    judgement = Judgement("undecided", "it was not tried")
    for fix in fixes:
        condition = _condition(lab, case, fix)

        def is_cured(seed: int, one: Observation) -> bool:
            return question.is_cured(plain[seed], one, better)

        first = lab.observe(condition, failing[0])
        if not is_cured(failing[0], first) and fix is not fixes[-1]:
            state = _with_trials(state, cause.id, condition, {failing[0]: first}, question)
            continue
        changed = _until_decided(lab, condition, failing, len(case.seeds), is_cured)
        state = _with_trials(state, cause.id, condition, changed, question)
        state = replace(state, fixes={**state.fixes, cause.id: fix})
        judgement = judge_change(question, plain, {}, changed, better)
        if judgement.verdict == "confirmed":
            placebo, state = _placebo(lab, case, question, tuple(changed), state)
            judgement = judge_change(question, plain, placebo, changed, better)
            break
    return _judged(state, cause, judgement)


def _condition(lab: Laboratory, case: Case, fix: Fix) -> Condition:
    key, after = next(iter(fix.after.items()))
    before = fix.before[key]
    if key == "iters":
        shorter = max(1, round(case.iterations * after / before))
        return Condition("change", f"iters {case.iterations} → {shorter}", shorter)
    label = f"{key} {before} → {after}"
    return Condition("change", label, case.iterations, changed_values(lab.recipe, fix))


def _try_repair(bench: _Bench, state: Investigation) -> Investigation:
    lab, case, cause = bench.lab, bench.case, bench.cause
    # Other rows than the run's own may have errors of their own.
    question, plain = replace(bench.question, strict=False), bench.plain
    from mlxdoctor.reproduce.forms import REPAIRS

    repair = REPAIRS[cause.id]
    failing = bench.failing
    condition = Condition(
        "repair", repair.id, case.iterations, fault=cause.id, severity=repair.severities[-1]
    )

    def is_cured(seed: int, one: Observation) -> bool:
        return question.is_cured(plain[seed], one, None)

    changed = _until_decided(lab, condition, failing, len(case.seeds), is_cured)
    state = _with_trials(state, cause.id, condition, changed, question)
    judgement = judge_change(question, plain, {}, changed, None)
    if judgement.verdict == "confirmed":
        placebo, state = _placebo(lab, case, question, tuple(changed), state)
        judgement = judge_change(question, plain, placebo, changed, None)
    return _judged(state, cause, judgement)


def _placebo(
    lab: Laboratory, case: Case, question: Question, seeds: Sequence[int], state: Investigation
) -> tuple[dict[int, Observation], Investigation]:
    condition = Condition("another order", "placebo: another order of the rows", case.iterations)
    placebo = {seed: lab.observe(condition, seed) for seed in seeds}
    known = {(one.condition.kind, one.seed) for one in state.trials}
    fresh = {seed: one for seed, one in placebo.items() if (condition.kind, seed) not in known}
    return placebo, _with_trials(state, None, condition, fresh, question)


def _try_injection(bench: _Bench, state: Investigation) -> Investigation:
    lab, case, cause = bench.lab, bench.case, bench.cause
    question, plain = bench.question, bench.plain
    from mlxdoctor.reproduce.forms import FAULTS

    best: Judgement | None = None
    for fault in (FAULTS[name] for name in cause.inject):
        for severity in reversed(fault.severities):
            label = f"{fault.id} ({severity})"
            condition = Condition(
                "injection", label, case.iterations, fault=fault.id, severity=severity
            )

            def is_same(seed: int, one: Observation) -> bool:
                del seed
                return question.is_recreated(one)

            injected = _until_decided(
                lab, condition, case.seeds, len(case.seeds), is_same, screen=True
            )
            state = _with_trials(state, cause.id, condition, injected, question)
            judgement = judge_injection(question, plain, injected)
            if best is None or _order(judgement) > _order(best):
                best = judgement
            if judgement.verdict == "confirmed":
                return _judged(state, cause, judgement)
    return _judged(state, cause, best or Judgement("undecided", "no fault is known for it"))


def _order(judgement: Judgement) -> tuple[int, float]:
    return ("refuted", "undecided", "confirmed").index(judgement.verdict), judgement.strength


def _observed(
    lab: Laboratory, condition: Condition, seeds: Sequence[int], question: Question
) -> dict[int, Observation]:
    """As many seeds as it takes for enough of them to agree."""
    found: dict[int, Observation] = {}
    enough = needed(len(seeds))
    for seed in seeds:
        found[seed] = lab.observe(condition, seed)
        shown = sum(question.shows(one) for one in found.values())
        if shown >= enough or len(found) - shown >= enough:
            break
    return found


def _until_decided(
    lab: Laboratory,
    condition: Condition,
    seeds: Sequence[int],
    of: int,
    is_success: Callable[[int, Observation], bool],
    *,
    screen: bool = False,
) -> dict[int, Observation]:
    """Seeds until enough have succeeded, or enough can't any more.

    Args:
        of: how many seeds the verdict is over.
        screen: give up after the first failure: there are other severities.
    """
    found: dict[int, Observation] = {}
    succeeded = 0
    for seed in seeds:
        found[seed] = lab.observe(condition, seed)
        succeeded += is_success(seed, found[seed])
        failed = len(found) - succeeded
        if succeeded >= needed(of) or failed > of - needed(of) or (screen and not succeeded):
            break
    return found


def _resolved(state: Investigation, causes: Sequence[Diagnosed], case: Case) -> Investigation:
    """One cause at the most is confirmed: where several changes cure, the evidence decides."""
    from mlxdoctor.reproduce.resolve import resolve

    return replace(state, judgements=resolve(state.judgements, causes, case.limits))


def _judged(state: Investigation, cause: Cause, judgement: Judgement) -> Investigation:
    return replace(state, judgements={**state.judgements, cause.id: judgement})


def _with_trials(
    state: Investigation, cause: str | None, condition: Condition, trials: Trials, question: Any
) -> Investigation:
    fresh = tuple(
        Trial(cause, condition, seed, one, question.shows(one)) for seed, one in trials.items()
    )
    return replace(state, trials=(*state.trials, *fresh))


def _out_of_time(state: Investigation, causes: Sequence[Diagnosed]) -> Investigation:
    reason = "the time that was given is over; the same command continues"
    late = {
        one.cause.id: Judgement("undecided", reason)
        for one in causes
        if one.cause.id not in state.judgements
    }
    # What was confirmed before its rivals were tried is not confirmed yet.
    early = {
        name: Judgement("undecided", reason) if late and one.verdict == "confirmed" else one
        for name, one in state.judgements.items()
    }
    return replace(state, judgements={**early, **late})
