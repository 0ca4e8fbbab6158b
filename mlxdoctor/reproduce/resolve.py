"""Where several experiments succeed: which of the causes is confirmed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mlxdoctor.diagnosis import Diagnosed
from mlxdoctor.reproduce.criteria import Limits
from mlxdoctor.reproduce.rules import Judgement


def resolve(
    judgements: Mapping[str, Judgement], causes: Sequence[Diagnosed], limits: Limits
) -> dict[str, Judgement]:
    """The verdicts, with one cause confirmed at the most.

    A smaller step cures a scale that is too large, and a smaller scale a rate that is too
    high: where a change that restores a known value (`set`) cures, one that only makes a
    value smaller or larger says nothing of its own. Otherwise the fault that re-creates more
    of the failure is the cause; and where that does not tell them apart the evidence of the
    run itself has to, by a margin.
    """
    tried = {one.cause.id: one for one in causes}
    resolved = {
        name: _behind(one, tried[name], judgements, causes, limits)
        for name, one in judgements.items()
    }
    confirmed = [tried[name] for name, one in resolved.items() if one.verdict == "confirmed"]
    if len(confirmed) < 2:
        return resolved
    best = max(
        confirmed, key=lambda one: (_restores(one), judgements[one.cause.id].strength, one.score)
    )
    for one in confirmed:
        if one is best:
            continue
        if _beats(best, one, judgements, limits):
            reason = (
                f"{judgements[one.cause.id].reason}; but so does the experiment for "
                f"{best.cause.id}, which explains the failure better"
            )
            resolved[one.cause.id] = Judgement("undecided", reason)
            continue
        reason = "the experiments for {} succeed as well, and nothing tells them apart"
        resolved[one.cause.id] = Judgement("undecided", reason.format(best.cause.id))
        resolved[best.cause.id] = Judgement("undecided", reason.format(one.cause.id))
    return resolved


def _behind(
    judgement: Judgement,
    cause: Diagnosed,
    judgements: Mapping[str, Judgement],
    causes: Sequence[Diagnosed],
    limits: Limits,
) -> Judgement:
    """A re-creation of a cause that the evidence all but rules out proves little."""
    ahead = [
        one.cause.id
        for one in causes
        if one.score - cause.score >= limits.margin
        and judgements.get(one.cause.id, judgement).verdict == "undecided"
    ]
    if judgement.verdict != "confirmed" or not cause.cause.inject or not ahead:
        return judgement
    return Judgement(
        "undecided",
        f"{judgement.reason}; but what the run left speaks for {ahead[0]} by far, which is "
        "undecided",
    )


def _restores(one: Diagnosed) -> bool:
    return one.cause.change is not None and one.cause.change.operation == "set"


def _beats(
    best: Diagnosed, other: Diagnosed, judgements: Mapping[str, Judgement], limits: Limits
) -> bool:
    if _restores(best) and not _restores(other) and other.cause.change is not None:
        return True
    mine, theirs = judgements[best.cause.id].strength, judgements[other.cause.id].strength
    return mine > theirs or best.score - other.score >= limits.margin
