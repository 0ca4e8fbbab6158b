"""From observations to a verdict. Nothing here trains or reads: these are the rules."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from mlxdoctor.causes import KnowledgeBase
from mlxdoctor.reproduce.criteria import Limits, needed
from mlxdoctor.reproduce.observation import Observation
from mlxdoctor.reproduce.symptoms import Signs, coverage, foreign, likeness, signs

Verdict = Literal["confirmed", "refuted", "undecided"]
#: Observations of one condition, by seed.
Trials = Mapping[int, Observation]


@dataclass(frozen=True)
class Judgement:
    """What the experiments say of one cause, and why, as a sentence without its stop."""

    verdict: Verdict
    reason: str
    strength: float = 0.0


@dataclass(frozen=True)
class Question:
    """What is asked of every rerun.

    Attributes:
        wanted: the signs of which a rerun must show one to be the same failure.
        key: the weightiest of them, which a re-creation must show.
        recorded: the signs of the run that was examined.
        knowledge: the groups of findings.
        limits: the thresholds.
        seeds: how many seeds are tried at most.
        strict: whether a cured rerun must be free of any other error as well.
    """

    wanted: frozenset[str]
    key: str | None
    recorded: Signs
    knowledge: KnowledgeBase
    limits: Limits
    seeds: int
    strict: bool = True

    def signs(self, observation: Observation) -> Signs:
        """The signs of a rerun."""
        return signs(observation.findings, observation.looked, self.knowledge)

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
        before = self.recorded.codes | self.signs(plain).codes
        same = {
            code
            for code in found.codes & before
            if self.knowledge.group(code) in self.wanted
        }
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
            self.key in found.all
            and coverage(self.recorded, found) >= self.limits.recreated
            and not foreign(self.recorded, found, self.knowledge)
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
) -> Judgement:
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
            return Judgement(
                "undecided",
                f"{what} cures it with {len(cured)} of {asked} seeds, {enough} are needed",
            )
        return Judgement("refuted", f"{what} cures it with {len(cured)} of {asked} seeds")
    by_chance = [seed for seed, one in placebo.items() if not question.shows(one)]
    if by_chance:
        return Judgement(
            "undecided",
            f"{what} cures it with {len(cured)} of {asked} seeds, but so does an irrelevant change "
            f"({irrelevant}) with {len(by_chance)} of {len(placebo)}",
        )
    return Judgement(
        "confirmed",
        f"{what} cures it with {len(cured)} of {asked} seeds; as recorded it fails again with "
        f"{_failing(question, plain)}, and with an irrelevant change ({irrelevant}) with "
        f"{_failing(question, placebo)}",
        1.0,
    )


def judge_injection(question: Question, plain: Trials, injected: Trials) -> Judgement:
    """The verdict on a cause in the run's own trainer, which ours has not."""
    present = [seed for seed, one in plain.items() if not question.is_sound(one)]
    if present:
        return Judgement(
            "undecided",
            f"the reference trainer, which does not have this fault, is not sound with "
            f"{len(present)} of {len(plain)} seeds",
        )
    same = [seed for seed, one in injected.items() if question.is_recreated(one)]
    enough, asked = needed(question.seeds), len(injected)
    share = max(
        (coverage(question.recorded, question.signs(one)) for one in injected.values()), default=0.0
    )
    codes = max(
        (likeness(question.recorded, question.signs(one)) for one in injected.values()), default=0.0
    )
    if len(same) >= enough:
        return Judgement(
            "confirmed",
            f"re-created: the reference trainer, which does not have this fault, is sound with "
            f"{len(plain)} of {len(plain)} seeds; with the fault put in it fails in the same way "
            f"with {len(same)} of {asked}, showing {share:.0%} of the recorded kinds of error",
            codes,
        )
    if same:
        return Judgement(
            "undecided", f"the fault re-creates the failure in {len(same)} of {asked} seeds"
        )
    return _of_another_failure(question, injected)


def _of_another_failure(question: Question, injected: Trials) -> Judgement:
    found = question.signs(next(iter(injected.values())))
    extra = sorted(foreign(question.recorded, found, question.knowledge))
    if extra:
        return Judgement(
            "refuted",
            "with the fault put into the reference trainer there are errors that the recorded run "
            f"does not have: {', '.join(extra)}",
        )
    missing = sorted(question.recorded.errors - found.all) or sorted(question.wanted)
    # Other forms of the same fault may well do it.
    return Judgement(
        "undecided",
        "in the forms tried, the fault does not re-create the failure: there is no "
        f"{', '.join(missing)}",
    )


def _failing(question: Question, trials: Trials) -> str:
    return f"{sum(map(question.shows, trials.values()))} of {len(trials)}"
