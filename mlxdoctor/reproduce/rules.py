"""From what reruns show to a verdict on a cause. Nothing here trains or reads.

Findings that stem from one fact (a group of the knowledge base) are one sign.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mlxdoctor.causes import Cause, load_causes
from mlxdoctor.diagnosis import severities
from mlxdoctor.exhibits import SampleAnswer
from mlxdoctor.finding import LOOKED, Outcome, Severity
from mlxdoctor.report import Fix
from mlxdoctor.verdict import Confirmation

#: What settles a fault in a trainer's code that reruns leave open.
PROBE = "what a step of the run's own trainer does (`mlxdoctor probe FILE:FUNCTION`)"
#: Share of the recorded kinds of error that the same failure shows at least: a shortened run shows
#: fewer than a whole one.
RECREATED = 0.5


@dataclass(frozen=True)
class Signs:
    """The symptoms of a run, and the checks that could have found more.

    A sign is a group of findings, or the code of a finding that is in none.

    Attributes:
        codes: finding -> its severity.
        looked: names of the checks that looked.
        unsought: codes that these could not look for.
    """

    codes: Mapping[str, Severity]
    looked: frozenset[str] = frozenset()
    unsought: frozenset[str] = frozenset()

    @property
    def error_codes(self) -> tuple[str, ...]:
        """The findings that are errors."""
        return tuple(code for code, bad in self.codes.items() if bad is Severity.ERROR)

    @property
    def all(self) -> frozenset[str]:
        """Every sign."""
        return frozenset(map(load_causes().group, self.codes))

    @property
    def errors(self) -> frozenset[str]:
        """The signs that are errors."""
        return frozenset(map(load_causes().group, self.error_codes))

    def of(self, cause: Cause) -> frozenset[str]:
        """The signs that speak for a cause: the errors among them, if there are any."""
        speaking = (code for code, weight in cause.weights.items() if weight > 0)
        own = frozenset(map(load_causes().group, speaking))
        return (own & self.errors) or (own & self.all)

    def keys(self, cause: Cause) -> frozenset[str]:
        """Those that speak for a cause at least half as much as the weightiest of them."""
        wanted, group = self.of(cause), load_causes().group
        weights = {c: w for c, w in cause.weights.items() if c in self.codes and group(c) in wanted}
        most = max(weights.values(), default=0.0)
        return frozenset(group(code) for code, weight in weights.items() if 2 * weight >= most)

    def likeness(self, other: "Signs") -> float:
        """Codes that both runs have, over those that either has: 1 where they are the same."""
        mine, theirs = self.codes.keys(), other.codes.keys()
        return len(mine & theirs) / len(mine | theirs) if mine | theirs else 1.0

    def coverage(self, other: "Signs") -> float:
        """The share of the errors that the other run has as well; 1 where there are none."""
        return len(self.errors & other.all) / len(self.errors) if self.errors else 1.0

    def foreign(self, other: "Signs") -> frozenset[str]:
        """Errors of the other run that this one has not, although they were looked for."""
        foreign: set[str] = set()
        for sign in other.errors - self.all:
            group = load_causes().groups.get(sign)
            codes = set(group.codes if group else (sign,))
            checks = {code.split(".", 1)[0] for code in codes}
            was_sought = checks <= self.looked and self.unsought.isdisjoint(
                codes & other.codes.keys()
            )
            if was_sought and not (group and group.gradual):
                foreign.add(sign)
        return frozenset(foreign)


def signs_of(outcomes: Sequence[Outcome]) -> Signs:
    """What checks say of a run or of a rerun, notes left out."""
    noted = severities(outcomes).items()
    return Signs(
        {code: severity for code, severity in noted if severity is not Severity.INFO},
        looked=frozenset(each.check for each in outcomes if each.status in LOOKED),
        unsought=frozenset(code for outcome in outcomes for code in outcome.unsought),
    )


@dataclass(frozen=True)
class Observation:
    """What the doctor's own checks, and a measure of our own, say of a rerun.

    Attributes:
        base_loss: mean loss of the base model on the answers of held-out rows, nats a
            token, masked correctly whatever the trainer did; None without such rows.
        loss: likewise of the rerun's model; NaN where it gives none.
        losses: as the trainer saw them, at `iterations`, nats a token.
        seconds: training and examination together.
    """

    signs: Signs
    base_loss: float | None
    loss: float | None
    iterations: tuple[int, ...] = ()
    losses: tuple[float, ...] = ()
    samples: tuple[SampleAnswer, ...] = ()
    seconds: float = 0.0


#: Observations of one condition, by seed.
Trials = Mapping[int, Observation]


def needed(seeds: int) -> int:
    """How many of that many seeds have to agree: two thirds, and two at the least."""
    return max(2, -(-2 * seeds // 3))


@dataclass(frozen=True)
class Ruling:
    """What the experiments say of one cause.

    Attributes:
        reason: why, and what would decide it where it is open, as a sentence without its stop.
        strength: how much of the failure is explained, 0 to 1.
        fix: the change of the configuration, if that is what was tried.
    """

    verdict: Confirmation
    reason: str
    strength: float = 0.0
    fix: Fix | None = None


def undecided(reason: str, wanted: str) -> Ruling:
    """What the experiments leave open, and what would decide it."""
    return Ruling("undecided", f"{reason}; to decide it: {wanted}")


def refuted(reason: str) -> Ruling:
    """What the experiments speak against."""
    return Ruling("refuted", reason)


@dataclass(frozen=True)
class Question:
    """What is asked of every rerun.

    Attributes:
        wanted: the signs of which a rerun must show one to be the same failure; empty: the loss
            on held-out answers is all that tells, and every rerun as recorded is that failure.
        keys: the weightiest of them, of which a re-creation must show one.
        recorded: the signs of the run that was examined.
        seeds: how many seeds are tried at most.
        strict: whether a cured rerun must be free of any other error as well.
    """

    wanted: frozenset[str]
    keys: frozenset[str]
    recorded: Signs
    seeds: int
    strict: bool = True

    def shows(self, observation: Observation) -> bool:
        """Whether a rerun shows the symptom."""
        return not self.wanted or bool(self.wanted & observation.signs.all)

    def is_sound(self, observation: Observation) -> bool:
        """Whether a rerun shows neither the symptom nor any other error."""
        shown = observation.signs
        return not self.wanted & shown.all and not shown.errors

    def is_cured(self, plain: Observation, changed: Observation, better: float | None) -> bool:
        """Whether the change took the symptom away, and the held-out loss with it; see `Cure`."""
        shown = changed.signs
        # A short sound run may have a milder warning: what must be gone is what was there.
        before = self.recorded.codes.keys() | plain.signs.codes.keys()
        group = load_causes().group
        same = {code for code in shown.codes.keys() & before if group(code) in self.wanted}
        remaining = shown.errors if self.strict else shown.errors & self.wanted
        if not self.shows(plain) or same or remaining:
            return False
        if better is None or plain.loss is None or changed.loss is None:
            # Where the loss is all that tells, one that could not be measured tells nothing.
            return bool(self.wanted)
        if not math.isfinite(changed.loss):
            return False
        return not math.isfinite(plain.loss) or changed.loss < plain.loss * (1 - better)

    def is_by_chance(self, plain: Observation, placebo: Observation, changed: Observation) -> bool:
        """Whether an irrelevant change did what the change did, or half of it by the loss."""
        if self.wanted:
            return not self.shows(placebo)
        if plain.loss is None or placebo.loss is None or changed.loss is None:
            # What could not be measured confirms nothing.
            return changed.loss is not None
        return not placebo.loss > (plain.loss + changed.loss) / 2

    def is_recreated(self, injected: Observation) -> bool:
        """Whether a rerun with the fault is the recorded failure, and no other one."""
        shown = injected.signs
        return (
            bool(self.keys & shown.all)
            and self.recorded.coverage(shown) >= RECREATED
            and not self.recorded.foreign(shown)
        )


def judge_change(
    question: Question,
    plain: Trials,
    placebo: Trials,
    changed: Trials,
    better: float | None,
    *,
    what: str = "the change",
    irrelevant: str = "another order of the rows",
) -> Ruling:
    """The verdict on a cause that one change should cure.

    Args:
        placebo: reruns with an irrelevant change; empty: not made yet.
        better: the share of the held-out loss that it must take away; see `Cure`.
        what, irrelevant: the change and the placebo, in words.
    """
    cured = sum(question.is_cured(plain[seed], rerun, better) for seed, rerun in changed.items())
    enough, more_seeds = needed(question.seeds), f"more seeds (--seeds {2 * question.seeds})"
    cures = f"{what} cures it with {cured} of {len(changed)} seeds"
    if cured < enough:
        return undecided(f"{cures}, {enough} are needed", more_seeds) if cured else refuted(cures)
    by_chance = sum(
        question.is_by_chance(plain[seed], rerun, changed[seed]) for seed, rerun in placebo.items()
    )
    if by_chance:
        return undecided(
            f"{cures}, but so does an irrelevant change ({irrelevant}) with {by_chance} of "
            f"{len(placebo)}",
            f"longer reruns (--iters), or {more_seeds}",
        )
    failing = sum(map(question.shows, plain.values()))
    return Ruling(
        "confirmed",
        f"{cures}; as recorded it fails again with {failing} of {len(plain)}, and with an "
        f"irrelevant change ({irrelevant}) with {len(placebo)} of {len(placebo)}",
        1.0,
    )


def judge_injection(question: Question, plain: Trials, injected: Trials) -> Ruling:
    """The verdict on a cause in the run's own trainer, which ours has not."""
    ours, seeds = "the reference trainer, which does not have this fault, is", len(plain)
    if faulty := sum(not question.is_sound(rerun) for rerun in plain.values()):
        return undecided(f"{ours} not sound with {faulty} of {seeds} seeds", PROBE)
    same, asked = sum(map(question.is_recreated, injected.values())), len(injected)
    shown = [rerun.signs for rerun in injected.values()]
    if same >= needed(question.seeds):
        share = max(map(question.recorded.coverage, shown))
        return Ruling(
            "confirmed",
            f"re-created: {ours} sound with {seeds} of {seeds} seeds; with the fault put in it "
            f"fails in the same way with {same} of {asked}, showing {share:.0%} of the recorded "
            "kinds of error",
            max(map(question.recorded.likeness, shown)),
        )
    if same:
        reason = f"the fault re-creates the failure in {same} of {asked} seeds"
        return undecided(reason, f"more seeds (--seeds {2 * question.seeds})")
    first = shown[0]
    if extra := sorted(question.recorded.foreign(first)):
        return refuted(
            "with the fault put into the reference trainer there are errors that the recorded run "
            f"does not have: {', '.join(extra)}"
        )
    missing = sorted(question.recorded.errors - first.all) or sorted(question.wanted)
    # Other forms of the same fault may well do it.
    return undecided(
        "in the forms tried, the fault does not re-create the failure: there is no "
        f"{', '.join(missing)}",
        PROBE,
    )
