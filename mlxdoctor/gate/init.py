"""`mlxdoctor gate --init`: a commented policy, from healthy runs."""

import json
from collections.abc import Iterable
from pathlib import Path

from mlxdoctor.check import discover
from mlxdoctor.evidence.kind import Progress
from mlxdoctor.formats import escape
from mlxdoctor.gate.targets import targets
from mlxdoctor.safety.errors import InputError
from mlxdoctor.tables import shipped_text
from mlxdoctor.verdict import Verdict


def required_checks(
    paths: Iterable[str], *, generate: bool = False, progress: Progress | None = None
) -> tuple[list[str], list[str]]:
    """The paths of healthy runs, and the checks that saw something to be sound in all of them.

    Raises:
        InputError: a run is not healthy, or can't be examined.
    """
    from mlxdoctor.api import diagnose
    from mlxdoctor.formats.summary import headline

    items = targets(paths)
    required = {check.name for check in discover()}
    for done, item in enumerate(items):
        if item.problem:
            raise InputError(None, item.problem)
        if progress is not None:
            progress(f"reading {item.path}", done, len(items))
        report = diagnose(item.path, allow_model=generate)
        if report.unreadable:
            raise InputError(None, report.unreadable[0], "name runs that can be read")
        # Without models a sound run may be inconclusive; it must have learned, at least.
        is_faulty = report.verdict in (Verdict.UNHEALTHY, Verdict.SUSPECT)
        if is_faulty or not any(seen.learned for seen in report.seen):
            problem = f"is no healthy run ({headline(report)})"
            remedy = "name healthy runs; `mlxdoctor diagnose` says more about this one"
            raise InputError(Path(item.path), problem, remedy)
        required &= {outcome.check for outcome in report.outcomes if outcome.seen}
    return [item.path for item in items], sorted(required)


def policy_text(runs: Iterable[str], require: Iterable[str]) -> str:
    """The policy in TOML, for `mlxdoctor.toml`."""
    # A string in JSON is one in TOML too where nothing is escaped, as in names of checks.
    listed = "".join(f"    {json.dumps(name)},\n" for name in require)
    named = "\n".join(f"#   {escape.terminal(run)}" for run in runs)
    template = shipped_text("mlxdoctor.gate", "policy_template.txt")
    return template.format(runs=named, require=f"[\n{listed}]" if listed else "[]")
