"""The range test on a model: its start restored, and rates that fail are seen to fail."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import FIXTURES
from tests.preflight.small_run import small_run

pytestmark = pytest.mark.slow


def arrays(model: Any) -> dict[str, bytes]:
    """The bytes of every parameter."""
    import numpy as np
    from mlx.utils import tree_flatten

    return {name: np.array(one).tobytes() for name, one in tree_flatten(model.parameters())}


def test_start_is_restored_bit_for_bit(tmp_path: Path) -> None:
    import mlx.core as mx

    from mlxdoctor.preflight.rate_trials import fingerprint, trials_of

    run = small_run(tmp_path)
    before, checksum = arrays(run.model), fingerprint(run.model)
    state: Any = mx.random.state
    key = state[0].tolist()
    with trials_of(run, 4, 2) as trials:
        fresh = trials.at(1e-2)
        moved = trials.at(3.0)
        assert trials.at(1e-2).losses == fresh.losses
        assert trials.at(1e-2).held == fresh.held != moved.held
        assert int(trials.optimizer.state["step"].item()) == 0
    assert arrays(run.model) == before
    assert fingerprint(run.model) == checksum
    assert state[0].tolist() == key


def test_checksum_sees_one_changed_value(tmp_path: Path) -> None:
    from mlx.utils import tree_flatten, tree_unflatten

    from mlxdoctor.preflight.rate_trials import fingerprint

    run = small_run(tmp_path)
    before = fingerprint(run.model)
    name, array = tree_flatten(run.model.trainable_parameters())[0]
    array[0, 0] = array[0, 0] + 1e-6
    run.model.update(tree_unflatten([(name, array)]))
    assert fingerprint(run.model) != before


def test_placebo_moves_nothing(tmp_path: Path) -> None:
    from mlxdoctor.preflight.rate_trials import trials_of

    run = small_run(tmp_path)
    with trials_of(run, 4, 2) as trials:
        before = tuple(loss for loss, _ in trials.held_losses())
        assert trials.at(0.0).held == before


def test_trial_is_the_run(tmp_path: Path) -> None:
    """The losses of a trial are those of the run's own first updates."""
    from mlxdoctor.preflight.rate_trials import trials_of
    from mlxdoctor.train import train
    from tests.train.small import small_model, small_parts

    run = small_run(tmp_path, grad_accumulation_steps=2, learning_rate=3e-2)
    parts = small_parts(run.settings, small_model(), run.rows)
    steps = train(run.settings, parts=parts).steps
    with trials_of(run, 3, 1) as trials:
        losses = trials.at(3e-2).losses
    pairs = [(steps[at].train_loss + steps[at + 1].train_loss) / 2 for at in (0, 2, 4)]
    assert losses == pytest.approx(pairs, rel=1e-5)


def test_range_of_the_small_model(tmp_path: Path) -> None:
    from mlxdoctor.preflight.rate_search import RateLimits
    from mlxdoctor.preflight.rates import advised_rate, range_test

    found = range_test(small_run(tmp_path), seconds=60)
    assert found.restored
    assert not found.untold
    assert found.largest_that_learns is not None
    assert found.fails_at is not None
    assert found.largest_that_learns < found.fails_at
    assert found.advised == advised_rate(found.largest_that_learns, RateLimits())
    assert found.place in {"sound", "near-limit", "low"}
    assert found.order_noise is not None
    assert found.longest is not None
    assert found.longest.peak_bytes > 0
    assert found.total_updates == len(found.costs)
    assert [one.rate for one in found.points] == sorted(one.rate for one in found.points)


def test_longest_batch_is_the_widest(tmp_path: Path) -> None:
    from mlxdoctor.preflight.rate_trials import trials_of

    run = small_run(tmp_path, max_seq_length=16)
    with trials_of(run, 1, 1) as trials:
        longest = trials.longest()
    assert (longest.rows, longest.width) == (2, 16)


def test_too_few_validation_rows_leave_training_rows(tmp_path: Path) -> None:
    from dataclasses import replace

    from mlxdoctor.preflight.rate_trials import trials_of

    run = small_run(tmp_path)
    for few in (0, 1, 5, 6):
        rows = replace(run.rows, valid=run.rows.valid[:few])
        with trials_of(replace(run, rows=rows), 2, 3) as trials:
            assert trials.of_validation is (few == 6)
            assert len(trials.held) == 3


def test_time_that_does_not_do_is_said(tmp_path: Path) -> None:
    from mlxdoctor.preflight.rates import range_test

    found = range_test(small_run(tmp_path), seconds=0.01)
    assert "the time does not do" in found.untold
    assert found.largest_that_learns is found.advised is None
    assert found.place == "unknown"
    assert found.restored


def test_optimizer_that_ignores_the_rate_is_said(tmp_path: Path) -> None:
    from mlxdoctor.preflight.rates import range_test

    found = range_test(small_run(tmp_path, optimizer="adafactor"), seconds=20)
    assert "Adafactor" in found.untold
    assert found.largest_that_learns is None


def test_schedule_counts_with_its_highest_rate(tmp_path: Path) -> None:
    from mlxdoctor.preflight.rates import configured_rate
    from tests.train.small import small_settings

    schedule = {"name": "cosine_decay", "arguments": [4e-3, 100], "warmup": 5}
    settings = small_settings(tmp_path, lr_schedule=schedule, iters=40)
    assert configured_rate(settings) == pytest.approx(4e-3)


def test_diverging_rate_is_seen_on_the_fixture_base(tmp_path: Path) -> None:
    """DESIGN.md: 2e-4 learns there, 2e-3 ends garbled, 2e-2 is lost."""
    from mlxdoctor.preflight.prepared import prepared_run
    from mlxdoctor.preflight.rate_search import RateLimits, changes
    from mlxdoctor.preflight.rate_trials import trials_of
    from mlxdoctor.train import Settings

    settings = Settings.from_values(
        {
            "model": str(FIXTURES / "base"),
            "data": str(FIXTURES / "data" / "geography"),
            "adapter_path": str(tmp_path),
            "num_layers": 4,
            "max_seq_length": 256,
            "mlxdoctor": {"mode": "parity"},
        }
    )
    found = {}
    with trials_of(prepared_run(settings), 10, 4) as trials:
        pairs = list(trials.held_losses())
        before = [loss for loss, _ in pairs]
        tokens = [count for _, count in pairs]
        for rate in (2e-4, 2e-3, 2e-2):
            found[rate], noise = changes(trials.at(rate).held, before, tokens)
            assert math.isfinite(noise)
    share = RateLimits().share
    assert found[2e-4] < -1.5
    assert all(not found[rate] <= share * found[2e-4] for rate in (2e-3, 2e-2))
