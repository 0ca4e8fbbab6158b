"""Whether the source of your own trainer has a known mistake.

What it finds. What `mlxdoctor lint` finds in the file that --trainer names, and in the Python files
that lie beside a run and use MLX: one code per rule.

Why it matters. Such code looks right, and its losses fall; reports of failed runs show it
again and again.

How it is measured. From the syntax tree alone. Nothing is imported or run by this check. Of a
run's folder and the folders in it, twenty files at most are read; tests are left out.

When it is wrong. A file may have code that the run never reached: so no finding here is an error by
itself. Beside a run that mlx-lm made the files need not have trained anything, and their mistakes
are notes. What the training step really does is measured by the checks of a step.

What to do. `mlxdoctor explain RULE` shows a bad example and a good one.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from mlxdoctor.check import Inconclusive, NotApplicable, check
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.kind import NotThere, RunView
from mlxdoctor.evidence.source import Source, read_text
from mlxdoctor.finding import Measurement, Severity, Sign, Symptom
from mlxdoctor.lint.linter import UNREADABLE, Hit, lint, uses_mlx
from mlxdoctor.lint.rule import rules
from mlxdoctor.measure.training_step.measurement import NO_TRAINER, TrainingStep
from mlxdoctor.measure.weights.lora_targets import by_mlx_lm
from mlxdoctor.safety.errors import InputError

#: Most files that are read; a run's folder has a handful.
_MAX_FILES = 20
_TEST_OR_SETUP = re.compile(r"^(?:test_.*|.*_test|conftest|setup)$")


@dataclass(frozen=True)
class SourcesBeside:
    """The Python files in a run's folder, or among the paths named, that use MLX.

    Attributes:
        sources: the files.
    """

    kind: ClassVar[str] = "Python sources"

    sources: tuple[Source, ...]

    @classmethod
    def find(cls, run: RunView) -> "SourcesBeside":
        """The first `_MAX_FILES` Python files of the run, without those that do not use MLX."""
        paths = [path for path in run.files.unrecognised if path.suffix == ".py"]
        sources = [source for path in paths[:_MAX_FILES] if (source := _source(path)) is not None]
        if not sources:
            raise NotThere("no Python source that uses MLX lies beside the run")
        return cls(tuple(sources))


def _source(path: Path) -> Source | None:
    """The file as a source; None if it does not use MLX, is unreadable, or a test."""
    if _TEST_OR_SETUP.match(path.stem):
        return None
    try:
        text, source = read_text(path, "source_bytes")
    except InputError:
        # The user did not name this file: it may be unreadable.
        return None
    return source if uses_mlx(text) else None


@check(
    codes={
        rule.code: Symptom(
            rule.title.rstrip(".").lower(),
            # One step milder than the rule: the run may never have reached the code.
            Severity.WARNING if rule.severity is Severity.ERROR else Severity.INFO,
            says="{file}, line {line}[ (and {more} more)]: {message}.",
            expected="none of the known mistakes",
            fix=f"see `mlxdoctor explain {rule.code}`",
        )
        for rule in rules()
    }
)
def trainer_source(
    step: TrainingStep | None, beside: SourcesBeside | None, config: TrainingConfig | None
) -> Iterator[Sign]:
    named = step.sources if step is not None else ()
    sources = (*named, *beside.sources) if beside is not None else named
    if not sources:
        raise NotApplicable(NO_TRAINER)
    hits_of: dict[str, list[Hit]] = {}
    for hit in lint(dict.fromkeys(source.path for source in sources)):
        hits_of.setdefault(hit.code, []).append(hit)
    for rule in rules():
        if not (hits := hits_of.get(rule.code)):
            continue
        file, first = hits[0].path.name, hits[0]
        measured: dict[str, Measurement] = {
            "hits": len(hits),
            "file": file,
            "line": first.line,
            "more": len(hits) - 1 or None,
            "message": first.message,
        }
        # mlx-lm made the run: files that the user did not name may have no part in it.
        severity = Severity.INFO if by_mlx_lm(config) and not named else None
        yield Sign(rule.code, measured, f"{file}:{first.line}", severity=severity)
    for hit in hits_of.get(UNREADABLE, ()):
        raise Inconclusive(f"{hit.path.name}: {hit.message}")
