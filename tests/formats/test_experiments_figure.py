"""The picture of a reproduction, and its text on the terminal."""

from __future__ import annotations

import math
import warnings
from typing import Any, get_args

import pytest

from mlxdoctor.confirmation import Rerun
from mlxdoctor.formats import figures, terminal
from mlxdoctor.reproduce.rerun import Kind
from tests.formats import sample
from tests.formats.test_escape import HOSTILE
from tests.formats.test_figures import size


def trial(kind: str = "as recorded", **changes: Any) -> dict[str, Any]:
    """One rerun as the report lists it."""
    return {
        "experiment": kind,
        "cause": None,
        "label": "rerun as recorded",
        "seed": 0,
        "symptom": True,
        "errors": [],
        "base_loss": 5.0,
        "loss": 4.0,
        "iterations": 50,
        "seconds": 2.5,
        "curve": {"iterations": [1, 2, 3], "values": [4.0, 3.0, 2.0]},
        "samples": [],
        **changes,
    }


def reruns(*told: dict[str, Any]) -> list[Rerun]:
    """These reruns."""
    made = [sample.made_experiment(one) for one in told]
    return [one for one in made if isinstance(one, Rerun)]


def drawn_of(*experiments: dict[str, Any]) -> dict[str, bytes]:
    """The pictures of a report that has nothing else to draw."""
    bare = {"figures": {}, "experiments": experiments}
    return figures.draw(sample.made(sample.unhealthy() | bare))


def verdict(cause: str, said: str, reason: str = "for a reason") -> dict[str, Any]:
    """One verdict as the report lists it."""
    title = f"The title of {cause}"
    named = {"cause": cause, "title": title, "reason": reason}
    return {"experiment": "verdict", "verdict": said, **named}


@pytest.mark.slow
@pytest.mark.parametrize("kind", get_args(Kind))
def test_every_kind_of_rerun_can_be_drawn(kind: str) -> None:
    figure = figures.painted("experiments", reruns(trial(kind)))
    assert len(figure.axes[0].lines) == 1
    assert len(figure.legends[0].get_texts()) == 1


def test_one_entry_a_condition_and_one_for_all_probes() -> None:
    made = [trial(seed=seed) for seed in range(3)]
    made += [trial("probe", label=f"probe {number}") for number in range(9)]
    figure = figures.painted("experiments", reruns(*made))
    assert len(figure.axes[0].lines) == 12
    names = [one.get_text() for one in figure.legends[0].get_texts()]
    assert names == ["rerun as recorded", "between the two configurations"]


@pytest.mark.parametrize(
    "values", [[math.nan] * 3, [1.0, math.inf, -math.inf], [], [1e308, 1e-308, 0.0]]
)
def test_any_curve_is_drawn_without_a_warning(values: list[float]) -> None:
    curve = {"iterations": list(range(len(values))), "values": values}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        drawn = drawn_of(trial(label=" ".join(HOSTILE), curve=curve))
    assert size(drawn["experiments"])[0] > 300


def test_experiments_without_a_curve_have_no_picture() -> None:
    assert drawn_of(verdict("a", "refuted")) == {}


def printed(*experiments: dict[str, Any], width: int = 80) -> str:
    """What is printed for these."""
    report = sample.made({**sample.unhealthy(), "experiments": experiments})
    return terminal.render_experiments(report, ["r/report.md"], width)


def test_the_verdicts_are_listed_with_what_cured_it() -> None:
    text = printed(verdict("a", "confirmed"), verdict("b", "refuted"), trial())
    lines = text.splitlines()
    assert lines[0].endswith("the cause is confirmed by experiment.")
    assert lines[2] == "confirmed  The title of a (a)"
    assert lines[3] == "           for a reason."
    assert lines[4] == "refuted    The title of b (b)"
    assert "cured by   learning_rate: 0.0002 -> 2e-05" in lines
    assert lines[-2:] == ["1 experiment: 50 iterations, 2.5 seconds.", "  r/report.md"]


def test_without_a_confirmed_cause_nothing_is_called_a_cure() -> None:
    text = printed(verdict("a", "undecided"))
    assert "no cause could be confirmed" in text
    assert "cured by" not in text


def test_without_verdicts_there_was_nothing_to_try() -> None:
    assert printed().splitlines()[0].endswith("--cause tries one anyway.")


@pytest.mark.parametrize("width", [40, 80, 300])
def test_lines_fit_the_terminal(width: int) -> None:
    reason = "a long reason goes on " * 20
    body = printed(verdict("a", "refuted", reason), width=width).splitlines()[3:-2]
    assert max(map(len, body)) <= min(width, 100)


def test_text_from_a_run_cannot_steer_the_terminal() -> None:
    text = printed(verdict("a", "refuted", " ".join(["\x1b[31m", *HOSTILE])))
    assert "\x1b" not in text
