"""The answer of a bisection in words, and its table."""

from __future__ import annotations

from math import isfinite
from pathlib import Path
from typing import Any

from mlxdoctor.bisect.behaviour import HELD_OUT
from mlxdoctor.bisect.table import Bisection, SaveRow
from mlxdoctor.formats import escape
from mlxdoctor.judge.save_flaws import ODDITIES, Flaw, Standing
from mlxdoctor.measure.weights.save_norms import QUANTITIES
from mlxdoctor.safety.quoting import cut

#: A validation loss this far above its minimum is worth a sentence (ratio).
WORTH_TELLING = 1.05
#: Characters of a prompt and of an answer that are shown.
SHOWN_CHARACTERS = 240
#: What `as_object` says of a save -> the header of its column.
_COLUMNS = {
    "iteration": "iteration",
    "file": "file",
    "size": "size",
    "logged_loss": "loss in the log",
    "logged_validation_loss": "validation in the log",
    "answer_loss": "loss of answers",
    "standing": "verdict",
    "why": "why",
}


def sentence(table: Bisection) -> str:
    """The answer: the last good checkpoint's path, where the break is, and why."""
    rows, last_good, broken = table.rows, table.last_good, _broken(table)
    if last_good is None:
        return f"Last good checkpoint: none, {_never_good(table)}."
    path = rows[last_good].path
    if not table.is_decided:
        return (
            f"Undecided: every file up to {path} is finite and trained, and there is neither a "
            "scale nor a log nor a model that would show more."
        )
    if (place := table.first_broken) is not None:
        rest = "" if place == len(rows) - 1 else " on"
        return (
            f"Last good checkpoint: {path}; broken from {rows[place].path.name}{rest}"
            f"{_because(table, rows[place])}."
        )
    if not broken:
        better = ", but an earlier one is better" if table.best and table.best.is_clear else ""
        return (
            f"Last good checkpoint: {path}, the newest; none of {len(rows)} files is broken"
            f"{better}."
        )
    names = ", ".join(row.path.name for row in broken[:3]) + (", …" if broken[3:] else "")
    why = _because(table, broken[0])
    return f"Last good checkpoint: {path}, the newest; broken before it: {names}{why}."


def best_sentence(table: Bisection) -> str:
    """The checkpoint with the lowest held-out loss, and what that was compared with."""
    best = table.best
    if best is None:
        return f"Best checkpoint: not known; {_nothing_compares(table)}."
    path, loss, newest = (
        table.rows[best.place].path,
        best.losses[best.place],
        best.losses[best.last],
    )
    is_newest = best.last == best.place or newest == loss
    if best.how == "logged":
        end = "" if is_newest else f", and {newest:.3f} at the last"
        return (
            f"Best checkpoint by the log: {path}, where the validation loss was {loss:.3f}, the "
            f"lowest of {len(best.losses)} checkpoints that have one{end}. That is the log's own "
            f"figure, often of a few batches: {_why_no_model(table)}."
        )
    chance = "higher by more than chance" if best.is_clear else "a difference that chance may make"
    end = (
        ""
        if is_newest
        else f", against {newest:.3f} at {table.rows[best.last].path.name} ({chance})"
    )
    split = "validation" if table.split == "valid" else table.split
    return (
        f"Best checkpoint: {path}; its answers' loss is {loss:.3f}, the lowest of "
        f"{len(best.losses)} checkpoints on {best.rows} {split} rows{end}."
    )


def _nothing_compares(table: Bisection) -> str:
    if table.last_good is None:
        return "none is good"
    if not table.unmeasured and table.split in HELD_OUT:
        return "no good one has a finite loss on the held-out rows"
    log = "the log has no validation loss at two or more of them"
    return f"{_why_no_model(table)}, and {'there is no log' if table.logged is None else log}"


def _why_no_model(table: Bisection) -> str:
    if not table.unmeasured:
        return "there are no validation or test rows to run the models on"
    return f"no model was run ({table.unmeasured})"


def _broken(table: Bisection) -> list[SaveRow]:
    return [row for row in table.rows if row.standing is Standing.BROKEN]


def _never_good(table: Bisection) -> str:
    broken = _broken(table)
    if not broken:
        return (
            f"nothing was trained: every B is exactly zero in all {len(table.rows)} files, so that "
            "each of them is the base model"
        )
    because, place = _because(table, broken[0]), table.rows.index(broken[0])
    if place == 0:
        return f"it was lost before the first save, {broken[0].path}{because}"
    return (
        f"nothing was trained up to {table.rows[place - 1].path}, and {broken[0].path.name} is "
        f"broken{because}"
    )


def _because(table: Bisection, row: SaveRow) -> str:
    remarks = row.verdict.remarks
    parts = [one.text for one in remarks if one.flaw not in {*ODDITIES, Flaw.BLOWN_UP}]
    parts += [row.fault] if row.fault else []
    if table.logged is not None and table.logged.story:
        parts.append(table.logged.story)
    else:
        parts += [one.text for one in remarks if one.flaw is Flaw.BLOWN_UP]
    return f" ({'; '.join(parts)})" if parts else ""


def notes(table: Bisection) -> list[str]:
    """What else is worth knowing, one sentence an entry."""
    rows, logged = table.rows, table.logged
    lines = []
    last = len(rows) - 1
    # That the final file is the last numbered one is as it should be.
    same = [
        (row, one)
        for place, row in enumerate(rows)
        if (one := row.verdict.same_as) is not None and (place, one) != (last, last - 1)
    ]
    if same:
        names = ", ".join(row.path.name for row, _ in same[:4])
        original = rows[same[0][1]].path.name
        lines.append(f"Files that are the same, byte for byte, as {original}: {names}.")
    large = ((row, one) for row in rows for one in row.verdict.remarks if one.flaw is Flaw.LARGE)
    if (first := next(large, None)) is not None:
        lines.append(f"From {first[0].path.name} on: {first[1].text}.")
    if table.unmeasured:
        lines.append(f"No model was run: {table.unmeasured}.")
    else:
        asked = {id(row.behaviour) for row in rows if row.behaviour and row.behaviour.collapsed}
        lines.append(
            f"The loss was measured with {table.measured} of {len(rows)} files on rows of the "
            f"{table.split} split, and the answers of {len(asked)} were looked at."
        )
    if logged is None:
        lines.append("There is no log of losses by iteration to compare the saves with.")
    elif (
        table.newest_is_good
        and (table.best is None or table.best.how == "logged")
        and logged.best is not None
        and (logged.end_over_best or 0.0) >= WORTH_TELLING
    ):
        lines.append(
            f"The log's validation loss was lowest at iteration {logged.best} and ends "
            f"{logged.end_over_best:.2f} times as high: a save near it may be better."
        )
    return lines


def render(table: Bisection, *, is_markdown: bool) -> str:
    """The answers, the table and the notes, as plain text or Markdown."""
    from tabulate import tabulate

    clean = escape.markdown if is_markdown else escape.terminal
    answer = as_object(table)
    best = answer["best"]["file"] if answer["best"] is not None else None
    headers = {**_COLUMNS, "size": QUANTITIES[table.followed.quantity]}
    rows = [
        {
            **{key: _cell(save[key]) for key in headers},
            "iteration": str(save["iteration"] or "final"),
            "file": Path(save["file"]).name,
            "standing": save["standing"] + (", best" if save["file"] == best else ""),
        }
        for save in answer["checkpoints"]
    ]
    shown = [key for key in headers if any(row[key] for row in rows)]
    text = tabulate(
        [[clean(row[key]) for key in shown] for row in rows],
        [headers[key] for key in shown],
        tablefmt="pipe" if is_markdown else "simple",
        disable_numparse=True,
    )
    lines = [clean(answer["answer"]), "", clean(answer["best_answer"]), "", text, ""]
    lines += [f"- {clean(note)}" for note in answer["notes"]]
    lines += ["", "What they answer:"] if answer["answers"] else []
    for asked in answer["answers"]:
        lines += ["", f"- Prompt: {clean(_short(asked['prompt']))}"]
        if asked["expected"] is not None:
            lines.append(f"  - expected: {clean(_short(asked['expected']))}")
        for file, said in asked["answers"].items():
            names = {"last good": answer["last_good"], "best": best}
            who = " and ".join(name for name, named in names.items() if named == file)
            shown_answer = clean(_short(said)) or "(nothing)"
            lines.append(f"  - {who}, {clean(Path(file).name)}: {shown_answer}")
    return "\n".join(lines) + "\n"


def _cell(value: Any) -> str:
    return "" if value is None else f"{value:.3g}" if isinstance(value, float) else str(value)


def _short(text: str) -> str:
    return cut(" ".join(text.split()), SHOWN_CHARACTERS)


def as_object(table: Bisection) -> dict[str, Any]:
    """The answer as plain values, for JSON."""
    rows, best = table.rows, table.best
    last_good, first = table.last_good, table.first_broken
    return {
        "answer": sentence(table),
        "best_answer": best_sentence(table),
        "last_good": None if last_good is None else str(rows[last_good].path),
        "best": None
        if best is None
        else {
            "file": str(rows[best.place].path),
            "loss": best.losses[best.place],
            "from": best.how,
            "rows": best.rows or None,
            "newest_is_worse": best.is_clear if best.how == "measured" else None,
        },
        "first_broken": None if first is None else str(rows[first].path),
        "newest_is_good": table.newest_is_good,
        "decided": table.is_decided,
        "onset": table.logged.onset if table.logged is not None else None,
        "quantity": table.followed.quantity,
        "checkpoints": [_save(table, place) for place in range(len(rows))],
        "notes": notes(table),
        "answers": answers(table),
    }


def _save(table: Bisection, place: int) -> dict[str, Any]:
    row, logged = table.rows[place], table.logged
    save, same = row.verdict.save, row.verdict.same_as
    # A file that is the same as an earlier one was not measured again.
    behaviour = row.behaviour if same is None else None
    return {
        "file": str(row.path),
        "sha256": None if save.problem else row.checkpoint.source.sha256,
        "iteration": row.checkpoint.iteration,
        "standing": row.standing.value,
        "symptoms": [one.flaw.value for one in row.verdict.remarks],
        "why": row.why,
        "size": _finite(save.facts.size),
        "nonfinite": save.facts.nonfinite,
        "logged_validation_loss": logged.validations[place] if logged is not None else None,
        "logged_loss": _finite(logged.losses[place]) if logged is not None else None,
        "answer_loss": _finite(behaviour.loss) if behaviour is not None else None,
        "base_answer_loss": _finite(behaviour.base_loss) if behaviour is not None else None,
        "modules": [
            {"module": name, "size": _finite(size), "zero": size == 0}
            for name, size in save.facts.sizes.items()
        ],
    }


def answers(table: Bisection) -> list[dict[str, Any]]:
    """What the last good save and the best answered to each prompt, by file, for JSON."""
    best = table.best.place if table.best is not None else None
    shown = {
        str(table.rows[place].path): save.answers
        for place in dict.fromkeys((table.last_good, best))
        if place is not None and (save := table.rows[place].behaviour) is not None
    }
    return [
        {
            "prompt": prompt.text,
            "expected": prompt.expected,
            "answers": {
                file: texts[number] for file, texts in shown.items() if number < len(texts)
            },
        }
        for number, prompt in enumerate(table.prompts)
    ]


def _finite(value: float | None) -> float | None:
    return value if value is not None and isfinite(value) else None
