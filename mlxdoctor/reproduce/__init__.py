"""Experiments: make a failed run again, change one thing, and compare.

from mlxdoctor.api import diagnose
from mlxdoctor.reproduce import reproduce

confirmed = reproduce(diagnose([run]), Path("reports/run/reproduction"), minutes=10)

`observe` makes a run again with one change, and looks at what came out. `changes` says which change
a cause asks for, `rules` how it is judged; `direct` has what needs no rerun.
`investigate` tries the causes in turn.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from pathlib import Path

from mlxdoctor.api import RunReport
from mlxdoctor.causes import load_causes
from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.kind import Missing, Progress
from mlxdoctor.formats.withheld import without_text
from mlxdoctor.reproduce.bench import (
    Bench,
    Failure,
    is_about_length,
    length_of,
    onset_of,
    usual_values,
)
from mlxdoctor.reproduce.folding import folded
from mlxdoctor.reproduce.investigate import Investigation, candidates, investigate
from mlxdoctor.reproduce.rules import undecided
from mlxdoctor.run_texts import row_texts
from mlxdoctor.safety.errors import InputError
from mlxdoctor.twin.rerun import Laboratory, recipe_of, write_json

__all__ = ["reproduce"]

#: The summary, beside the experiments' own folders.
SUMMARY_FILE = "reproduction.json"


def reproduce(
    report: RunReport,
    folder: Path,
    *,
    causes: Sequence[str] = (),
    seeds: int = 3,
    iterations: int | None = None,
    minutes: float | None = None,
    with_text: bool = True,
    progress: Progress | None = None,
) -> RunReport:
    """Make the failure again, try its likeliest causes, and say in the report what came of it.

    Args:
        report: what `diagnose` says of the run.
        folder: where experiments are written; one that was stopped goes on there.
        causes: ids to try besides the leading ones.
        seeds: how many seeds at most; two thirds of them have to agree.
        iterations: of each rerun; by default past the onset of the failure.
        minutes: after which no experiment goes on, and by which reruns are shortened; None:
            no limit.
        with_text: let the report quote training rows and outputs.
        progress: called with what is being done, a count done, and a total.

    Returns:
        The report with `experiments` and confirmations; unchanged where the run did not fail
        and no cause was asked for.

    Raises:
        InputError: a cause is unknown, or the folder can't be written.
    """
    knowledge = load_causes()
    asked = tuple(dict.fromkeys(causes))
    for name in asked:
        if name not in knowledge.causes:
            raise InputError(None, f"there is no cause {name!r}", "see `mlxdoctor explain`")
    if not report.diagnosis and not asked:
        return report
    run = report.run
    try:
        recipe = recipe_of(run)
    except Missing as reason:
        ruling = undecided(
            f"the run can't be made again: {reason}",
            "base, rows and configuration of the run (--base, --data, or their files beside it)",
        )
        names = [one.cause.id for one in report.diagnosis[:1]]
        state = Investigation(dict.fromkeys((*names, *asked), ruling))
        shown = folded(report, state, knowledge.causes)
        return shown if with_text else without_text(shown, row_texts(run))
    leading = report.diagnosis[0].cause if report.diagnosis else None
    length = length_of(onset_of(report.outcomes), leading, recipe.iterations)
    failure = Failure(
        report.outcomes,
        knowledge,
        seeds=tuple(recipe.seed + number for number in range(seeds)),
        iterations=iterations or length,
        usual=usual_values(recipe.config, run.get(BaseModel)),
        coverage={one.cause: one for one in report.coverage},
        # What comes of stopping earlier shows in a run that goes on for long enough only.
        least=length if is_about_length(leading) else 0,
    )
    deadline = math.inf if minutes is None else time.monotonic() + 60 * minutes
    # A length that was named is kept to, whatever the time.
    budget = math.inf if minutes is None or iterations is not None else 60 * minutes
    bench = Bench(Laboratory(recipe, folder, deadline, progress, budget), failure)
    tried = candidates(failure, recipe.config, report.diagnosis, asked)
    state = investigate(bench, run, tried, asked)
    shown = folded(report, state, knowledge.causes, bench.trials)
    if not with_text:
        shown = without_text(shown, row_texts(run))
    write_json(
        folder / SUMMARY_FILE,
        {
            "experiments": shown.to_dict()["experiments"],
            "ignored_keys": list(recipe.ignored),
            "iterations": state.iterations or failure.iterations,
        },
    )
    return shown
