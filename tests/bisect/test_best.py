"""The best checkpoint: by the loss of held-out answers, or by the log's validations."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlxdoctor.bisect.answer import answers, as_object, best_sentence, render, sentence
from mlxdoctor.bisect.behaviour import Behaviour, Limits
from mlxdoctor.bisect.table import Bisection, SaveRow, best_logged, best_measured, bisect
from mlxdoctor.cli import main
from mlxdoctor.judge.save_flaws import Standing
from mlxdoctor.run import Run
from tests.bisect.states import history, state
from tests.conftest import FIXTURES, RUNS

LIMITS = Limits()
BASE = np.full(32, 5.0)
NOISE = np.random.default_rng(0).normal(size=32) * 0.01


def saved(loss: float, spread: float = 0.0) -> Behaviour:
    """A save with this mean loss, and noise of its own on the rows."""
    return Behaviour(np.full(32, loss) + spread * NOISE, BASE)


def rows(saves: Sequence[Behaviour | None], good: Sequence[int]) -> list[SaveRow]:
    """Rows of a table with these behaviours, of which those at the places are good."""
    nothing: Any = None
    return [
        SaveRow(nothing, Standing.GOOD if place in good else Standing.BROKEN, save)
        for place, save in enumerate(saves)
    ]


def test_the_lowest_of_the_good_ones_is_the_best() -> None:
    found = best_measured(rows(list(map(saved, (3.0, 1.5, 1.2, 1.6))), [0, 1, 3]), LIMITS)
    assert found is not None
    assert (found.place, found.last, found.rows) == (1, 3, 32)
    assert found.is_clear


def test_a_difference_within_chance_is_said_to_be_that() -> None:
    noisy = saved(1.501, spread=20.0)
    noisy = Behaviour(noisy.losses - noisy.losses.mean() + 1.501, BASE)
    found = best_measured(rows([saved(1.5), noisy], [0, 1]), LIMITS)
    assert found is not None
    assert found.place == 0
    assert not found.is_clear


def test_the_newest_may_be_the_best_and_none_may_be_good() -> None:
    found = best_measured(rows([saved(3.0), saved(2.0)], [0, 1]), LIMITS)
    assert found is not None
    assert (found.place, found.is_clear) == (1, False)
    assert best_measured(rows([saved(3.0)], []), LIMITS) is None
    assert best_measured(rows([None], [0]), LIMITS) is None
    unfinite = Behaviour(np.array([np.nan]), BASE[:1])
    assert best_measured(rows([unfinite], [0]), LIMITS) is None


def test_the_log_compares_at_least_two() -> None:
    found = best_logged(rows([None] * 4, range(4)), [1.6, None, 1.4, 1.5])
    assert found is not None
    assert (found.place, found.how, found.last, found.is_clear) == (2, "logged", 3, False)
    assert best_logged(rows([None] * 2, [0, 1]), [1.6, None]) is None
    assert best_logged(rows([None] * 2, [0, 1]), [1.6, 1.6]) is None
    assert best_logged(rows([None] * 2, [0]), [1.6, 1.5]) is None


def static(folder: Path) -> Bisection:
    return bisect(Run.discover([folder], allow_model=False), LIMITS)


def test_without_models_the_log_says_it_and_that_is_said() -> None:
    found = static(RUNS / "overfitting")
    assert found.best is not None
    assert found.rows[found.best.place].path.name == "0000500_adapters.safetensors"
    # As in the log: validations 500, 1000 and 1500, the last also for the final file.
    assert found.best.losses == {0: 1.520, 1: 1.595, 2: 1.661, 3: 1.661}
    told = best_sentence(found)
    assert told.startswith("Best checkpoint by the log: ")
    assert "1.520, the lowest of 4 checkpoints that have one, and 1.661 at the last" in told
    assert "no model was run (because of --no-generate)" in told
    assert as_object(found)["best"]["from"] == "logged"


def test_nothing_that_compares_them_is_said(tmp_path: Path) -> None:
    history(tmp_path, [state(0.1), state(0.2, 1)])
    found = static(tmp_path)
    assert found.best is None
    assert best_sentence(found) == (
        "Best checkpoint: not known; no model was run (because of --no-generate), and there is "
        "no log."
    )
    assert as_object(found)["best"] is None
    assert as_object(found)["answers"] == []


def test_where_none_is_good_none_is_best() -> None:
    assert "not known; none is good" in best_sentence(static(RUNS / "collapse-frequent-token"))


@pytest.fixture(scope="module")
def overfitted() -> Bisection:
    run = Run.discover([RUNS / "overfitting"], base=FIXTURES / "base", allow_model=True)
    return bisect(run, LIMITS)


@pytest.mark.slow
def test_an_overfitted_run_has_an_earlier_best(overfitted: Bisection) -> None:
    best = overfitted.best
    assert best is not None
    assert overfitted.rows[best.place].path.name == "0000500_adapters.safetensors"
    assert best.is_clear
    assert best.losses[0] == min(best.losses.values())
    assert overfitted.newest_is_good
    assert sentence(overfitted).endswith("of 4 files is broken, but an earlier one is better.")
    told = best_sentence(overfitted)
    assert f"{best.losses[0]:.3f}, the lowest of 4 checkpoints on 32 validation rows" in told
    assert f"against {best.losses[3]:.3f} at adapters.safetensors (higher by more than" in told


@pytest.mark.slow
def test_the_last_good_and_the_best_answer_three_prompts(overfitted: Bisection) -> None:
    assert len(answers(overfitted)) == 3
    assert overfitted.best is not None
    good, best = overfitted.last_good, overfitted.best.place
    assert good is not None
    for asked in answers(overfitted):
        files = [str(overfitted.rows[place].path) for place in (good, best)]
        assert list(asked["answers"]) == files
        assert len(set(asked["answers"].values())) == 2
        assert asked["expected"] is not None
    text = render(overfitted, is_markdown=False)
    assert text.count("- Prompt: ") == 3
    assert text.count("  - best, 0000500_adapters.safetensors: ") == 3


@pytest.mark.slow
def test_no_text_withholds_prompts_and_answers(
    overfitted: Bisection, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["bisect", str(RUNS / "overfitting"), "--base", str(FIXTURES / "base")]
    assert main([*command, "--no-text", "--format", "json"]) == 0
    printed = capsys.readouterr().out
    assert json.loads(printed)["answers"] == []
    assert json.loads(printed)["best"]["file"].endswith("0000500_adapters.safetensors")
    for asked in answers(overfitted):
        texts = (asked["prompt"], *asked["answers"].values())
        assert not any(text in printed for text in texts)
