"""What to change for a cause: where a run fails as recorded, what should cure it (`try_cure`).

Where the reference trainer is sound, the fault put into it has to bring the same failure back
(`try_injection`). causes.toml says which change, rows or faults these are.
"""

from dataclasses import dataclass, replace

from mlxdoctor.causes import Cause
from mlxdoctor.finding import Severity
from mlxdoctor.report import Fix
from mlxdoctor.reproduce.bench import Bench, Failure
from mlxdoctor.reproduce.observe import Change
from mlxdoctor.reproduce.repairs import (
    mends_all,
    other_order,
    others_left_out,
    rows_left_out,
)
from mlxdoctor.reproduce.rules import (
    Observation,
    Question,
    Ruling,
    Trials,
    judge_change,
    judge_injection,
    needed,
    undecided,
)
from mlxdoctor.twin.faults import FAULTS

#: Keys after whose change the held-out loss is over other tokens.
_OTHER_TOKENS = frozenset({"max_seq_length", "mask_prompt"})
#: Share of the held-out loss that a cure takes away: two seeds of a sound fixture run differ by
#: under 0.05 of theirs. Of fewer iterations less is asked, since the minimum itself is shallow.
BETTER, BETTER_EARLIER = 0.1, 0.02
#: What the name of every placebo begins with.
_PLACEBO = "placebo: "


@dataclass(frozen=True)
class Cure:
    """What should cure a cause.

    Attributes:
        changes: tried in this order; the first that cures is kept.
        better: the share of the held-out loss that it takes away; None where the two losses
            are not over the same tokens.
        strict: whether a cured rerun must be free of every other error, too.
        leaves_open: why a failure to cure refutes nothing, and what would decide it; None
            where it refutes. Where the loss is compared, too, the symptom has to have gone.
    """

    changes: tuple[Change, ...]
    placebo: Change
    better: float | None = None
    strict: bool = True
    leaves_open: tuple[str, str] | None = None


def try_cure(bench: Bench, cause: Cause, question: Question, plain: Trials) -> Ruling | None:
    """Rerun with what should cure the cause, and with a placebo; None: no cure is known.

    Of the `plain` reruns, as recorded, at least one fails.
    """
    cure = cure_of(bench, cause)
    if not isinstance(cure, Cure):
        return cure
    question = replace(question, strict=cure.strict)
    failing = [seed for seed, seen in plain.items() if question.shows(seen)]

    def is_cured(seed: int, seen: Observation) -> bool:
        return question.is_cured(plain[seed], seen, cure.better)

    alike: Trials = {}
    for change in cure.changes:
        # Where another change is left to try, one failure is enough.
        screen = change is not cure.changes[-1]
        changed = bench.until_decided(change, failing, question, cause.id, is_cured, screen=screen)
        if sum(map(is_cured, changed, changed.values())) >= needed(question.seeds):
            alike = {seed: bench.observe(cure.placebo, seed, question) for seed in changed}
            break
    words = {"what": change.label, "irrelevant": cure.placebo.label.removeprefix(_PLACEBO)}
    ruling = judge_change(question, plain, alike, changed, cure.better, **words)
    is_gone = not any(map(question.shows, changed.values()))
    if ruling.verdict == "refuted" and cure.leaves_open and (is_gone or cure.better is None):
        why, wanted = cure.leaves_open
        ruling = undecided(f"{ruling.reason}; {why}", wanted)
    return replace(ruling, fix=change.fix)


def cure_of(bench: Bench, cause: Cause) -> Cure | Ruling | None:
    """What should cure a cause; a ruling where that is known without a rerun."""
    if cause.change is not None:
        return _change_of_configuration(bench, cause)
    return _repair_of_rows(bench, cause) if cause.leave_out else None


def _change_of_configuration(bench: Bench, cause: Cause) -> Cure | None:
    """What the report advises, and then others: the mildest that cures is kept.

    A rate a thousand times too high is still too high after one division.
    """
    failure = bench.failure
    fixes = failure.fixes(bench.lab.config, cause)
    if not fixes:
        return None
    key = next(iter(fixes[0].after))
    cure = Cure(
        tuple(_with_fix(fix, failure.iterations) for fix in fixes),
        Change("another order", other_order.id, failure.iterations, fault=other_order),
        better=None if key in _OTHER_TOKENS else BETTER,
    )
    if key != "iters" or fixes[0].after[key] > fixes[0].before[key]:
        return cure
    # An earlier stop can miss the minimum on its other side.
    open_ = "held-out answers are no better", "more validation rows, or longer reruns (--iters)"
    return replace(cure, better=BETTER_EARLIER, leaves_open=open_)


def _with_fix(fix: Fix, iterations: int) -> Change:
    key, after = next(iter(fix.after.items()))
    before = fix.before[key]
    if key == "iters":
        # The rerun is shorter than the run, and may be too short for the stop that is advised.
        shorter = after if after < iterations else max(1, round(iterations * after / before))
        return Change("change", f"iters {iterations} → {shorter}", shorter, fix=fix)
    return Change("change", f"{key} {before} → {after}", iterations, fix=fix)


def _repair_of_rows(bench: Bench, cause: Cause) -> Cure | Ruling:
    """The rows in which the findings say that something was left, mended or left out."""
    if not any(finding.code in cause.leave_out for finding in bench.failure.findings):
        return undecided(
            "the findings name no rows that could be left out or repaired",
            "which rows are wrong, which only somebody who knows the answers can say",
        )
    iterations = bench.failure.iterations
    left_out = Change("repair", rows_left_out.id, iterations, fault=rows_left_out)
    # Other rows than the run's own may have errors of their own.
    placebo = replace(left_out, kind="random rows", label=others_left_out.id, fault=others_left_out)
    if mends_all(bench.lab.settings):
        # None left out at random would be the run as recorded, which always fails.
        placebo = Change("another order", other_order.id, iterations, fault=other_order)
    open_ = "other rows than those that the findings name may be at fault", "which rows those are"
    return Cure((left_out,), placebo, strict=False, leaves_open=open_)


def try_injection(bench: Bench, cause: Cause, question: Question, plain: Trials) -> Ruling | None:
    """Rerun with each form of the cause's faults; None where the configuration has the fault.

    It has where the cure is to set a value that it lacks. A smaller batch, say, is always to
    be had: that says nothing of whose fault it is.
    """
    restores = cause.change is not None and cause.change.operation == "set"
    failure = bench.failure
    if not cause.inject or (restores and failure.fixes(bench.lab.config, cause)):
        return None
    rulings: list[Ruling] = []
    for fault in (FAULTS[name] for name in cause.inject):
        # What the findings show first, and then the severest.
        shown = padding_shown(failure) if fault.id == "padding-in-batch" else ()
        for severity in dict.fromkeys((*shown, *reversed(fault.severities))):
            label = f"with the fault {fault.id} ({severity})"
            change = Change("injection", label, failure.iterations, fault=fault, severity=severity)
            injected = bench.until_decided(
                change,
                failure.seeds,
                question,
                cause.id,
                lambda _, seen: question.is_recreated(seen),
                screen=True,
            )
            rulings.append(judge_injection(question, plain, injected))
            if rulings[-1].verdict == "confirmed":
                return rulings[-1]
    order = ("refuted", "undecided", "confirmed")
    return max(rulings, key=lambda ruling: (order.index(ruling.verdict), ruling.strength))


def padding_shown(failure: Failure) -> tuple[int, ...]:
    """The padding tokens that were learned, as the findings tell."""
    # A note tells of the one padding token that mlx-lm trains after each row.
    errors = [each for each in failure.findings if each.severity is not Severity.INFO]
    return tuple(pad for each in errors if isinstance(pad := each.measured.get("pad_id"), int))
