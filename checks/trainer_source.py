"""Whether the source of your own trainer has a known mistake.

What it finds. What `mlxdoctor lint` finds in the file that --trainer names: one code a rule.

Why it matters. Such code looks right, and its losses fall; the reports of failures have it again
and again.

How it is measured. From the syntax tree alone. Nothing is imported or run by this check.

When it is wrong. A file may have code that the run never reached: so no finding here is an error by
itself. What the training step really does is measured by the checks of a step.

What to do. `mlxdoctor explain RULE` shows a bad example and a good one.
"""

from collections import defaultdict
from collections.abc import Iterator

from mlxdoctor.check import check
from mlxdoctor.evidence.trainer_source import TrainerSource
from mlxdoctor.finding import Finding, Severity
from mlxdoctor.lint.linter import Hit
from mlxdoctor.lint.rule import rules


@check(codes={one.code: one.title.rstrip(".").lower() for one in rules()})
def trainer_source(source: TrainerSource) -> Iterator[Finding]:
    """One finding a rule, at the first place."""
    by_code: dict[str, list[Hit]] = defaultdict(list)
    for hit in source.hits:
        by_code[hit.code].append(hit)
    for one in rules():
        hits = by_code.get(one.code)
        if not hits:
            continue
        more = f" (and {len(hits) - 1} more)" if len(hits) > 1 else ""
        yield Finding(
            code=f"trainer-source.{one.code}",
            severity=Severity.WARNING if one.severity is Severity.ERROR else Severity.INFO,
            message=f"{hits[0].path.name}, line {hits[0].line}{more}: {hits[0].message}.",
            measured={"hits": len(hits), "first_lines": tuple(hit.line for hit in hits[:5])},
            expected="none of the known mistakes",
            where=f"{hits[0].path.name}:{hits[0].line}",
            fix=f"see `mlxdoctor explain {one.code}`",
        )
