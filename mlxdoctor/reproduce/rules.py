"""From observations to a verdict, and how much it takes. Nothing here trains or reads."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import get_args

from mlxdoctor.check import limit
from mlxdoctor.confirmation import Confirmation
from mlxdoctor.report import Fix
from mlxdoctor.reproduce.rerun import Observation
from mlxdoctor.reproduce.symptoms import Signs, signs

#: What settles a fault in a trainer's code that reruns leave open.
PROBE = "what a step of the run's own trainer does (`mlxdoctor probe FILE:FUNCTION`)"
#: Observations of one condition, by seed.
Trials = Mapping[int, Observation]


@dataclass(frozen=True)
class Limits:
    """Lengths of reruns, and when one counts as cured or as the same failure."""

    shortest: int = limit(50, unit="iterations", source="seed 000: 20 to 50 steps decide")
    usual: int = limit(
        100, unit="iterations", source="a loss that never moves is not judged earlier (loss-trend)"
    )
    longest: int = limit(200, unit="iterations", source="minutes, not hours, on a laptop")
    longest_overfitting: int = limit(
        600, unit="iterations", source="a validation loss has to fall before it can rise"
    )
    least: int = limit(
        20, unit="iterations", source="as `shortest`, where the time that was given asks for it"
    )
    trial: int = limit(5, unit="iterations", source="the median step of fewer is one that compiles")
    reruns: int = limit(
        8, unit="reruns", source="two each as recorded, changed and with a placebo, and a rival's"
    )
    past_onset: int = limit(
        3, unit="times the onset", source="the onset is the first report that shows it"
    )
    past_minimum: int = limit(
        4, unit="times the onset", source="loss-trend wants four validations, and a clear rise"
    )
    better: float = limit(
        0.1,
        unit="share of the rerun's held-out loss",
        source="two seeds of a sound fixture run differ by under 0.05 of theirs",
    )
    better_earlier: float = limit(
        0.02, unit="as `better`, for fewer iterations", source="the minimum itself is shallow"
    )
    recreated: float = limit(
        0.5,
        unit="share of the recorded kinds of error",
        source="a shortened run shows fewer symptoms than a whole one",
    )
    margin: float = limit(
        2.2,
        unit="log-odds",
        source="ln 9, as for a headline that says the cause without `probable`",
    )
    same_step: float = limit(
        0.002,
        unit="nats, of a reported training loss",
        source="reruns of sound runs are within 0.0005 of their logs (rounding); those of faulty "
        "trainers differ by 0.05 and more, by 0.004 where only norms are trained besides",
    )
    same_loss: float = limit(
        0.02, unit="share of the loss", source="figures are rounded to two or three digits"
    )


def needed(seeds: int) -> int:
    """How many of that many seeds have to agree: two thirds, and two at the least."""
    return max(2, -(-2 * seeds // 3))


@dataclass(frozen=True)
class Ruling:
    """What the experiments say of one cause.

    Attributes:
        verdict: the answer.
        reason: why, as a sentence without its stop.
        strength: how much of the failure is explained, 0 to 1.
        fix: the change of the configuration that was tried, if that is what was.
        wanted: what further evidence would decide it, as a clause; empty where it is decided.

    Raises:
        ValueError: it is no verdict, or undecided and does not say what would decide it, or the
            reverse.
    """

    verdict: Confirmation
    reason: str
    strength: float = 0.0
    fix: Fix | None = None
    wanted: str = ""

    def __post_init__(self) -> None:
        is_known = self.verdict in get_args(Confirmation)
        if not is_known or (self.verdict == "undecided") is not bool(self.wanted):
            raise ValueError(f"{self.verdict}: {self.reason}; wanted: {self.wanted!r}")

    @property
    def sentence(self) -> str:
        """The reason, and what would decide it; without the stop."""
        return f"{self.reason}; to decide it: {self.wanted}" if self.wanted else self.reason


def undecided(reason: str, wanted: str) -> Ruling:
    """What the experiments leave open, and what would decide it."""
    return Ruling("undecided", reason, wanted=wanted)


@dataclass(frozen=True)
class Question:
    """What is asked of every rerun.

    Attributes:
        wanted: the signs of which a rerun must show one to be the same failure.
        keys: the weightiest of them, of which a re-creation must show one.
        recorded: the signs of the run that was examined.
        limits: the thresholds.
        seeds: how many seeds are tried at most.
        strict: whether a cured rerun must be free of any other error as well.
    """

    wanted: frozenset[str]
    keys: frozenset[str]
    recorded: Signs
    limits: Limits
    seeds: int
    strict: bool = True

    def signs(self, observation: Observation) -> Signs:
        """The signs of a rerun."""
        return signs(observation.findings, observation.looked, self.recorded.knowledge)

    def shows(self, observation: Observation) -> bool:
        """Whether a rerun shows the symptom."""
        return bool(self.wanted & self.signs(observation).all)

    def is_sound(self, observation: Observation) -> bool:
        """Whether a rerun shows neither the symptom nor any other error."""
        found = self.signs(observation)
        return not self.wanted & found.all and not found.errors

    def is_cured(self, plain: Observation, changed: Observation, better: float | None) -> bool:
        """Whether the change took the symptom away, and the held-out loss with it.

        Args:
            better: the share of the held-out loss that it must take away; None where the
                two losses are not over the same tokens.
        """
        found = self.signs(changed)
        # A short sound run may have a milder warning: what must be gone is what was there.
        before = self.recorded.codes.keys() | self.signs(plain).codes.keys()
        group = self.recorded.knowledge.group
        same = {code for code in found.codes.keys() & before if group(code) in self.wanted}
        remaining = found.errors if self.strict else found.errors & self.wanted
        if not self.shows(plain) or same or remaining:
            return False
        if better is None or plain.loss is None or changed.loss is None:
            return True
        if not math.isfinite(changed.loss):
            return False
        return not math.isfinite(plain.loss) or changed.loss < plain.loss * (1 - better)

    def is_recreated(self, injected: Observation) -> bool:
        """Whether a rerun with the fault is the recorded failure, and no other one."""
        found = self.signs(injected)
        return (
            bool(self.keys & found.all)
            and self.recorded.coverage(found) >= self.limits.recreated
            and not self.recorded.foreign(found)
        )


def judge_plain(question: Question, plain: Trials) -> bool | None:
    """Whether the run fails as recorded: in enough seeds, in none, or None: in between."""
    shown = sum(question.shows(one) for one in plain.values())
    if shown >= needed(question.seeds):
        return True
    return False if shown == 0 and plain else None


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
        plain: reruns as recorded.
        placebo: reruns with an irrelevant change; empty: not made yet.
        changed: reruns with the change.
        better: as in `Question.is_cured`.
        what: the change, in words.
        irrelevant: what the placebo was, in words.
    """
    pairs = {seed: one for seed, one in changed.items() if seed in plain}
    cured = [seed for seed, one in pairs.items() if question.is_cured(plain[seed], one, better)]
    enough, asked = needed(question.seeds), len(pairs)
    if len(cured) < enough:
        if cured:
            return undecided(
                f"{what} cures it with {len(cured)} of {asked} seeds, {enough} are needed",
                f"more seeds (--seeds {2 * question.seeds})",
            )
        return Ruling("refuted", f"{what} cures it with {len(cured)} of {asked} seeds")
    by_chance = [seed for seed, one in placebo.items() if not question.shows(one)]
    if by_chance:
        return undecided(
            f"{what} cures it with {len(cured)} of {asked} seeds, but so does an irrelevant change "
            f"({irrelevant}) with {len(by_chance)} of {len(placebo)}",
            f"longer reruns (--iters), or more seeds (--seeds {2 * question.seeds})",
        )
    failing = sum(map(question.shows, plain.values()))
    return Ruling(
        "confirmed",
        f"{what} cures it with {len(cured)} of {asked} seeds; as recorded it fails again with "
        f"{failing} of {len(plain)}, and with an irrelevant change ({irrelevant}) with "
        f"{len(placebo)} of {len(placebo)}",
        1.0,
    )


def judge_injection(question: Question, plain: Trials, injected: Trials) -> Ruling:
    """The verdict on a cause in the run's own trainer, which ours has not."""
    present = [seed for seed, one in plain.items() if not question.is_sound(one)]
    if present:
        return undecided(
            f"the reference trainer, which does not have this fault, is not sound with "
            f"{len(present)} of {len(plain)} seeds",
            PROBE,
        )
    same = [seed for seed, one in injected.items() if question.is_recreated(one)]
    enough, asked = needed(question.seeds), len(injected)
    found = [question.signs(one) for one in injected.values()]
    share = max(map(question.recorded.coverage, found), default=0.0)
    codes = max(map(question.recorded.likeness, found), default=0.0)
    if len(same) >= enough:
        return Ruling(
            "confirmed",
            f"re-created: the reference trainer, which does not have this fault, is sound with "
            f"{len(plain)} of {len(plain)} seeds; with the fault put in it fails in the same way "
            f"with {len(same)} of {asked}, showing {share:.0%} of the recorded kinds of error",
            codes,
        )
    if same:
        return undecided(
            f"the fault re-creates the failure in {len(same)} of {asked} seeds",
            f"more seeds (--seeds {2 * question.seeds})",
        )
    first = found[0]
    extra = sorted(question.recorded.foreign(first))
    if extra:
        return Ruling(
            "refuted",
            "with the fault put into the reference trainer there are errors that the recorded run "
            f"does not have: {', '.join(extra)}",
        )
    missing = sorted(question.recorded.errors - first.all) or sorted(question.wanted)
    # Other forms of the same fault may well do it.
    return undecided(
        "in the forms tried, the fault does not re-create the failure: there is no "
        f"{', '.join(missing)}",
        PROBE,
    )
