"""What the twin leaves undone when its time is over."""

import math
import time
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mlxdoctor.evidence.kind import Missing
from mlxdoctor.run import Run
from mlxdoctor.twin import masked_loss
from mlxdoctor.twin.reach import FEWEST_HELD, Reach, _Losses, _Measuring
from tests.conftest import BASE, FIXTURES
from tests.reproduce.real import trained


def test_nothing_more_is_measured_after_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = []

    def losses_of(
        _model: Any, batches: Iterable[int], _loss: Any
    ) -> tuple[list[float], list[float]]:
        taken = list(batches)
        measured.extend(taken)
        return [1.0] * len(taken), [1.0] * len(taken)

    monkeypatch.setattr(masked_loss, "losses_of", losses_of)
    batches: Any = SimpleNamespace(held=list(range(10)), trained=list(range(10)))
    with pytest.raises(Missing, match="the time was over"):
        _Measuring._losses(batches, None, 0.0, time.monotonic() - 1.0)
    assert measured == [0]
    # Without a deadline the fewest are measured, whatever the time.
    assert len(_Measuring._losses(batches, None, 0.0, math.inf).held) == FEWEST_HELD


def test_what_a_faulty_reading_explains_is_not_looked_for() -> None:
    nothing: Any = None
    for sound in (False, True):
        replay: Any = SimpleNamespace(
            reading=SimpleNamespace(sound=sound), scale=None, rearranged="", is_step_for_step=False
        )
        measuring = _Measuring(nothing, nothing, nothing, nothing, replay, 30, math.inf)
        assert measuring._is_explained is not sound
        assert sound or measuring._whole(nothing) == (None, None)


@pytest.mark.parametrize(
    ("full", "part", "expected"),
    [
        (0.2, None, (0.2, None)),
        # Of a part of its updates a loss tells that is far below the run's.
        (None, 0.2, (0.2, 210)),
        (None, 0.4, (None, None)),
        (None, None, (None, None)),
    ],
)
def test_all_of_the_run_s_updates_or_as_many_as_there_is_time_for(
    monkeypatch: pytest.MonkeyPatch,
    full: float | None,
    part: float | None,
    expected: tuple[float | None, int | None],
) -> None:
    def losses(mean: float) -> _Losses:
        return _Losses(np.array([mean]), np.array([1.0]), mean)

    def after(self: _Measuring, settings: Any, updates: int, share: float | None = None) -> Any:
        assert updates == 300
        if share is not None and part is not None:
            self.updates = 210
        mean = full if share is None else part
        return None if mean is None else losses(mean)

    monkeypatch.setattr("mlxdoctor.twin.reach.says_how", lambda run: True)
    monkeypatch.setattr(_Measuring, "_after", after)
    nothing: Any = None
    replay: Any = SimpleNamespace(reading=None, scale=None, rearranged="", is_step_for_step=False)
    settings: Any = SimpleNamespace(iters=300, grad_accumulation_steps=1)
    measuring = _Measuring(nothing, nothing, settings, nothing, replay, 30, math.inf)
    assert measuring._whole(losses(1.4)) == expected
    assert measuring.updates == 30


@pytest.mark.slow
def test_a_model_that_answers_wrongly_is_held_against_all_updates(tmp_path: Path) -> None:
    # It ends far below what 30 updates reach, and above what as many updates of all modules do.
    run = trained(tmp_path / "run", iters=150, learning_rate=3e-4, keys=["self_attn.q_proj"])
    reach = Run.discover([run], base=BASE, data=FIXTURES / "data/geography").need(Reach)
    assert reach.updates == 150
    assert reach.reached < 0.5 * reach.tuned < reach.tuned < 2.0
    assert reach.setting == "lora_parameters.keys"
    assert reach.before == "self_attn.q_proj"
