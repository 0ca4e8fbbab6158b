"""The watch, on curves as they were printed and on the logs of real runs."""

import itertools
import json
import math
import random
from collections.abc import Iterable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxdoctor.evidence.training_log import TrainingLog
from mlxdoctor.watch.alarms import Alarm, AlarmKind
from mlxdoctor.watch.growing_log import rows_of
from mlxdoctor.watch.monitor import LogRow, Watch
from tests.conftest import RUNS

#: Runs that learn, and those whose faults no loss shows.
SILENT = (
    *("healthy-masked-warmup", "healthy-noisy-batch1", "healthy-ordinary"),
    *("healthy-short-low-rate", "overfitting", "padding-supervised", "targets-too-long"),
    *("b-never-trained", "adapter-not-loaded", "evaluated-without-adapter"),
)


def reports(losses: Iterable[float], every: int = 10, **more: float) -> list[LogRow]:
    """Reports of the training loss, `every` so many iterations."""
    return [
        LogRow(step, {"train_loss": loss, **more})
        for step, loss in zip(itertools.count(every, every), losses, strict=False)
    ]


def first(rows: Iterable[LogRow], watch: Watch | None = None) -> Alarm | None:
    watch = watch or Watch()
    return next((alarm for row in rows if (alarm := watch.see(row)) is not None), None)


def logged(name: str) -> list[LogRow]:
    return rows_of(TrainingLog.read(list((RUNS / name).glob("train.*"))).main)


def falling(count: int, seed: int, noise: float = 0.05) -> list[float]:
    """A loss that falls from 2.5 towards 0.6, with noise."""
    chance = random.Random(seed)
    return [
        (0.6 + 1.9 * math.exp(-4 * i / count)) * math.exp(chance.gauss(0, noise))
        for i in range(count)
    ]


@pytest.mark.parametrize("name", SILENT)
def test_a_run_whose_log_shows_nothing_raises_nothing(name: str) -> None:
    assert first(logged(name)) is None


@pytest.mark.parametrize(
    ("name", "verdict", "latest"),
    [
        ("collapse-frequent-token", AlarmKind.DIVERGING, 30),
        ("rate-too-high-garbled", AlarmKind.DIVERGING, 150),
        ("rate-far-too-high-nan", AlarmKind.NON_FINITE, 10),
        ("no-supervised-tokens", AlarmKind.NON_FINITE, 80),
        ("gradients-blocked", AlarmKind.FROZEN, 50),
    ],
)
def test_a_faulty_run_raises_its_alarm_early(name: str, verdict: AlarmKind, latest: int) -> None:
    alarm = first(logged(name))
    assert alarm.verdict is verdict
    assert alarm.step <= latest


@pytest.mark.slow
@pytest.mark.parametrize(("noise", "most"), [(0.06, 0), (0.1, 2)])
def test_noise_alone_raises_hardly_an_alarm(noise: float, most: int) -> None:
    alarms = sum(first(reports(falling(60, seed, noise))) is not None for seed in range(200))
    assert alarms <= most


@pytest.mark.parametrize("seed", range(5))
def test_an_explosion_in_the_middle_is_seen_within_three_reports(seed: int) -> None:
    losses = falling(60, seed)
    exploded = [loss * 2 ** max(i - 29, 0) for i, loss in enumerate(losses)]
    alarm = first(reports(exploded))
    assert alarm.verdict is AlarmKind.DIVERGING
    assert alarm.step <= 330
    assert 270 <= alarm.onset <= 310


@pytest.mark.parametrize(
    ("base", "losses", "expected"),
    [
        (4.15, [9.473, 9.011, 8.91, 8.87], (20, 10)),
        # Less than half as much above it takes three reports; one that is near it clears the run,
        # and so do the bounds in nats and in ratio.
        (4.15, [5.473, 5.011, 4.91, 4.87], (30, 10)),
        (4.15, [5.473, 4.6, 4.91, 4.87], None),
        (4.3, [5.473, 5.011, 4.91, 4.87], None),
        (1.0, [1.49, 1.45, 1.44, 1.44], None),
    ],
)
def test_a_training_that_begins_far_above_the_untouched_model_diverged(
    base: float, losses: list[float], expected: tuple[int, int] | None
) -> None:
    alarm = first([LogRow(1, {"val_loss": base}), *reports(losses)])
    assert (alarm and (alarm.step, alarm.onset)) == expected


def spiked(*places: int) -> list[LogRow]:
    return reports([loss * 100 if i in places else loss for i, loss in enumerate(falling(60, 1))])


def validated(step: int, loss: float) -> LogRow:
    return LogRow(step, {"val_loss": loss})


def speeds(values: Iterable[float], **more: float) -> list[LogRow]:
    return [
        LogRow(
            10 * i,
            {"train_loss": 1 / i, "tokens_per_second": v * 100, **more}
            | {"iterations_per_second": v},
        )
        for i, v in enumerate(values, 1)
    ]


#: What it is -> reports that raise no alarm.
HARMLESS = {
    "a spike at first": spiked(3),
    "a spike": spiked(30),
    "a spike at last": spiked(58),
    "a spike of two reports": spiked(30, 31),
    "a slow rise": reports([1.0 + 0.003 * i for i in range(50)]),
    "harder than the validation rows": [
        validated(0, 4.15),
        *reports([6.77, 6.4, 6.2, 6.0, 5.8, 5.5, 5.2], 1),
    ],
    "overfitting": [
        validated(1, 5.0),
        *(
            row
            for step in range(50, 600, 50)
            for row in (*reports([1.0 - step / 700], step), validated(step, 1.4 + step / 800))
        ),
    ],
    "a loss of preferences has no level": reports(
        [2.0, 2.1, 9.0, 30.0, 90.0], chosen_reward=0.5, rejected_reward=0.1
    ),
    "a slow phase that ends": speeds([0.5] * 12 + [0.02] * 3 + [0.5] * 12),
    "half as fast": speeds([0.5] * 12 + [0.25] * 40),
    "the first steps compile": speeds([0.01] * 2 + [0.5] * 20),
    "slow for some seconds only": speeds([500.0] * 12 + [20.0] * 12),
}


@pytest.mark.parametrize("rows", HARMLESS.values(), ids=HARMLESS)
def test_what_is_no_alarm(rows: list[LogRow]) -> None:
    assert first(rows) is None


def test_a_validation_loss_above_the_untouched_models_is_harm() -> None:
    rows = [validated(1, 2.0)]
    for step in (50, 100):
        rows += [LogRow(step, {"train_loss": 1.5}), validated(step, 3.0)]
    alarm = first(rows)
    assert (alarm.verdict, alarm.step) == (AlarmKind.DIVERGING, 100)
    assert "from 2.000 to 3.000" in alarm.message


NON_FINITE, EXACT_ZERO, FROZEN = (
    AlarmKind.NON_FINITE,
    AlarmKind.EXACT_ZERO,
    AlarmKind.FROZEN,
)
#: What it is -> the column, its values every so many iterations, and the alarm: kind, step, onset.
FACTS = {
    "NaN": ("train_loss", [2.0, math.nan], 10, (NON_FINITE, 20, 20)),
    "infinite": ("train_loss", [2.0, math.inf], 10, (NON_FINITE, 20, 20)),
    "minus infinite": ("train_loss", [2.0, -math.inf], 10, (NON_FINITE, 20, 20)),
    "validation became NaN": ("val_loss", [2.1, math.nan], 10, (NON_FINITE, 20, 20)),
    "no validation rows": ("val_loss", [math.nan] * 4, 10, None),
    "scale is found": ("grad_norm", [math.inf, math.inf, 1.0, math.nan, math.nan], 1, None),
    "norms stay NaN": ("grad_norm", [math.inf, 1.0, *[math.nan] * 3], 1, (NON_FINITE, 5, 3)),
    "no gradient": ("grad_norm", [1.0, 0.0, 0.0, 0.0], 1, (FROZEN, 4, 2)),
    "two batches without one": ("grad_norm", [0.0, 0.0, 1.0, 0.0, 0.0], 1, None),
    "two zeros": ("train_loss", [2.0, 0.0, 0.0], 10, (EXACT_ZERO, 30, 20)),
    "zeros from the start": ("train_loss", [0.0, 0.0], 10, (EXACT_ZERO, 20, 10)),
    "lone zeros": ("train_loss", [2.0, 0.0, 1.9, 0.0, 1.8], 10, None),
    "rounded to zero": ("train_loss", [0.3, 0.05, 0.004, 0.0, 0.0, 0.0], 10, None),
    "rate of zero": ("learning_rate", [0.0] * 4, 10, (FROZEN, 30, 10)),
    "warm-up and end of a schedule": ("learning_rate", [0.0, 1e-5, 2e-5, *[0.0] * 4], 10, None),
    "micro-batches before the first update": ("learning_rate", [0.0] * 8, 1, None),
}


@pytest.mark.parametrize(("column", "values", "every", "expected"), FACTS.values(), ids=FACTS)
def test_facts_that_need_no_statistics(
    column: str, values: list[float], every: int, expected: tuple[AlarmKind, int, int] | None
) -> None:
    rows = [LogRow(every * place, {column: value}) for place, value in enumerate(values, 1)]
    alarm = first(rows)
    assert (alarm and (alarm.verdict, alarm.step, alarm.onset)) == expected


def test_validations_that_never_change_are_frozen() -> None:
    losses = iter(round(loss, 3) for loss in falling(60, 3))

    def run(values: Sequence[float]) -> Alarm | None:
        rows = []
        for i, value in enumerate(values):
            rows.append(LogRow(50 * i, {"val_loss": value}))
            rows.extend(LogRow(50 * i + j, {"train_loss": next(losses)}) for j in (10, 20, 30))
        return first(rows)

    # The last digit of 4.150 is not seen in the number, but in the other losses.
    alarm = run([4.15, 4.15, 4.15])
    assert (alarm.verdict, alarm.step, alarm.onset) == (AlarmKind.FROZEN, 100, 0)
    # Converged is not frozen, and neither is a coincidence.
    assert run([4.151, 1.212, 1.212, 1.212, 1.212]) is None
    assert run([4.151, 4.151, 4.149]) is None


@pytest.mark.parametrize(
    ("rows", "step"),
    [
        # An unrounded loss does not repeat by chance.
        ([validated(0, 4.150329113), *reports([4.1]), validated(50, 4.150329113)], 50),
        (reports([2.431] * 6), 50),
        # Losses that repeat later on are met by chance in a log of weeks.
        (reports([2.5, 2.3, 2.431, 2.431, 2.431, 2.2]), None),
        (reports([0.08, 0.077, *[0.076] * 30]), None),
    ],
)
def test_a_loss_that_stands_still_is_frozen_and_a_small_one_is_not(
    rows: list[LogRow], step: int | None
) -> None:
    alarm = first(rows)
    assert (alarm and (alarm.verdict, alarm.step)) == (step and (AlarmKind.FROZEN, step))


def test_a_speed_that_collapses_for_good_is_swapping() -> None:
    rows = speeds([0.5] * 12 + [0.02] * 12, peak_memory_gb=15.0)
    alarm = first(rows, Watch(1_000))
    assert alarm.verdict is AlarmKind.SWAPPING
    assert alarm.onset == 130
    assert "Compare the peak memory with the machine's" in alarm.advice
    assert "memory peaks at 15 GB" in alarm.message
    assert alarm.saved_seconds == pytest.approx((1_000 - alarm.step) / 0.02)


def test_the_speed_of_the_newer_table_is_told_by_its_tokens() -> None:
    rows = [
        LogRow(
            10 * i, {"train_loss": 2.0, "tokens_per_second": 100.0, "trained_tokens": 2000.0 * i}
        )
        for i in (1, 2)
    ]
    rows.append(LogRow(30, {"train_loss": math.nan}))
    alarm = first(rows, Watch(iterations=130))
    # 2,000 tokens in 10 iterations at 100 a second: half an iteration a second.
    assert alarm.saved_seconds == pytest.approx(200)


def test_what_is_left_out_for_speed_would_raise_no_alarm(monkeypatch: pytest.MonkeyPatch) -> None:
    curves = [logged(name) for name in (*SILENT, "collapse-frequent-token", "overfitting")]
    for seed, rise in enumerate((0.0, 0.2, 0.4, 0.7, 1.0, 1.5, 3.0)):
        start = falling(60, seed, 0.02)
        climb = [start[-1] + rise * (start[0] - start[-1]) * min(i / 10, 1) for i in range(30)]
        curves.append(reports([*start, *climb]))
        curves.append(
            [LogRow(row.step, {"val_loss": row.values["train_loss"]}) for row in curves[-1]]
        )
    quick = [first(curve) for curve in curves]
    monkeypatch.setattr("mlxdoctor.watch.monitor.WAY_BACK", -math.inf)
    assert [first(curve) for curve in curves] == quick
    assert {alarm is None for alarm in quick} == {True, False}


_NUMBERS = st.floats() | st.sampled_from([0.0, 1.0, 2.5, math.nan, math.inf, 5e-324, 1.7e308])
_NAMES = st.sampled_from(
    (
        *("train_loss", "val_loss", "learning_rate", "grad_norm", "tokens_per_second"),
        *("iterations_per_second", "trained_tokens", "peak_memory_gb", "chosen_reward"),
    )
)


@pytest.mark.slow
@settings(deadline=None)
@given(
    st.lists(
        st.builds(LogRow, st.integers(-5, 60) | st.integers(), st.dictionaries(_NAMES, _NUMBERS)),
        max_size=40,
    )
)
def test_whatever_a_log_says_the_watch_goes_on(rows: list[LogRow]) -> None:
    watch = Watch(iterations=50)
    for row in rows:
        alarm = watch.see(row)
        if alarm is not None:
            json.dumps(alarm.to_dict(), allow_nan=False)
            assert alarm.savings
