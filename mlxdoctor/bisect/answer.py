"""The answer of a bisection in words, and its saves as rows of a table."""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite
from typing import Any

from mlxdoctor.bisect.behaviour import HELD_OUT
from mlxdoctor.bisect.result import Bisection
from mlxdoctor.formats import escape
from mlxdoctor.judge.save_flaws import ODDITIES, Flaw, Standing
from mlxdoctor.measure.weights.save_norms import QUANTITIES
from mlxdoctor.safety.quoting import cut

#: A validation loss this far above its minimum is worth a sentence (ratio).
WORTH_TELLING = 1.05
#: The columns of `rows_of`.
HEADERS = (
    *("iteration", "file", "size", "loss in the log", "validation in the log"),
    *("loss of answers", "verdict", "why"),
)
#: Characters of a prompt and of an answer that are shown.
SHOWN_CHARACTERS = 240


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
        better = ", but an earlier one is better" if found.best and found.best.is_clear else ""
        return f"Last good checkpoint: {path}, the newest; none of {count} files is broken{better}."
    names = ", ".join(found.path(at).name for at in broken[:3]) + (", …" if broken[3:] else "")
    return (
        f"Last good checkpoint: {path}, the newest; broken before it: {names}"
        f"{_because(found, broken[0])}."
    )


def best_sentence(found: Bisection) -> str:
    """The checkpoint with the lowest held-out loss, and what that was compared with."""
    best = found.best
    if best is None:
        return f"Best checkpoint: not known; {_nothing_compares(found)}."
    path, loss = found.path(best.place), best.losses[best.place]
    if best.how == "logged":
        end = "" if best.place == best.last else f", and {best.losses[best.last]:.3f} at the last"
        return (
            f"Best checkpoint by the log: {path}, where the validation loss was {loss:.3f}, the "
            f"lowest of {len(best.losses)} checkpoints that have one{end}. That is the log's own "
            f"figure, often of a few batches: {_why_no_model(found)}."
        )
    split = "validation" if found.split == "valid" else found.split
    rows = f"{best.rows} {split} rows"
    lead = f"Best checkpoint: {path}"
    if len(best.losses) == 1:
        return f"{lead}, the only one whose answers' loss could be measured ({loss:.3f}, {rows})."
    of = f"the lowest of {len(best.losses)} checkpoints on {rows}"
    if best.place == best.last or best.losses[best.last] == loss:
        return f"{lead}, the newest of those measured; its answers' loss is {loss:.3f}, {of}."
    newest = f"{best.losses[best.last]:.3f} at {found.path(best.last).name}"
    how = "higher by more than chance" if best.is_clear else "a difference that chance may make"
    return f"{lead}; its answers' loss is {loss:.3f}, {of}, against {newest} ({how})."


def _nothing_compares(found: Bisection) -> str:
    if found.last_good is None:
        return "none is good"
    if found.unmeasured:
        why = "the log has no validation loss at two or more of them"
        why = "there is no log" if found.logged is None else why
        return f"{_why_no_model(found)}, and {why}"
    if found.split not in HELD_OUT:
        return "there are no validation or test rows to measure it on"
    return "no good one has a finite loss on the held-out rows"


def _why_no_model(found: Bisection) -> str:
    if not found.unmeasured:
        return "there are no validation or test rows to run the models on"
    return f"no model was run ({found.unmeasured.removeprefix('no model was run, ')})"


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
        and (found.best is None or found.best.how == "logged")
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
    count = sum(one.collapsed is not None for one in found.behaviour.values())
    return [
        f"The loss was measured with {len(found.behaviour)} of {len(found.standings)} files on "
        f"rows of the {found.split} split, and the answers of {count} were looked at. A run that "
        "broke is taken to stay broken"
        + (
            "; the neighbours of the break agree."
            if found.held
            else "; this one did not, so that every file was measured."
        )
    ]


def rows_of(found: Bisection) -> list[tuple[str, ...]]:
    """Every save as texts: iteration, file, size, loss in the log, of the answers, and verdict."""
    table: list[tuple[str, ...]] = []
    for place, one in enumerate(found.verdicts):
        logged = found.logged.losses[place] if found.logged is not None else None
        validated = found.logged.validations[place] if found.logged is not None else None
        measured = found.behaviour.get(place if one.same_as is None else one.same_as)
        size = one.save.facts.size
        table.append(
            (
                str(one.save.checkpoint.iteration or "final"),
                one.save.checkpoint.path.name,
                "0" if one.save.facts.is_zero else _figure(size if isfinite(size) else None),
                _figure(logged),
                _figure(validated),
                _figure(measured.loss if measured is not None else None),
                _verdict(found, place),
                found.why(place),
            )
        )
    return table


def _verdict(found: Bisection, place: int) -> str:
    is_best = found.best is not None and place == found.best.place
    return f"{found.standings[place].value}, best" if is_best else found.standings[place].value


def _figure(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"


def render(found: Bisection, *, is_markdown: bool) -> str:
    """The answers, notes and the table, the answers first, as plain text or Markdown."""
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
    answers = clean(sentence(found)), "", clean(best_sentence(found))
    return "\n".join([*answers, "", table, "", *told, *_said(found, clean)]) + "\n"


def _said(found: Bisection, clean: Callable[[str], str]) -> list[str]:
    """The answers, a prompt at a time."""
    lines = ["", "What they answer:"] if found.said else []
    for one in found.said:
        lines += ["", f"- Prompt: {clean(_short(one.prompt))}"]
        if one.expected is not None:
            lines.append(f"  - expected: {clean(_short(one.expected))}")
        for place, text in one.answers.items():
            who = " and ".join(
                name
                for name, at in (("last good", found.last_good), ("best", _best_place(found)))
                if at == place
            )
            answer = clean(_short(text)) or "(nothing)"
            lines.append(f"  - {who}, {clean(found.path(place).name)}: {answer}")
    return lines


def _best_place(found: Bisection) -> int | None:
    return found.best.place if found.best is not None else None


def _short(text: str) -> str:
    return cut(" ".join(text.split()), SHOWN_CHARACTERS)


def as_object(found: Bisection) -> dict[str, Any]:
    """The answer as plain values, for JSON."""
    first = found.first_broken
    return {
        "answer": sentence(found),
        "best_answer": best_sentence(found),
        "last_good": None if found.last_good is None else str(found.path(found.last_good)),
        "best": _best_object(found),
        "first_broken": None if first is None else str(found.path(first)),
        "newest_is_good": found.newest_is_good,
        "decided": found.is_decided,
        "onset": found.logged.onset if found.logged is not None else None,
        "quantity": found.followed.quantity,
        "checkpoints": [_save(found, place) for place in range(len(found.standings))],
        "notes": notes(found),
        "answers": [
            {
                "prompt": one.prompt,
                "expected": one.expected,
                "answers": {str(found.path(place)): text for place, text in one.answers.items()},
            }
            for one in found.said
        ],
    }


def _best_object(found: Bisection) -> dict[str, Any] | None:
    best = found.best
    if best is None:
        return None
    return {
        "file": str(found.path(best.place)),
        "loss": best.losses[best.place],
        "from": best.how,
        "rows": best.rows or None,
        "newest_is_worse": best.is_clear if best.how == "measured" else None,
    }


def _save(found: Bisection, place: int) -> dict[str, Any]:
    verdict = found.verdicts[place]
    measured = found.behaviour.get(place)
    return {
        "file": str(found.path(place)),
        "sha256": None if verdict.save.problem else found.checkpoint(place).source.sha256,
        "iteration": found.checkpoint(place).iteration,
        "standing": found.standings[place].value,
        "symptoms": [one.flaw.value for one in verdict.remarks],
        "why": found.why(place),
        "size": _finite(verdict.save.facts.size),
        "nonfinite": verdict.save.facts.nonfinite,
        "logged_validation_loss": (
            found.logged.validations[place] if found.logged is not None else None
        ),
        "logged_loss": _finite(found.logged.losses[place]) if found.logged is not None else None,
        "answer_loss": _finite(measured.loss) if measured is not None else None,
        "base_answer_loss": _finite(measured.base_loss) if measured is not None else None,
        "modules": [
            {"module": name, "size": _finite(size), "zero": size == 0}
            for name, size in verdict.save.facts.sizes.items()
        ],
    }


def _finite(value: float | None) -> float | None:
    return value if value is not None and isfinite(value) else None
