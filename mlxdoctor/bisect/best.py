"""Which save is the best one: by its loss on held-out rows, or by the log's validations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Literal

from mlxdoctor.bisect.behaviour import Behaviour, Limits, is_higher

#: Saves that are measured before the neighbours of the best of them are: a run may have hundreds.
MEASURED = 16


@dataclass(frozen=True)
class Best:
    """The best save of a run.

    Attributes:
        place: of the save.
        how: its held-out loss was measured here, or is the validation loss in the log.
        losses: place -> the loss, nats a token, of every save that has one.
        rows: held-out rows that it was measured on; 0 for a log.
        last: the place of the latest save that has a loss.
        is_clear: whether the latest is worse than the best by more than chance; a log can't
            tell.
    """

    place: int
    how: Literal["measured", "logged"]
    losses: Mapping[int, float]
    rows: int
    last: int
    is_clear: bool


@dataclass(frozen=True)
class SaidTo:
    """What some saves say to one prompt: place -> answer."""

    prompt: str
    expected: str | None
    answers: Mapping[int, str]


def all_measured(
    count: int, known: Mapping[int, Behaviour], measure: Callable[[int], Behaviour]
) -> dict[int, Behaviour]:
    """The losses of every save, or of as many as show where the lowest is.

    Args:
        count: saves, in the order of training.
        known: place -> what was measured before.
        measure: measures one that was not.
    """
    found = dict(known)

    def look(places: Iterable[int]) -> None:
        for place in places:
            if place not in found:
                found[place] = measure(place)

    if count <= MEASURED:
        look(range(count))
        return found
    look(round(at * (count - 1) / (MEASURED - 1)) for at in range(MEASURED))
    while True:
        done = sorted(found)
        at = done.index(min(done, key=lambda place: found[place].loss))
        near = [(done[i] + done[i + 1]) // 2 for i in (at - 1, at) if 0 <= i < len(done) - 1]
        new = [place for place in near if place not in found]
        if not new:
            return found
        look(new)


def best_measured(
    measured: Mapping[int, Behaviour], good: Sequence[int], limits: Limits
) -> Best | None:
    """The save with the lowest loss of those that are good; None where none was measured."""
    losses = {at: one.loss for at, one in sorted(measured.items()) if isfinite(one.loss)}
    chosen = [at for at in good if at in losses]
    if not chosen:
        return None
    place, last = min(chosen, key=lambda at: losses[at]), max(losses)
    rises = measured[last].losses - measured[place].losses
    is_clear = last != place and losses[last] > losses[place] and is_higher(rises, limits)
    return Best(place, "measured", losses, len(measured[place].losses), last, is_clear)


def best_logged(validations: Sequence[float | None], good: Sequence[int]) -> Best | None:
    """The save at the lowest validation loss of the log; None with fewer than two to compare."""
    losses = {at: one for at, one in enumerate(validations) if one is not None}
    chosen = [at for at in good if at in losses]
    if len(chosen) < 2 or len({losses[at] for at in chosen}) < 2:
        return None
    place = min(chosen, key=lambda at: losses[at])
    return Best(place, "logged", losses, 0, max(losses), is_clear=False)
