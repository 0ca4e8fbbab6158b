"""Whether the source of your own trainer has a known mistake.

What it finds. What `mlxdoctor lint` finds in the file that --trainer names, and in the Python files
that lie beside a run and use MLX: one code per rule.

Why it matters. Such code looks right, and its losses fall; the reports of failures have it again
and again.

How it is measured. From the syntax tree alone. Nothing is imported or run by this check. Of a
run's folder and the folders in it, twenty files at most are read; tests are left out.

When it is wrong. A file may have code that the run never reached: so no finding here is an error by
itself. Beside a run that mlx-lm made the files need not have trained anything, and their mistakes
are notes. What the training step really does is measured by the checks of a step.

What to do. `mlxdoctor explain RULE` shows a bad example and a good one.
"""

from collections.abc import Iterator

from mlxdoctor.check import NotApplicable, check
from mlxdoctor.evidence.config import CONFIG_NAME, TrainingConfig
from mlxdoctor.finding import Measurement, Severity, Sign, Symptom
from mlxdoctor.lint.beside import SourcesBeside
from mlxdoctor.lint.linter import lint
from mlxdoctor.lint.rule import rules
from mlxdoctor.measure.training_step.measurement import NO_TRAINER, TrainerSource


@check(
    codes={
        rule.code: Symptom(
            rule.title.rstrip(".").lower(),
            Severity.WARNING if rule.severity is Severity.ERROR else Severity.INFO,
            says="{file}, line {line}[ (and {more} more)]: {message}.",
            expected="none of the known mistakes",
            fix=f"see `mlxdoctor explain {rule.code}`",
        )
        for rule in rules()
    }
)
def trainer_source(
    source: TrainerSource | None, beside: SourcesBeside | None, config: TrainingConfig | None
) -> Iterator[Sign]:
    """One finding per rule, placed at its first hit."""
    named = source.sources if source is not None else ()
    found = beside.sources if beside is not None else ()
    if not named and not found:
        raise NotApplicable(NO_TRAINER)
    made_by_mlx_lm = (
        config is not None and config.origin == "mlx-lm" and config.path.name == CONFIG_NAME
    )
    # mlx-lm trained here: files that nobody named may have nothing to do with the run.
    may_be_unrelated = not named and made_by_mlx_lm
    all_hits = lint(dict.fromkeys(source.path for source in (*named, *found)))
    for rule in rules():
        hits = [hit for hit in all_hits if hit.code == rule.code]
        if not hits:
            continue
        first = hits[0]
        measured: dict[str, Measurement] = {
            "hits": len(hits),
            "first_lines": tuple(hit.line for hit in hits[:5]),
            "file": first.path.name,
            "line": first.line,
            "more": len(hits) - 1 or None,
            "message": first.message,
        }
        yield Sign(
            rule.code,
            measured,
            where=f"{first.path.name}:{first.line}",
            severity=Severity.INFO if may_be_unrelated else None,
        )
