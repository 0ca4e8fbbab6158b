"""The answer of a bisection in words, and its table."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tabulate import tabulate

from mlxdoctor.bisect.behaviour import HELD_OUT
from mlxdoctor.bisect.table import Bisection
from mlxdoctor.engines.tensors import QUANTITIES
from mlxdoctor.finding import some_of
from mlxdoctor.formats import escape
from mlxdoctor.formats.strict_json import finite
from mlxdoctor.judge.save_flaws import Flaw, Standing
from mlxdoctor.template import fill

#: Keys of a save in `as_object`, with the headers of their columns.
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
#: Cases, with the templates of their answers.
_ANSWERS = {
    "untrained": "Last good checkpoint: none, nothing was trained: every B is exactly zero in all "
    "{files} files, so that each of them is the base model.",
    "lost": "Last good checkpoint: none, [nothing was trained up to {path_before}, and "
    "{broken_name} is broken|it was lost before the first save, {broken_path}][ ({why})].",
    "undecided": "Undecided: every file up to {last_good} is finite and trained, and there is "
    "neither a scale nor a log nor a model that would show more.",
    "broken": "Last good checkpoint: {last_good}; broken from {broken_name}[ ({why})].",
    "broken before": "Last good checkpoint: {last_good}, the newest; broken before it: {names}"
    "[ ({why})].",
    "good": "Last good checkpoint: {last_good}, the newest; none of {files} files is broken"
    "[, but an earlier one is {better}].",
}
_BEST = (
    "Best checkpoint: {path}; its answers' loss is {loss:.3f}, the lowest of {count} "
    "checkpoints on {rows} {split} rows[, against {last_loss:.3f} at {last_name} ({chance})]."
)


def sentence(table: Bisection) -> str:
    """The answer: the last good checkpoint, the broken ones, and why they are broken."""
    rows, last_good = table.rows, table.last_good
    broken = [place for place, row in enumerate(rows) if row.standing is Standing.BROKEN]
    first = broken[0] if broken else None
    if last_good is None:
        case = "untrained" if first is None else "lost"
    elif not table.is_decided:
        case = "undecided"
    elif table.first_broken is not None:
        first, case = table.first_broken, "broken"
    else:
        case = "broken before" if broken else "good"
    values = {
        "files": len(rows),
        "last_good": None if last_good is None else rows[last_good].path,
        "names": some_of([rows[place].path.name for place in broken]),
        "better": "better" if table.best and table.best.is_clear else None,
    }
    if first is not None:
        # The log's story, if there is one, replaces the loss at the save.
        story = table.logged.story if table.logged is not None else ""
        flaws = rows[first].flaws.items()
        clauses = [text for flaw, text in flaws if flaw is not Flaw.BLOWN_UP or not story]
        values |= {
            "broken_path": rows[first].path,
            "broken_name": rows[first].path.name,
            "path_before": rows[first - 1].path if first else None,
            "why": "; ".join(filter(None, (*clauses, story))) or None,
        }
    return fill(_ANSWERS[case], values)


def best_sentence(table: Bisection) -> str:
    """The checkpoint with the lowest held-out loss, or why none is known."""
    best = table.best
    if best is None:
        reason = "no held-out loss was measured"
        if table.last_good is None:
            reason = "none is good"
        elif table.split in HELD_OUT:
            reason = "no good one has a finite loss on the held-out rows"
        return f"Best checkpoint: not known; {reason}."
    loss, last_loss = best.losses[best.place], best.losses[best.last]
    values = {
        "path": table.rows[best.place].path,
        "loss": loss,
        "count": len(best.losses),
        "rows": best.rows,
        "split": "validation" if table.split == "valid" else table.split,
        "last_loss": last_loss if last_loss != loss else None,
        "last_name": table.rows[best.last].path.name,
        "chance": "higher by more than chance"
        if best.is_clear
        else "a difference that chance may make",
    }
    return fill(_BEST, values)


def notes(table: Bisection) -> Iterator[str]:
    """Notes to the answer, a sentence each."""
    if table.unmeasured:
        yield f"No model was run: {table.unmeasured}."
    else:
        yield (
            f"The loss on rows of the {table.split} split was measured with {table.measured} of "
            f"{len(table.rows)} files."
        )
    if table.logged is None:
        yield "There is no log of losses by iteration to compare the saves with."


def render(table: Bisection, *, is_markdown: bool) -> str:
    """The answers, the table and the notes, as plain text or Markdown."""
    clean = escape.markdown if is_markdown else escape.terminal
    answer = as_object(table)
    best = str(table.rows[table.best.place].path) if table.best is not None else None
    headers = {**_COLUMNS, "size": QUANTITIES[table.rows[0].save.quantity]}
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
    cells = tabulate(
        [[clean(row[key]) for key in shown] for row in rows],
        [headers[key] for key in shown],
        tablefmt="pipe" if is_markdown else "simple",
        disable_numparse=True,
    )
    lines = [clean(answer["answer"]), "", clean(answer["best_answer"]), "", cells, ""]
    lines += [f"- {clean(note)}" for note in answer["notes"]]
    return "\n".join(lines) + "\n"


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def as_object(table: Bisection) -> dict[str, Any]:
    """The answer as plain values, for JSON."""
    rows, best = table.rows, table.best
    last_good, first = table.last_good, table.first_broken
    return {
        "answer": sentence(table),
        "best_answer": best_sentence(table),
        "last_good": None if last_good is None else str(rows[last_good].path),
        "best": best
        and {
            "file": str(rows[best.place].path),
            "loss": best.losses[best.place],
            "from": "measured",
            "newest_is_worse": best.is_clear,
        },
        "first_broken": None if first is None else str(rows[first].path),
        "newest_is_good": table.newest_is_good,
        "decided": table.is_decided,
        "onset": table.logged.onset if table.logged is not None else None,
        "quantity": rows[0].save.quantity,
        "checkpoints": [_save(table, place) for place in range(len(rows))],
        "notes": list(notes(table)),
    }


def _save(table: Bisection, place: int) -> dict[str, Any]:
    row, logged = table.rows[place], table.logged
    # A copy of an earlier file was not measured.
    behaviour = table.behaviours.get(place) if row.same_as is None else None
    return {
        "file": str(row.path),
        "iteration": row.save.checkpoint.iteration,
        "standing": row.standing.value,
        "symptoms": [flaw.value for flaw in row.flaws],
        "why": row.why,
        "size": finite(row.save.size),
        "logged_validation_loss": logged.validations[place] if logged is not None else None,
        "logged_loss": finite(logged.losses[place]) if logged is not None else None,
        "answer_loss": finite(behaviour.loss) if behaviour is not None else None,
    }
