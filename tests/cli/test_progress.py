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


def test_it_is_silent_off_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(sys, "stderr", stream := io.StringIO())
    with ProgressLine(clock) as progress:
        clock.now += 10
        progress("a", 0, 0)
    assert stream.getvalue() == ""


def test_an_unknown_total_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(sys, "stderr", stream := Terminal())
    with ProgressLine(clock) as progress:
        clock.now += 10
        progress("a", 5, 0)
    assert "a [    " in stream.getvalue()
