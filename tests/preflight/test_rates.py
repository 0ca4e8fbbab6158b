"""A planned run's first step, and the range test: the model restored, failing rates seen."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.preflight.small_run import SOUND, small_run

pytestmark = pytest.mark.slow


def arrays(model: Any) -> dict[str, bytes]:
    """The bytes of every parameter."""
    import numpy as np
    from mlx.utils import tree_flatten

    return {name: np.array(one).tobytes() for name, one in tree_flatten(model.parameters())}


def test_start_is_restored_bit_for_bit(tmp_path: Path) -> None:
    import mlx.core as mx

    from mlxdoctor.twin.trials import trials_of

    run = small_run(tmp_path)
    before = arrays(run.model)
    state: Any = mx.random.state
    key = state[0].tolist()
    with trials_of(run, 4, 2) as trials:
        at = partial(trials.at, updates=4, measure=trials.held_means)
        fresh, moved = at(1e-2), at(3.0)
        assert at(1e-2) == fresh
        assert fresh[1] != moved[1]
        assert int(trials.optimizer.state["step"].item()) == 0
    assert arrays(run.model) == before
    assert state[0].tolist() == key


def test_trial_is_the_run(tmp_path: Path) -> None:
    """The losses of a trial are those of the run's own first updates."""
    from mlxdoctor.twin import train
    from mlxdoctor.twin.trials import trials_of
    from tests.twin.small import small_model, small_parts

    run = small_run(tmp_path, grad_accumulation_steps=2, learning_rate=3e-2)
    parts = small_parts(run.settings, small_model(), run.rows)
    steps = train(run.settings, parts=parts).steps
    with trials_of(run, 3, 1) as trials:
        losses, _ = trials.at(3e-2, 3, lambda: None)
    pairs = [(steps[at].train_loss + steps[at + 1].train_loss) / 2 for at in (0, 2, 4)]
    assert losses == pytest.approx(pairs, rel=1e-5)


def test_range_of_the_small_model(tmp_path: Path) -> None:
    from mlxdoctor.twin.rates import MARGIN, range_test

    run = small_run(tmp_path, iters=300)
    before = arrays(run.model)
    test = range_test(run, seconds=60)
    rates = test.rates
    assert arrays(run.model) == before
    assert not rates.untold
    assert rates.largest is not None
    assert rates.fails_at is not None
    assert rates.largest < rates.fails_at
    assert rates.advised == float(f"{rates.largest / MARGIN:.2g}")
    assert rates.place in {"sound", "near-the-limit", "low"}
    assert any(point.reversed for point in rates.points)
    assert test.longest is not None
    assert test.longest[2] > 0
    assert len(test.trained) > 24
    assert test.validated
    assert [one.rate for one in rates.points] == sorted(one.rate for one in rates.points)


def test_longest_batch_is_the_widest(tmp_path: Path) -> None:
    from mlxdoctor.twin.trials import trials_of

    run = small_run(tmp_path, max_seq_length=16)
    with trials_of(run, 1, 1) as trials:
        longest = trials.longest()
    assert longest[:2] == (2, 15)


def test_too_few_validation_rows_leave_training_rows(tmp_path: Path) -> None:
    from dataclasses import replace

    from mlxdoctor.twin.trials import trials_of

    run = small_run(tmp_path)
    for few in (0, 1, 5, 6):
        rows = replace(run.rows, valid=run.rows.valid[:few])
        with trials_of(replace(run, rows=rows), 2, 3) as trials:
            assert trials.split == ("validation" if few == 6 else "training")
            assert len(trials.held) == 3


def test_what_can_not_be_told_is_said(tmp_path: Path) -> None:
    from mlxdoctor.twin.rates import range_test

    for changes, seconds, why in (
        ({}, 0.01, "the time does not do"),
        ({"optimizer": "adafactor"}, 20, "Adafactor"),
    ):
        rates = range_test(small_run(tmp_path, **changes), seconds=seconds).rates
        assert why in rates.untold
        assert rates.largest is rates.advised is None
        assert rates.place == "unknown"


def test_schedule_counts_with_its_highest_rate(tmp_path: Path) -> None:
    from mlxdoctor.twin.rates import configured_rate
    from tests.twin.small import small_settings

    schedule = {"name": "cosine_decay", "arguments": [4e-3, 100], "warmup": 5}
    settings = small_settings(tmp_path, lr_schedule=schedule, iters=40)
    assert configured_rate(settings) == pytest.approx(4e-3)


def test_diverging_rate_is_seen_on_the_fixture_base(tmp_path: Path) -> None:
    """DESIGN.md: 2e-4 learns there, 2e-3 ends garbled, 2e-2 is lost."""
    from mlxdoctor.preflight.configuration import planned_config
    from mlxdoctor.preflight.steps import prepared_run
    from mlxdoctor.twin.rates import SHARE
    from mlxdoctor.twin.trials import changes, trials_of

    change = {}
    with trials_of(
        prepared_run(planned_config(None, {**SOUND, "adapter_path": str(tmp_path)})), 10, 4
    ) as trials:
        pairs = list(trials.held_losses())
        before = [loss for loss, _ in pairs]
        tokens = [count for _, count in pairs]
        for rate in (2e-4, 2e-3, 2e-2):
            change[rate], noise = changes(
                trials.at(rate, 10, trials.held_means)[1] or (), before, tokens
            )
            assert math.isfinite(noise)
    assert change[2e-4] < -1.5
    assert all(not change[rate] <= SHARE * change[2e-4] for rate in (2e-3, 2e-2))


def test_the_first_step_of_a_sound_run_has_no_warning(tmp_path: Path) -> None:
    """It is made with mlx-lm's own parts, and judged by the checks of a step."""
    from mlxdoctor.preflight.configuration import planned_config
    from mlxdoctor.preflight.steps import first_step, prepared_run
    from mlxdoctor.probe.probing import judge

    run = prepared_run(planned_config(None, {**SOUND, "adapter_path": str(tmp_path)}))
    before = arrays(run.model)
    step = first_step(run)
    assert step.planned
    assert arrays(run.model) == before
    severities = {finding.code: finding.severity.value for finding in judge(step).findings}
    assert set(severities.values()) == {"info"}
    # mlx-lm's own habit, which no configuration changes.
    assert "step-alignment.padding-target" in severities
