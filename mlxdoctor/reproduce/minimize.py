"""From many keys that differ from a healthy configuration to those that matter."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from mlxdoctor.judge.remedy import Fix, config_diff
from mlxdoctor.reproduce.bench import Bench
from mlxdoctor.reproduce.condition import Condition
from mlxdoctor.reproduce.criteria import needed
from mlxdoctor.reproduce.ddmin import ddmin
from mlxdoctor.reproduce.differences import Difference, Healthy, between, differences
from mlxdoctor.reproduce.laboratory import BudgetSpent
from mlxdoctor.safety.errors import InputError

#: Keys named in a label before "…".
NAMED_KEYS = 3

Ending = Literal["minimal", "unfinished", "impossible"]
Part = tuple[Difference, ...]
#: "other": another failure, or no training at all.
Outcome = Literal["fails", "sound", "other"]


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

    def to_dict(self) -> dict[str, Any]:
        """The result as the report shows it."""
        matters = {one.key for part in self.parts for one in part}
        return {
            "experiment": "minimization",
            "against": self.against,
            "ending": self.ending,
            "reason": self.reason,
            "keys": [
                {
                    "key": one.key,
                    "failing": one.failing,
                    "healthy": one.healthy,
                    "matters": one.key in matters,
                }
                for one in self.differing
            ],
            "parts": [[one.key for one in part] for part in self.parts],
            "diff": self.fix.diff if self.fix is not None else None,
        }


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
            self.known[part] = self.outcome(part, self.bench.case.seeds[0]) == "fails"
        return self.known[part]

    def outcome(self, part: Part, seed: int) -> Outcome:
        """What a rerun with only these keys as recorded shows."""
        case = self.bench.case
        values = between(self.healed, part, towards="failing")
        iterations = min(case.iterations, int(values.get("iters") or case.iterations))
        condition = Condition("probe", _label(part), iterations, values)
        try:
            seen = self.bench.observe(condition, seed, case.everything)
        except InputError:
            return "other"
        found = case.everything.signs(seen)
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
    recipe, case = bench.lab.recipe, bench.case
    differing = tuple(
        one
        for one in differences(recipe.values, healthy.values)
        if one.key != "iters" or _shortens(one, case.iterations)
    )
    if not differing:
        reason = f"no key that a rerun of {case.iterations} iterations heeds differs from there"
        return Minimized(healthy.name, "impossible", reason)
    search: _Search | None = None
    try:
        found = case.everything.signs(bench.plain()[recipe.seed])
        errors = found.errors & case.everything.wanted
        signs = errors or found.all & case.everything.wanted
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
    seeds = search.bench.case.seeds
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
