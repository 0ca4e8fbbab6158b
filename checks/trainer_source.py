"""Whether the source of your own trainer has a known mistake.

What it finds. What `mlxdoctor lint` finds in the file that --trainer names: one code a rule.

Why it matters. Such code looks right, and its losses fall; the reports of failures have it again
and again.

How it is measured. From the syntax tree alone. Nothing is imported or run by this check.

When it is wrong. A file may have code that the run never reached: so no finding here is an error by
itself. What the training step really does is measured by the checks of a step.

What to do. `mlxdoctor explain RULE` shows a bad example and a good one.
"""

from collections.abc import Iterator

from mlxdoctor.check import check
from mlxdoctor.finding import Severity, Sign, Symptom
from mlxdoctor.lint.linter import lint
from mlxdoctor.lint.rule import rules
from mlxdoctor.measure.training_step.measurement import TrainerSource


@check(
    codes={
        one.code: Symptom(
            one.title.rstrip(".").lower(),
            Severity.WARNING if one.severity is Severity.ERROR else Severity.INFO,
            expected="none of the known mistakes",
            fix=f"see `mlxdoctor explain {one.code}`",
        )
        for one in rules()
    }
)
def trainer_source(source: TrainerSource) -> Iterator[Sign]:
    """One finding a rule, at the first place."""
    every = lint(file.path for file in source.sources)
    for one in rules():
        hits = [hit for hit in every if hit.code == one.code]
        if not hits:
            continue
        first, more = hits[0], f" (and {len(hits) - 1} more)" if len(hits) > 1 else ""
        yield Sign(
            one.code,
            f"{first.path.name}, line {first.line}{more}: {first.message}.",
            {"hits": len(hits), "first_lines": tuple(hit.line for hit in hits[:5])},
            where=f"{first.path.name}:{first.line}",
        )
