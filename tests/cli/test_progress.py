from __future__ import annotations

import io
import sys

import pytest

from mlxdoctor.cli.progress import REDRAW_AFTER, SHOW_AFTER, ProgressLine


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_long_work_draws_and_leaves_an_empty_line(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(sys, "stderr", stream := Terminal())
    with ProgressLine(clock) as progress:
        clock.now += SHOW_AFTER + 0.01
        progress("reading \x1b[31mweights", 3, 12)
    drawn = stream.getvalue()
    assert "\\x1b[31mweights [######" in drawn
    assert "] 3/12" in drawn
    assert drawn.endswith(" \r")


def test_short_work_draws_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(sys, "stderr", stream := Terminal())
    with ProgressLine(clock) as progress:
        clock.now += SHOW_AFTER - 0.01
        progress("reading", 1, 2)
    assert stream.getvalue() == ""


def test_it_is_not_redrawn_all_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(sys, "stderr", stream := Terminal())
    with ProgressLine(clock) as progress:
        clock.now += SHOW_AFTER + 0.01
        progress("a", 1, 9)
        progress("b", 2, 9)
        clock.now += REDRAW_AFTER + 0.01
        progress("c", 3, 9)
    assert "b [" not in stream.getvalue()
    assert "c [" in stream.getvalue()


def test_off_a_terminal_it_is_a_line_every_ten_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(sys, "stderr", stream := io.StringIO())
    with ProgressLine(clock) as progress:
        for done in range(26):
            clock.now += 1
            progress("reading \x1b[31mrows", done, 1200)
    assert stream.getvalue().splitlines() == [
        "mlxdoctor: reading \\x1b[31mrows: 9 of 1,200, after 10 s",
        "mlxdoctor: reading \\x1b[31mrows: 19 of 1,200, after 20 s",
    ]


def test_what_takes_days_is_silent_off_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(sys, "stderr", stream := io.StringIO())
    with ProgressLine(clock, lines=False) as progress:
        clock.now += 100
        progress("a", 0, 0)
    assert stream.getvalue() == ""


def test_what_is_said_stays_above_the_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(sys, "stderr", stream := Terminal())
    with ProgressLine(clock) as progress:
        clock.now += 10
        progress("a", 1, 9)
        progress.say("so far \x07")
    assert stream.getvalue().endswith("\rmlxdoctor: so far \\x07\n")


def test_an_unknown_total_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(sys, "stderr", stream := Terminal())
    with ProgressLine(clock) as progress:
        clock.now += 10
        progress("a", 5, 0)
    assert "a [    " in stream.getvalue()
