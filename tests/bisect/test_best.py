"""The best checkpoint, by the loss of held-out answers."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlxdoctor.bisect.answer import as_object, best_sentence, sentence
from mlxdoctor.bisect.behaviour import Behaviour
from mlxdoctor.bisect.table import best_of
from mlxdoctor.judge.save_flaws import SaveVerdict, Standing
from tests.bisect.states import bisected, history, state
from tests.conftest import RUNS

BASE = np.full(32, 5.0)
NOISE = np.random.default_rng(0).normal(size=32) * 0.01


def saved(loss: float, spread: float = 0.0) -> Behaviour:
    """A save with this mean loss, and noise of its own on the rows."""
    return Behaviour(np.full(32, loss) + spread * NOISE, BASE)


def verdicts(good: Sequence[int], count: int = 4) -> list[SaveVerdict]:
    """So many saves, of which those at the places are good."""
    nothing: Any = None
    return [
        SaveVerdict(nothing, Standing.GOOD if place in good else Standing.BROKEN)
        for place in range(count)
    ]


def measured(good: Sequence[int], *saves: Behaviour) -> tuple[int, int, int, bool] | None:
    """The best of measured saves: its place, the last one, the rows, and whether it is clear."""
    best = best_of(verdicts(good), dict(enumerate(saves)))
    return best and (best.place, best.last, best.rows, best.is_clear)


def test_the_lowest_of_the_good_ones_is_the_best() -> None:
    assert measured([0, 1, 3], *map(saved, (3.0, 1.5, 1.2, 1.6))) == (1, 3, 32, True)
    noisy = saved(1.501, spread=20.0)
    within_chance = Behaviour(noisy.losses - noisy.losses.mean() + 1.501, BASE)
    assert measured([0, 1], saved(1.5), within_chance) == (0, 1, 32, False)
    assert measured([0, 1], saved(3.0), saved(2.0)) == (1, 1, 32, False)
    assert measured([], saved(3.0)) is None
    assert measured([0], Behaviour(np.array([np.nan]), BASE[:1])) is None


def test_without_models_the_table_has_the_log_s_validations() -> None:
    found = bisected(RUNS / "overfitting")
    assert found.best is None
    # As in the log: validations 500, 1000 and 1500, the last also for the final file.
    saves = as_object(found)["checkpoints"]
    assert [save["logged_validation_loss"] for save in saves] == [1.520, 1.595, 1.661, 1.661]
    assert "No model was run: because of --no-generate." in as_object(found)["notes"]


def test_nothing_that_compares_them_is_said(tmp_path: Path) -> None:
    history(tmp_path, [state(0.1), state(0.2, 1)])
    found = bisected(tmp_path)
    assert found.best is None
    assert best_sentence(found) == "Best checkpoint: not known; no held-out loss was measured."
    assert as_object(found)["best"] is None


def test_where_none_is_good_none_is_best() -> None:
    assert "not known; none is good" in best_sentence(bisected(RUNS / "collapse-frequent-token"))


@pytest.mark.slow
def test_an_overfitted_run_has_an_earlier_best() -> None:
    overfitted = bisected(RUNS / "overfitting", model=True)
    best = overfitted.best
    assert overfitted.rows[best.place].path.name == "0000500_adapters.safetensors"
    assert best.is_clear
    assert best.losses[0] == min(best.losses.values())
    assert overfitted.newest_is_good
    assert sentence(overfitted).endswith("of 4 files is broken, but an earlier one is better.")
    told = best_sentence(overfitted)
    assert f"{best.losses[0]:.3f}, the lowest of 4 checkpoints on 32 validation rows" in told
    assert f"against {best.losses[3]:.3f} at adapters.safetensors (higher by more than" in told
