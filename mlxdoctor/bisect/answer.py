"""The answer of a bisection in words, and its saves as rows of a table."""

from __future__ import annotations

from math import isfinite
from typing import Any

from mlxdoctor.bisect.result import Bisection
from mlxdoctor.formats import escape
from mlxdoctor.judge.save_flaws import ODDITIES, Flaw, Standing
from mlxdoctor.measure.weights.save_sizes import QUANTITIES

#: A validation loss this far above its minimum is worth a sentence (ratio).
WORTH_TELLING = 1.05
#: The columns of `rows_of`.
HEADERS = ("iteration", "file", "size", "loss in the log", "loss of answers", "verdict", "why")


def sentence(found: Bisection) -> str:
    """The answer: the last good checkpoint's path, where the break is, and why."""
    if found.last_good is None:
        return f"Last good checkpoint: none, {_never_good(found)}."
    path = found.path(found.last_good)
    if not found.is_decided:
        return (
            f"Undecided: every file up to {path} is finite and trained, and there is neither a "
            "scale nor a log nor a model that would show more."
        )
    place = found.first_broken
    if place is not None:
        from_here = found.checkpoint(place)
        rest = "" if place == len(found.standings) - 1 else " on"
        return (
            f"Last good checkpoint: {path}; broken from {from_here.path.name}{rest}"
            f"{_because(found, place)}."
        )
    broken = [at for at, one in enumerate(found.standings) if one is Standing.BROKEN]
    if not broken:
        count = len(found.standings)
        return f"Last good checkpoint: {path}, the newest; none of {count} files is broken."
    names = ", ".join(found.path(at).name for at in broken[:3]) + (", …" if broken[3:] else "")
    return (
        f"Last good checkpoint: {path}, the newest; broken before it: {names}"
        f"{_because(found, broken[0])}."
    )


def _never_good(found: Bisection) -> str:
    broken = [at for at, one in enumerate(found.standings) if one is Standing.BROKEN]
    if not broken:
        count = len(found.standings)
        return (
            f"nothing was trained: every B is exactly zero in all {count} files, so that each of "
            "them is the base model"
        )
    first = broken[0]
    because = _because(found, first)
    if first == 0:
        return f"it was lost before the first save, {found.path(0)}{because}"
    return (
        f"nothing was trained up to {found.path(first - 1)}, and {found.path(first).name} is "
        f"broken{because}"
    )


def _because(found: Bisection, place: int) -> str:
    remarks = found.verdicts[place].remarks
    logged = found.logged
    parts = [one.text for one in remarks if one.flaw not in {*ODDITIES, Flaw.BLOWN_UP}]
    if place in found.faults:
        parts.append(found.faults[place])
    if logged is not None and logged.story:
        parts.append(logged.story)
    elif any(one.flaw is Flaw.BLOWN_UP for one in remarks):
        parts += [one.text for one in remarks if one.flaw is Flaw.BLOWN_UP]
    return f" ({'; '.join(parts)})" if parts else ""


def notes(found: Bisection) -> list[str]:
    """What else is worth knowing, one sentence an entry."""
    told = []
    same = [place for place, one in enumerate(found.verdicts) if one.same_as is not None]
    # That the final file is the last numbered one is as it should be.
    last = len(found.verdicts) - 1
    odd = [at for at in same if not (at == last and found.verdicts[at].same_as == last - 1)]
    if odd:
        names = ", ".join(found.path(place).name for place in odd[:4])
        original = found.path(found.verdicts[odd[0]].same_as or 0).name
        told.append(f"Files that are the same, byte for byte, as {original}: {names}.")
    for flaw in (Flaw.LARGE, Flaw.DEAD_LAYER, Flaw.OTHER_TENSORS):
        places = [
            (place, one)
            for place, verdict in enumerate(found.verdicts)
            for one in verdict.remarks
            if one.flaw is flaw
        ]
        if places:
            place, remark = places[0]
            told.append(f"From {found.path(place).name} on: {remark.text}.")
    told += _of_the_search(found)
    logged = found.logged
    if logged is None:
        told.append("There is no log of losses by iteration to compare the saves with.")
    elif (
        found.newest_is_good
        and logged.best is not None
        and (logged.end_over_best or 0.0) >= WORTH_TELLING
    ):
        told.append(
            f"The log's validation loss was lowest at iteration {logged.best} and ends "
            f"{logged.end_over_best:.2f} times as high: a save near it may be better."
        )
    return told


def _of_the_search(found: Bisection) -> list[str]:
    if found.unmeasured:
        reason = found.unmeasured.removeprefix("no model was run, ")
        return [f"No model was run: {reason}."]
    count = len(found.behaviour)
    told = [
        f"The model was loaded with {count} of {len(found.standings)} files, and measured on rows "
        f"of the {found.split} split. A run that broke is taken to stay broken"
        + (
            "; the neighbours of the break agree."
            if found.held
            else "; this one did not, so that every file was measured."
        )
    ]
    good = [at for at in found.behaviour if found.standings[at] is Standing.GOOD]
    if good:
        best = min(good, key=lambda at: found.behaviour[at].loss)
        loss = found.behaviour[best].loss
        told.append(
            f"The lowest loss of the answers measured is {loss:.3g}, of {found.path(best)}."
        )
    return told


def rows_of(found: Bisection) -> list[tuple[str, ...]]:
    """Every save as texts: iteration, file, size, loss in the log, of the answers, and verdict."""
    table: list[tuple[str, ...]] = []
    for place, one in enumerate(found.verdicts):
        logged = found.logged.losses[place] if found.logged is not None else None
        measured = found.behaviour.get(place if one.same_as is None else one.same_as)
        size = one.save.size
        table.append(
            (
                str(one.save.checkpoint.iteration or "final"),
                one.save.checkpoint.path.name,
                "0" if one.save.is_zero else _figure(size if isfinite(size) else None),
                _figure(logged),
                _figure(measured.loss if measured is not None else None),
                found.standings[place].value,
                found.why(place),
            )
        )
    return table


def _figure(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"


def render(found: Bisection, *, is_markdown: bool) -> str:
    """The answer, its notes and the table, the answer first, as plain text or Markdown."""
    from tabulate import tabulate

    clean = escape.markdown if is_markdown else escape.terminal
    cells = [[clean(cell) for cell in row] for row in rows_of(found)]
    headers = [*HEADERS[:2], QUANTITIES[found.followed.quantity], *HEADERS[3:]]
    shown = [at for at in range(len(headers)) if any(row[at] for row in cells)]
    table = tabulate(
        [[row[at] for at in shown] for row in cells],
        [headers[at] for at in shown],
        tablefmt="pipe" if is_markdown else "simple",
        disable_numparse=True,
    )
    told = [f"- {clean(one)}" for one in notes(found)]
    return "\n".join([clean(sentence(found)), "", table, "", *told]) + "\n"


def as_object(found: Bisection) -> dict[str, Any]:
    """The answer as plain values, for JSON."""
    first = found.first_broken
    return {
        "answer": sentence(found),
        "last_good": None if found.last_good is None else str(found.path(found.last_good)),
        "first_broken": None if first is None else str(found.path(first)),
        "newest_is_good": found.newest_is_good,
        "decided": found.is_decided,
        "onset": found.logged.onset if found.logged is not None else None,
        "quantity": found.followed.quantity,
        "checkpoints": [_save(found, place) for place in range(len(found.standings))],
        "notes": notes(found),
    }


def _save(found: Bisection, place: int) -> dict[str, Any]:
    verdict = found.verdicts[place]
    measured = found.behaviour.get(place)
    return {
        "file": str(found.path(place)),
        "sha256": None if verdict.save.problem else found.checkpoint(place).sha256,
        "iteration": found.checkpoint(place).iteration,
        "standing": found.standings[place].value,
        "symptoms": [one.flaw.value for one in verdict.remarks],
        "why": found.why(place),
        "size": _finite(verdict.save.size),
        "nonfinite": verdict.save.nonfinite,
        "logged_loss": _finite(found.logged.losses[place]) if found.logged is not None else None,
        "answer_loss": _finite(measured.loss) if measured is not None else None,
        "base_answer_loss": _finite(measured.base_loss) if measured is not None else None,
        "modules": [
            {
                "module": one.name,
                "size": _finite(one.size),
                "spectral": _finite(one.spectral),
                "stable_rank": _finite(one.stable_rank),
                "zero": one.is_zero,
            }
            for one in verdict.save.modules
        ],
    }


def _finite(value: float | None) -> float | None:
    return value if value is not None and isfinite(value) else None
