"""`mlxdoctor gate --init`: a policy from healthy runs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from mlxdoctor.check import discover
from mlxdoctor.evidence.kind import Progress
from mlxdoctor.gate.bands import QUANTITIES, Band, Quantity, band, measure
from mlxdoctor.gate.targets import targets
from mlxdoctor.safety.errors import InputError


@dataclass(frozen=True)
class Learned:
    """What healthy runs say.

    Attributes:
        runs: their paths.
        require: the checks that saw something to be sound in all of them.
        bands: what can be demanded of later runs.
    """

    runs: tuple[str, ...]
    require: tuple[str, ...]
    bands: tuple[Band, ...]


def learn(
    paths: Iterable[str], *, generate: bool = False, progress: Progress | None = None
) -> Learned:
    """Learn from healthy runs: that learned, and that nothing speaks against.

    Args:
        paths: runs, or globs of them.
        generate: run models too.
        progress: called with what is being done, a count done, and a total.

    Raises:
        InputError: a run is not healthy, or can't be examined.
    """
    from mlxdoctor.api import diagnose
    from mlxdoctor.formats.summary import headline

    items = targets(paths)
    checks = {one.name: one for one in discover()}
    required = set(checks)
    reported: set[str] = set()
    values: dict[Quantity, list[float]] = {one: [] for one in QUANTITIES}
    for number, item in enumerate(items):
        if item.problem:
            raise InputError(None, item.problem)
        if progress is not None:
            progress(f"learning from {item.path}", number, len(items))
        report = diagnose([Path(item.path)], allow_model=generate)
        if report.unreadable:
            raise InputError(None, report.unreadable[0], "learn from runs that can be read")
        if report.diagnosis or not any(one.learned for one in report.seen):
            raise InputError(
                item.path,
                f"is no healthy run to learn from ({headline(report)})",
                "name healthy runs; `mlxdoctor diagnose` says more about this one",
            )
        required &= {one.check for one in report.outcomes if one.seen}
        reported |= {one.code for one in report.findings}
        for quantity, seen in values.items():
            value = measure(quantity, checks[quantity.check], report.run)
            if value is not None:
                seen.append(value)
    bands = [
        band(quantity, checks[quantity.check], seen) for quantity, seen in values.items() if seen
    ]
    return Learned(
        tuple(one.path for one in items),
        tuple(sorted(required)),
        # What a healthy run reports already can't be made to fail.
        tuple(one for one in bands if one is not None and not reported & set(one.codes)),
    )
