"""Reported logs by themselves: what an expert sees at a glance stands on the first screen."""

import pytest

from fixtures.lab.cases.logged import LOGS, Logged, Shown, page, shown

OWN = [one for one in LOGS if one.own.exists()]


@pytest.mark.parametrize("log", OWN, ids=lambda one: one.own.stem)
def test_what_an_expert_sees_is_said(log: Logged) -> None:
    assert bool(shown(log.own).lacks(log)) == bool(log.missed)


def test_every_reported_log_of_ours_has_an_expert() -> None:
    folder = OWN[0].own.parent
    assert {one.own.name for one in OWN} == {one.name for one in folder.glob("*.log")}


def test_a_screen_lacks_what_it_does_not_say() -> None:
    log = Logged("a.log", "rises to 4.1", ("suspect",), (r"4\.1", "!overfitted"), "why")
    right = Shown("suspect", "Suspect", ("It rose to 4.1.",), ())
    wrong = Shown("healthy", "Healthy: overfitted", (), ())
    assert not right.lacks(log)
    assert wrong.lacks(log) == ["verdict healthy", r"4\.1", "!overfitted"]
    text = "\n".join(page({log: wrong}))
    assert "said of 0.0% (0/1" in text
    assert r"**lacks** verdict healthy, 4\.1, !overfitted: why" in text
