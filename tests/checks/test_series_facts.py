"""Patterns in any column of a log."""

from __future__ import annotations

import math
import re
from functools import partial
from importlib.resources import files
from pathlib import Path

import pytest

from mlxdoctor.evidence.training_log import TrainingLog
from mlxdoctor.judge.curve import loss_figures
from mlxdoctor.judge.series_table import Columns, SeriesTable
from tests.checks.log_evidence import LogWriter, decay, finding, found, judge
from tests.conftest import check_called

series_facts = check_called("series-facts")
#: Columns whose figures the sentences about another one show.
TABLES = sorted(path.name for path in Path(str(files("mlxdoctor.checks"))).glob("*.toml"))
NAMED = ("train_loss", "loss", "margin", "length", "cut_off", "reward", "peak_memory_gb")


def column(logs: LogWriter, name: str, *values: object, more: str = "") -> TrainingLog:
    """A log with a column of these values, every ten iterations."""
    return logs.text(
        *(f"Iter {i}0: Train loss 2.0, {name} {value}{more}" for i, value in enumerate(values, 1))
    )


@pytest.mark.parametrize("name", TABLES)
def test_every_entry_names_figures_that_there_are(logs: LogWriter, name: str) -> None:
    """A misspelt figure in the table would never be reached."""
    losses = [2.0, 0.0, 9.0, math.nan, 2.1, 2.0, 1.9, 2.0, 50.0, 2.0, 1.9]
    # The watch alone knows how long reports took.
    known = {"series", "unit", "onset", "jump_seconds"}
    for values in ([*losses, 0.0], [*losses, 0.5], [2.431] * 8):
        log = logs.losses(values, {1: 2.0, 50: 1.9})
        columns = Columns(log.main.series, partial(loss_figures, log.main))
        known |= columns.figures("train_loss").keys() | columns.figures("val_loss").keys()
    # Other checks name their own figures in their source.
    own = files("mlxdoctor.checks").joinpath(name.replace(".toml", ".py")).read_text("utf-8")
    known |= set(re.findall(r"[\"_](\w+)\"", own))
    others = {f"{other}_{figure}" for other in NAMED for figure in known}
    for pattern in SeriesTable.read(name).patterns:
        bounds = [*pattern.least, pattern.most, *pattern.warning, *pattern.error]
        bounds += pattern.alarm.least if pattern.alarm is not None else ()
        bounds += [*pattern.given.values(), *pattern.unless.values()]
        used = {figure for each in bounds for figure in each} | ({pattern.onset} - {""})
        assert used <= known, pattern.code
        assert pattern.shown <= known | others, pattern.code


@pytest.mark.parametrize(
    ("losses", "val", "severity"),
    [
        ([2.0 - 0.1 * i for i in range(15)] + [0.6 + 0.1 * i for i in range(20)], {}, "error"),
        ([*decay(20, 3.0, 1.0), *decay(20, 1.0, 3.0)], {}, "error"),
        ([*decay(40, 6.0, 1.5), *decay(30, 4.5, 4.0, seed=1)], {1: 6.1}, "error"),
        ([*decay(30, 3.0, 1.0), *[1.0 + 0.08 * i for i in range(14)]], {}, "warning"),
        # A third of the way, a small step, a rise of the last two reports only.
        ([*decay(30, 3.0, 1.0), *[1.0 + 0.05 * i for i in range(14)]], {}, None),
        ([*decay(40, 6.0, 1.5), *decay(30, 1.75, 1.75, seed=1)], {1: 6.1}, None),
        ([*decay(30, 3.0, 1.0), 2.8, 2.9], {}, None),
        # Rows that grow harder leave the validation loss low.
        (
            [*decay(20, 3.0, 1.0), *[1.0 + 0.1 * i for i in range(14)]],
            {1: 3.0, 200: 1.4, 340: 1.3},
            None,
        ),
    ],
)
def test_a_loss_that_rose_again(
    logs: LogWriter, losses: list[float], val: dict[int, float], severity: str | None
) -> None:
    signs = found(judge(series_facts, logs.losses(losses, val)))
    assert signs.get("loss-rose-again") == severity


def test_the_loss_of_pairs_may_rise_again(logs: LogWriter) -> None:
    losses = [*decay(20, 3.0, 1.0), *decay(20, 1.0, 3.0)]
    log = logs.text(*(f"Iter {i}: loss {one}, margin 0.1" for i, one in enumerate(losses)))
    assert "loss-rose-again" not in found(judge(series_facts, log))


@pytest.mark.parametrize(
    ("values", "symptoms"),
    [
        (("0.0", "0.0", "0.0"), {"gradient-zero": "error"}),
        (("0.0", "0.0", "1.0", "1.0"), {"gradient-zero": "warning"}),
        (("0.0", "0.0", "1.0", "1.0", "1.0"), {}),
        (("nan", "nan", "nan"), {"gradient-never-finite": "error"}),
        (("nan",), {"gradient-not-finite": "warning"}),
        (("1.0", "inf", "1.0", "2.0"), {"gradient-not-finite": "warning"}),
        ((*["4.2"] * 89, *["nan"] * 11), {"gradient-not-finite": "error"}),
        ((*["4.2"] * 97, *["nan"] * 3), {"gradient-not-finite": "warning"}),
        (("1.0", "2.0"), {}),
        # Two reports, three, and many: one that is far above what is usual.
        (("5.0", "18940"), {"gradient-exploded": "warning"}),
        (("5.0", "4.0", "4.5", "4.0", "1.8e8"), {"gradient-exploded": "warning"}),
        ((*["4.2"] * 8, "421.0"), {"gradient-exploded": "warning"}),
        ((*["4.2"] * 8, "419.0"), {}),
        ((*["0.1"] * 8, "90.0"), {}),
        # Sound runs begin high.
        (("5044.0", *["4.2"] * 12), {}),
    ],
)
def test_gradient_norms(logs: LogWriter, values: tuple[str, ...], symptoms: dict[str, str]) -> None:
    assert found(judge(series_facts, column(logs, "grad_norm", *values))) == symptoms


@pytest.mark.parametrize(
    ("lines", "severity"),
    [
        (
            (
                "Iter 40: SKIPPED non-finite batch (loss 1.23, norm nan) -- weights untouched",
                "Iter 400: Train loss 1.2680, LR 1.950e-06, grad_norm 3.5, skipped 1",
            ),
            "info",
        ),
        (("Iter 40: Train loss 1.2, grad_norm 3.5, skipped 10",), "warning"),
        (("Iter 39: Train loss 4.2, grad_norm 3.5, skipped 26",), "error"),
        (("Iter 40: Train loss 1.2, grad_norm 3.5, skipped 0",), None),
    ],
)
def test_skipped_batches(logs: LogWriter, lines: tuple[str, ...], severity: str | None) -> None:
    assert found(judge(series_facts, logs.text(*lines))).get("batches-skipped") == severity


@pytest.mark.parametrize(
    ("seconds", "hit"),
    [
        (("0.000", "0.000"), True),
        (("0.000", "0.000", "0.7"), True),
        (("0.000",), True),
        (("0.001", "0.001"), False),
        (("0.000", "0.7", "0.8"), False),
    ],
)
def test_validations_that_took_no_time(
    logs: LogWriter, seconds: tuple[str, ...], hit: bool
) -> None:
    log = logs.text(
        *(
            f"Iter {i}0: Val loss 1.5, Val took {value}s\nIter {i}0: Train loss 1.{i}, It/sec 2.0"
            for i, value in enumerate(seconds, 1)
        )
    )
    assert ("validation-without-time" in found(judge(series_facts, log))) is hit


@pytest.mark.parametrize(("speed", "hit"), [(0.1, True), (2.0, False)])
def test_whole_seconds_tell_where_updates_are_slow(
    logs: LogWriter, speed: float, hit: bool
) -> None:
    rows = [
        f'{{"iteration": {i}, "train_loss": 1.5, "val_loss": 1.4, "val_time": 0, '
        f'"iterations_per_second": {speed}}}'
        for i in (10, 20, 30)
    ]
    logs.path = logs.path.with_suffix(".jsonl")
    assert ("validation-without-time" in found(judge(series_facts, logs.text(*rows)))) is hit


def test_one_validation_of_half_an_hour(logs: LogWriter) -> None:
    log = logs.text(
        "Iter 1: Val loss 2.0, Val took 1822.456s", "Iter 10: Train loss 1.9, It/sec 0.5"
    )
    sign = finding(judge(series_facts, log), "validation-slow")
    assert "as long as 911 updates" in sign.message


@pytest.mark.parametrize(
    ("speeds", "peak", "symptoms"),
    [
        ([*[190.0] * 3, 27.0, 28.0], 30.0, {"throughput-fell": "warning"}),
        ([*[190.0] * 3, 27.0, 28.0], 0.5, {"speed-fell": "info"}),
        ([5.0, *[100.0] * 10, *[30.0] * 10], 30.0, {"throughput-fell": "warning"}),
        ([5.0, *[100.0] * 10, *[40.0] * 10], 30.0, {}),
        ([100.0, 100.0, 10.0] * 8, 30.0, {}),
        ([100.0] * 5, 30.0, {}),
    ],
)
def test_speed(logs: LogWriter, speeds: list[float], peak: float, symptoms: dict[str, str]) -> None:
    log = column(logs, "Tokens/sec", *speeds, more=f", Peak mem {peak} GB")
    assert found(judge(series_facts, log)) == symptoms


@pytest.mark.parametrize(
    ("peaks", "hit"),
    [
        ([20.0 + 0.5 * i for i in range(24)], True),
        ([20.0 + 0.5 * (i // 3) for i in range(24)], False),
        ([20.0 + 0.05 * i for i in range(24)], False),
        ([0.5 + 0.1 * i for i in range(24)], False),
    ],
)
def test_a_peak_of_memory_that_grows(logs: LogWriter, peaks: list[float], hit: bool) -> None:
    log = column(logs, "Peak mem", *peaks, more=" GB")
    assert found(judge(series_facts, log)) == ({"memory-grows": "warning"} if hit else {})


@pytest.mark.parametrize(
    ("tokens", "symptom"), [(0, "no-trained-tokens"), (840, "same-token-count")]
)
def test_counts_of_tokens(logs: LogWriter, tokens: int, symptom: str) -> None:
    def counted(each: list[int]) -> TrainingLog:
        totals = [10 * sum(each[: i + 1]) for i in range(len(each))]
        return column(logs, "Trained Tokens", *totals)

    assert symptom in found(judge(series_facts, counted([tokens] * 8)))
    assert found(judge(series_facts, counted([840, 812, 851, 833, 844, 829, 838]))) == {}


@pytest.mark.parametrize(
    ("rates", "losses", "symptoms"),
    [
        ([0.0] * 5, [2.0] * 5, {"rate-zero": "error"}),
        # A small rate was rounded: the loss fell.
        ([0.0] * 12, [3.0 - 0.1 * i for i in range(12)], {}),
        # A warm-up from 0, and a decay to 0 that ends there.
        ([0.0, 0.0, *[1e-5] * 20], [2.0] * 22, {}),
        ([2e-5] * 40 + [0.0] * 2, [2.0] * 42, {}),
        ([2e-5] * 30 + [0.0] * 10, [2.0] * 40, {"rate-zero-to-the-end": "warning"}),
        (
            [2e-5 * (20 - i) / 20 for i in range(20)] + [0.0] * 10,
            [2.0] * 30,
            {"rate-zero-to-the-end": "info"},
        ),
        # Four decimals show a small rate as 0.
        ([2e-4] * 5 + [1e-4] * 5 + [0.0] * 10, [2.0] * 20, {"rate-zero-to-the-end": "info"}),
    ],
)
def test_rates_of_zero(
    logs: LogWriter, rates: list[float], losses: list[float], symptoms: dict[str, str]
) -> None:
    log = logs.text(
        *(
            f"Iter {i}0: Train loss {loss:.3f}, Learning Rate {rate:.3e}, It/sec 1.0"
            for i, (rate, loss) in enumerate(zip(rates, losses, strict=True), 1)
        )
    )
    assert found(judge(series_facts, log)) == symptoms


@pytest.mark.parametrize(("height", "severity"), [(40.0, "warning"), (6.0, "info"), (2.4, None)])
def test_a_spike_of_the_loss(logs: LogWriter, height: float, severity: str | None) -> None:
    losses = decay(40, 2.2, 1.8)
    losses[20] = height
    outcome = judge(series_facts, logs.losses(losses))
    assert found(outcome).get("loss-spiked") == severity
    if severity:
        assert finding(outcome, "loss-spiked").onset == 210


@pytest.mark.parametrize(
    ("losses", "hit"),
    [
        # The end of a longer run: where it began is not in the log.
        ([3.5, 3.5, 3.4, 3.6, 4.1, 4.4, 4.6, 4.8], True),
        ([3.5, 3.5, 3.4, 3.6, 3.7, 3.6, 3.7, 3.8], False),
        ([3.5, 4.8, 3.1, 4.6, 3.3, 4.9, 3.2, 4.8], False),
        ([0.05, 0.05, 0.04, 0.06, 0.07, 0.08, 0.09, 0.1], False),
    ],
)
def test_a_tail_that_rises(logs: LogWriter, losses: list[float], hit: bool) -> None:
    outcome = judge(series_facts, logs.losses(losses, first=5000))
    assert ("loss-rises" in found(outcome)) is hit


def test_a_column_that_nothing_else_looks_at(logs: LogWriter) -> None:
    log = logs.text(
        '{"iteration": 10, "loss": 2.0, "entropy": NaN}', '{"iteration": 20, "loss": 1.9}'
    )
    sign = finding(judge(series_facts, log), "not-finite")
    assert (sign.where, sign.onset) == ("entropy", 10)


def test_what_is_not_in_the_log_is_not_looked_for(logs: LogWriter) -> None:
    outcome = judge(series_facts, logs.text("Iter 10: Train loss 2.0"))
    assert outcome.unsought["series-facts.gradient-zero"] == "the log has no gradient norm"
    assert judge(series_facts).status.value == "skipped"
