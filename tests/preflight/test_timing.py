"""Time to the end: what is fitted, what is counted, and the range."""

from dataclasses import replace

import pytest

from mlxdoctor.preflight.timing import PlannedLength, TimedStep, time_to_end

PLAN = PlannedLength(iterations=1000, batch_size=4, widths=[128] * 10)


def step(tokens: int, rows: int = 4) -> TimedStep:
    """A machine that takes 20 ms, 0.1 ms a token, and 1 ns a token and token before it."""
    count = rows * tokens
    return TimedStep(rows, tokens, 0.02 + 1e-4 * count + 1e-9 * count * tokens)


def test_without_a_timed_step_nothing_is_said() -> None:
    assert time_to_end(PLAN, []) is None
    assert time_to_end(replace(PLAN, iterations=0), [step(128)]) is None
    assert time_to_end(replace(PLAN, widths=[]), [step(128)]) is None


@pytest.mark.parametrize("lengths", [[128], [64, 256], [64, 128, 512], [32, 64, 128, 256, 512]])
def test_steps_of_several_lengths_give_the_time_of_another(lengths: list[int]) -> None:
    found = time_to_end(PLAN, [step(one) for one in lengths])
    assert found is not None
    assert found.seconds == pytest.approx(1000 * step(128).seconds, rel=0.02)
    assert found.low < found.seconds < found.high


def test_rows_of_mixed_length_count_as_they_come() -> None:
    plan = replace(PLAN, widths=[32, 32, 32, 480])
    found = time_to_end(plan, [step(32), step(96), step(480)])
    mean = (3 * step(32).seconds + step(480).seconds) / 4
    assert found is not None
    assert found.step == pytest.approx(mean, rel=0.02)
    low, high = found.step_range
    assert 0.7 * mean < low < mean < high < 1.3 * mean


def test_validations_are_those_of_mlx_lm() -> None:
    plan = replace(PLAN, validation_widths=[128] * 40)
    # Before the first iteration, at 200, 400, 600, 800 and the last.
    assert plan.validations == 6
    assert plan.batches_a_validation == 25
    assert replace(plan, val_batches=-1).batches_a_validation == 40
    assert replace(plan, iterations=1).validations == 1
    assert replace(plan, iterations=150).validations == 2
    timed = TimedStep(4, 128, step(128).seconds / 4)
    found = time_to_end(plan, [step(128)], validated=[timed])
    assert found is not None
    assert found.validation == pytest.approx(6 * 25 * timed.seconds)
    unknown = time_to_end(plan, [step(128)])
    assert unknown is not None
    assert unknown.low < found.seconds < unknown.high


def test_saves_count_where_one_was_timed() -> None:
    found = time_to_end(PLAN, [step(128)], save_seconds=2.0)
    assert found is not None
    assert found.saving == 22.0


def test_the_range_widens_beyond_what_was_timed() -> None:
    near = time_to_end(PLAN, [step(128)])
    far = time_to_end(replace(PLAN, widths=[1024]), [step(128)])
    assert near is not None
    assert far is not None
    assert far.high / far.seconds > near.high / near.seconds


def test_steps_that_disagree_widen_the_range() -> None:
    noisy = [replace(step(128), seconds=step(128).seconds * factor) for factor in (0.6, 1.4)]
    found = time_to_end(PLAN, noisy)
    assert found is not None
    assert found.high / found.low > 2
