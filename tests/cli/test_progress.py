"""The progress line: what is drawn on a terminal, and said elsewhere."""

import io
import sys
from typing import Any

import pytest

from mlxdoctor.cli.progress import REDRAW_AFTER, SHOW_AFTER, ProgressLine
from tests.safety.test_time_budget import Clock


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


#: Seconds that pass, and the report that comes then.
Step = tuple[float, str, int, int]
LONG = SHOW_AFTER + 0.01


def written(
    monkeypatch: pytest.MonkeyPatch, stream: io.StringIO, steps: list[Step], **options: Any
) -> str:
    clock = Clock()
    monkeypatch.setattr(sys, "stderr", stream)
    with ProgressLine(clock, **options) as progress:
        for seconds, label, done, total in steps:
            clock.now += seconds
            progress(label, done, total)
    return stream.getvalue()


@pytest.mark.parametrize(
    ("steps", "drawn", "left_out"),
    [
        (
            [(LONG, "reading \x1b[31mweights", 3, 12)],
            ["[######  ", "] reading \\x1b[31mweights 3/12"],
            [],
        ),
        # It is not redrawn all the time.
        ([(LONG, "a", 1, 9), (0, "b", 2, 9), (REDRAW_AFTER + 0.01, "c", 3, 9)], [" c 3"], [" b 2"]),
        # What is left follows from what was done; of all of it, where that is known.
        ([(LONG, "a", 0, 9), (4, "a", 2, 9)], ["] about 14 s left; a 2/9"], []),
        # The total is unknown.
        ([(10, "a", 5, 0)], ["[      ", "] a 5/0"], []),
    ],
)
def test_long_work_draws_and_leaves_an_empty_line(
    monkeypatch: pytest.MonkeyPatch, steps: list[Step], drawn: list[str], left_out: list[str]
) -> None:
    text = written(monkeypatch, Terminal(), steps)
    assert all(one in text for one in drawn)
    assert not any(one in text for one in left_out)
    assert text.endswith(" \r")


def test_off_a_terminal_it_is_a_line_every_ten_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = [(1.0, "reading \x1b[31mrows", done, 1200) for done in range(26)]
    assert written(monkeypatch, io.StringIO(), steps).splitlines() == [
        "mlxdoctor: reading \\x1b[31mrows: 9 of 1,200, after 10 s; about 1191 s left",
        "mlxdoctor: reading \\x1b[31mrows: 19 of 1,200, after 20 s; about 1181 s left",
    ]
    # What takes days is silent there, and short work everywhere.
    assert written(monkeypatch, io.StringIO(), steps, lines=False) == ""
    assert written(monkeypatch, Terminal(), [(SHOW_AFTER - 0.01, "reading", 1, 2)]) == ""


def test_the_bar_is_that_of_the_whole_where_its_time_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = written(monkeypatch, Terminal(), [(30.0, "a", 1, 2), (30.0, "b", 7, 8)], most=120.0)
    assert f"[{'#' * 6:<24}] at most 90 s left; a 1/2" in text
    assert f"[{'#' * 12:<24}] at most 60 s left; b 7/8" in text
    # It took longer: no time is promised.
    assert f"[{'#' * 24}] a 1/2" in written(monkeypatch, Terminal(), [(30.0, "a", 1, 2)], most=20.0)


def test_what_is_said_stays_above_the_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(sys, "stderr", stream := Terminal())
    with ProgressLine(clock) as progress:
        clock.now += 10
        progress("a", 1, 9)
        progress.say("so far \x07")
    assert stream.getvalue().endswith("\rmlxdoctor: so far \\x07\n")
