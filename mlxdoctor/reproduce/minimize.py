"""From many keys that differ from a healthy configuration to those that matter.

The algorithm is ddmin (Zeller and Hildebrandt 2002, Simplifying and Isolating
Failure-Inducing Input, section 3.2).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal, TypeVar

from mlxdoctor.confirmation import KeyCompared, Minimization
from mlxdoctor.experiments.shared.bench import Bench
from mlxdoctor.experiments.shared.laboratory import BudgetSpent
from mlxdoctor.experiments.shared.observation import Condition
from mlxdoctor.experiments.shared.rules import needed
from mlxdoctor.judge.remedy import config_diff
from mlxdoctor.report import Fix
from mlxdoctor.reproduce.differences import Difference, Healthy, between, differences
from mlxdoctor.safety.errors import InputError

#: Keys named in a label before "…".
NAMED_KEYS = 3

T = TypeVar("T")
Ending = Literal["minimal", "unfinished", "impossible"]
Part = tuple[Difference, ...]
#: "other": another failure, or no training at all.
Seen = Literal["fails", "sound", "other"]


@dataclass(frozen=True)
class Minimized:
    """The keys that matter.

    Attributes:
        against: the healthy configuration's name.
        ending: whether the parts are minimal; or the time was over; or why there are none.
        reason: what was found, as a sentence without its stop.
        differing: the keys that were in question.
        parts: each brings the failure by itself, and not without any one of its keys.
        fix: the change that cures the run; None where none is known to.
    """

    against: str
    ending: Ending
    reason: str
    differing: Part = ()
    parts: tuple[Part, ...] = ()
    fix: Fix | None = None

    @property
    def shown(self) -> Minimization:
        """The result as the report shows it."""
        matters = {one.key for part in self.parts for one in part}
        return Minimization(
            against=self.against,
            ending=self.ending,
            reason=self.reason,
            keys=tuple(
                KeyCompared(one.key, one.failing, one.healthy, one.key in matters)
                for one in self.differing
            ),
            parts=tuple(tuple(one.key for one in part) for part in self.parts),
            diff=self.fix.diff if self.fix is not None else None,
        )


@dataclass(frozen=True)
class _Search:
    """Probes between the two configurations.

    Attributes:
        healed: the run's configuration with every differing key as in the healthy one.
        signs: those of the rerun as recorded, of which a probe that fails has one: errors,
            if it has any.
        are_errors: whether they are.
        known: part -> whether it fails, as it was asked; grows.
    """

    bench: Bench
    healed: Mapping[str, Any]
    signs: frozenset[str]
    are_errors: bool
    known: dict[Part, bool] = field(default_factory=dict)

    def fails(self, part: Part) -> bool:
        """Whether the run fails with only these keys as recorded, with the run's own seed."""
        if part not in self.known:
            self.known[part] = self.outcome(part, self.bench.failure.seeds[0]) == "fails"
        return self.known[part]

    def outcome(self, part: Part, seed: int) -> Seen:
        """What a rerun with only these keys as recorded shows."""
        failure = self.bench.failure
        values = between(self.healed, part, towards="failing")
        iterations = min(failure.iterations, int(values.get("iters") or failure.iterations))
        condition = Condition("probe", _label(part), iterations, values)
        try:
            seen = self.bench.observe(condition, seed, failure.everything)
        except InputError:
            return "other"
        found = failure.everything.signs(seen)
        if self.signs & (found.errors if self.are_errors else found.all):
            return "fails"
        return "other" if found.errors else "sound"

    @property
    def smallest(self) -> Part:
        """The smallest part that was seen to fail; empty where none was."""
        failing = [part for part, fails in self.known.items() if fails]
        return min(failing, key=len, default=())


def minimize(bench: Bench, healthy: Healthy) -> Minimized:
    """The smallest sets of differing keys that bring the failure, and the fix they make.

    Delta debugging between the healthy configuration and the run's, each probe a shortened
    rerun with the run's seed; the result is tried with another seed as well.

    Args:
        bench: where reruns are made and written down.
        healthy: the configuration to compare with.

    Raises:
        InputError: the healthy configuration has a value that mlx-lm would not take.
    """
    recipe, failure = bench.lab.recipe, bench.failure
    differing = tuple(
        one
        for one in differences(recipe.values, healthy.values)
        if one.key != "iters" or _shortens(one, failure.iterations)
    )
    if not differing:
        reason = f"no key that a rerun of {failure.iterations} iterations heeds differs from there"
        return Minimized(healthy.name, "impossible", reason)
    search: _Search | None = None
    try:
        found = failure.everything.signs(bench.plain()[recipe.seed])
        errors = found.errors & failure.everything.wanted
        signs = errors or found.all & failure.everything.wanted
        if not signs:
            reason = "rerun as recorded it does not fail, so that nothing in it can be at fault"
            return Minimized(healthy.name, "impossible", reason, differing)
        healed = between(recipe.values, differing, towards="healthy")
        search = _Search(bench, healed, signs, bool(errors))
        search.known[differing] = True
        return _minimized(search, healthy, differing)
    except InputError as error:
        reason = f"the rerun as recorded is refused: {error}"
        return Minimized(healthy.name, "impossible", reason, differing)
    except BudgetSpent as spent:
        smallest = search.smallest if search is not None else differing
        reason = (
            f"the time was over before this could be done: {spent}; so far "
            f"{len(smallest) or len(differing)} of {len(differing)} keys that differ are left: "
            f"{_listed(smallest or differing)}; the same command goes on from there"
        )
        parts = (smallest,) if smallest else ()
        return Minimized(healthy.name, "unfinished", reason, differing, parts)


def _minimized(search: _Search, healthy: Healthy, differing: Part) -> Minimized:
    seeds = search.bench.failure.seeds
    as_healthy = search.outcome((), seeds[0])
    if as_healthy != "sound":
        what = "fails in the same way" if as_healthy == "fails" else "fails here in another way"
        reason = f"rerun on this data and base the healthy configuration {what}"
        return Minimized(healthy.name, "impossible", reason, differing)
    parts: list[Part] = []
    left = differing
    while left and search.fails(left):
        parts.append(ddmin(left, search.fails))
        left = tuple(one for one in left if one not in parts[-1])
    agreeing = [
        seed
        for seed in seeds[: needed(len(seeds))]
        if all(search.outcome(part, seed) == "fails" for part in parts)
        and search.outcome(left, seed) == "sound"
    ]
    enough = needed(len(seeds))
    is_cured = len(agreeing) >= enough
    reason = _sentence(parts, differing, left, healthy.name)
    held = f"so in {len(agreeing)} of {enough} seeds"
    if not is_cured:
        held += "; with another seed it is not the same, and the rest may matter too"
    fix = _fix(search.bench, [one for part in parts for one in part]) if is_cured else None
    return Minimized(healthy.name, "minimal", f"{reason} ({held})", differing, tuple(parts), fix)


def _sentence(parts: Sequence[Part], differing: Part, left: Part, name: str) -> str:
    texts = []
    for part in parts:
        verb = "brings the failure by itself" if len(part) == 1 else "bring it only together"
        texts.append(f"{_listed(part)} {verb}")
    changed = "that key" if sum(map(len, parts)) == 1 else "those keys"
    rest = "" if not left else " and the other as recorded"
    rest = f" and the other {len(left)} as recorded" if len(left) > 1 else rest
    return (
        f"of {len(differing)} keys that differ from {name}, {'; '.join(texts)}; with {changed} as "
        f"there{rest}, the rerun is sound"
    )


def _fix(bench: Bench, keys: Sequence[Difference]) -> Fix:
    config = bench.lab.recipe.config
    changed = between(config.values, keys, towards="healthy")
    return Fix(
        {one.key: one.failing for one in keys},
        {one.key: one.healthy for one in keys},
        config_diff(config, changed),
    )


def _shortens(one: Difference, iterations: int) -> bool:
    """Whether the healthy run's length would show in a rerun of this many iterations."""
    return bool(min(one.failing, iterations) != min(one.healthy, iterations))


def _label(part: Part) -> str:
    return f"healthy, but as recorded: {_listed(part)}" if part else "the healthy configuration"


def _listed(part: Iterable[Difference]) -> str:
    keys = [one.key for one in part]
    if len(keys) > NAMED_KEYS:
        return f"{', '.join(keys[:NAMED_KEYS])} and {len(keys) - NAMED_KEYS} more"
    return " and ".join([", ".join(keys[:-1]), keys[-1]]) if len(keys) > 1 else keys[0]


def ddmin(items: Sequence[T], fails: Callable[[tuple[T, ...]], bool]) -> tuple[T, ...]:
    """A part of `items` that fails, and no longer does without any one of them.

    Args:
        items: a set that fails; the empty set does not.
        fails: whether a part fails; what can't be told counts as no. Asked several times
            about some parts, so that it has to remember.

    Returns:
        The part, in the order of `items`: 1-minimal, which need not be the smallest of all.
    """
    left, parts = tuple(items), 2
    while len(left) >= 2:
        subsets = _split(left, parts)
        others = [tuple(one for one in left if one not in subset) for subset in subsets]
        if (subset := next(filter(fails, subsets), None)) is not None:
            left, parts = subset, 2
        # Of two halves each is the other's complement.
        elif parts > 2 and (rest := next(filter(fails, others), None)) is not None:
            left, parts = rest, parts - 1
        elif parts < len(left):
            parts = min(2 * parts, len(left))
        else:
            break
    return left


def _split(items: tuple[T, ...], parts: int) -> list[tuple[T, ...]]:
    bounds = [len(items) * number // parts for number in range(parts + 1)]
    return [items[low:high] for low, high in pairwise(bounds)]
