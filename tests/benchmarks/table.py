"""A measured row, and rows as a Markdown table."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tests.benchmarks.timing import Measurement


@dataclass(frozen=True)
class Line:
    """What was measured, and what was aimed at.

    Attributes:
        what: the work.
        seconds: the median time, None where a rate says more.
        peak_mib: the largest resident set, None where it was not measured.
        result: the figure that is compared with the aim; empty for what only serves as a measure.
        aim: the target in words; empty where there is none.
        met: whether the result is within it; None without a target.
    """

    what: str
    seconds: float | None = None
    peak_mib: float | None = None
    result: str = ""
    aim: str = ""
    met: bool | None = None


def plain(what: str, found: Measurement, result: str = "") -> Line:
    """A row that others are compared with."""
    return Line(what, found.seconds, found.peak_mib, result)


def at_most(what: str, found: Measurement, other: Measurement, peer: str, most: float) -> Line:
    """A row whose time is to be at most so many times another's."""
    ratio = found.seconds / other.seconds
    return Line(
        what,
        found.seconds,
        found.peak_mib,
        f"{ratio:.2f}x {peer}",
        f"at most {most:g}x",
        ratio <= most,
    )


def markdown(rows: Iterable[Line]) -> str:
    """The rows as a table, with a line break at its end."""
    lines = [
        "| work | median | peak memory | measured | aim | met |",
        "|---|---:|---:|---|---|---|",
    ]
    for row in rows:
        seconds = "" if row.seconds is None else f"{row.seconds:.3f} s"
        peak = "" if row.peak_mib is None else f"{row.peak_mib:.0f} MiB"
        met = {None: "", True: "yes", False: "no"}[row.met]
        lines.append(f"| {row.what} | {seconds} | {peak} | {row.result} | {row.aim} | {met} |")
    return "".join(f"{line}\n" for line in lines)
