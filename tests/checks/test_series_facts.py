"""Patterns in any column of a log."""

import math
import re
from functools import partial
from importlib.resources import files
from itertools import chain
from pathlib import Path

import numpy as np
import pytest

from mlxdoctor.judge.curve import loss_figures
from mlxdoctor.judge.series_table import Columns, SeriesTable
from tests.checks.log_evidence import LogWriter, decay, finding
from tests.conftest import check_called
from tests.given import outcome as judge
from tests.given import severities

series_facts = check_called("series-facts")
#: Columns whose figures the sentences about another one show.
TABLES = sorted(path.name for path in Path(str(files("mlxdoctor.checks"))).glob("*.toml"))
NAMED = (
    "train_loss",
    "loss",
    "margin",
    "accuracy",
    "length",
    "cut_off",
    "reward",
    "peak_memory_gb",
)


@pytest.mark.parametrize("name", TABLES)
def test_every_entry_names_figures_that_there_are(logs: LogWriter, name: str) -> None:
    """A misspelt figure in the table would never be reached."""
    losses = [2.0, 0.0, 9.0, math.nan, 2.1, 2.0, 1.9, 2.0, 50.0, 2.0, 1.9]
    # The watch alone knows how long reports took; memory stands beside a speed.
    known = {"series", "unit", "onset", "jump_seconds", "memory"}
    for values in ([*losses, 0.0], [*losses, 0.5], [*losses, math.nan], [2.431] * 8):
        log = logs.losses(values, {1: 2.0, 50: 1.9})
        columns = Columns(log.main.series, partial(loss_figures, log.main))
        known |= columns.figures("train_loss").keys() | columns.figures("val_loss").keys()
        known |= loss_figures(log.main, "seconds_per_iteration").keys()
        known |= loss_figures(log.main, "grad_norm").keys()
    # Other checks name their own figures in their source.
    own = files("mlxdoctor.checks").joinpath(name.replace(".toml", ".py")).read_text("utf-8")
    known |= set(re.findall(r"[\"_](\w+)\"", own))
    others = {f"{other}_{figure}" for other in NAMED for figure in known}
    for pattern in SeriesTable.read(name).patterns:
        bounds = [*pattern.least, pattern.most, *pattern.warning, *pattern.error]
        bounds += pattern.alarm.least if pattern.alarm is not None else ()
        bounds += [*pattern.given.values(), *chain(*pattern.unless.values())]
        used = {figure for each in bounds for figure in each} | ({pattern.onset} - {""})
        assert used <= known, pattern.code
        assert pattern.shown <= known | others, pattern.code


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
    assert ("validation-without-time" in severities(judge(series_facts, logs.text(*rows)))) is hit


COLUMNS = {
    "Learning Rate": [
        ([0.0] * 5, "rate-zero error"),
        # A warm-up from 0, and a decay to 0 that ends there.
        ([0.0, 0.0, *[1e-5] * 20], ""),
        ([2e-5] * 40 + [0.0] * 2, ""),
        ([2e-5] * 30 + [0.0] * 10, "rate-zero-to-the-end warning"),
        (
            [f"{i}e-06" for i in range(20, 0, -1)] + ["0.0"] * 10,
            "rate-zero-to-the-end info",
        ),
        ([2e-8] * 5, "rate-negligible info"),
        ([2e-8] * 5 + [1e-5], ""),
        # Four decimals show a small rate as 0.
        ([2e-4] * 5 + [1e-4] * 5 + [0.0] * 10, ""),
    ],
    "grad_norm": [
        (["0.0"] * 3, "gradient-zero error"),
        (["0.0", "0.0", "1.0", "1.0"], "gradient-zero warning"),
        (["0.0", "0.0", "1.0", "1.0", "1.0"], ""),
        (["nan"] * 3, "gradient-never-finite error"),
        (["nan"], "gradient-not-finite warning"),
        (["1.0", "inf", "1.0", "2.0"], "gradient-not-finite warning"),
        (["4.2"] * 89 + ["nan"] * 11, "gradient-not-finite error"),
        (["4.2"] * 97 + ["nan"] * 3, "gradient-not-finite warning"),
        # A loss scaler that finds its scale.
        (["nan"] * 2 + ["4.2"] * 97, "gradient-not-finite info"),
        ([1.0, 2.0], ""),
        ([3e5, 2e5, 150.0, 150.0], "gradient-large info"),
        ([3e5, 99.0, 98.0, 97.0], ""),
        # Two reports, three, and many: one that is far above what is usual.
        ([5.0, 18940], "gradient-exploded warning"),
        ([5.0, 4.0, 4.5, 4.0, 1.8e8], "gradient-exploded warning"),
        ([4.2] * 8 + [421.0], "gradient-exploded warning"),
        ([4.2] * 8 + [419.0], ""),
        # What goes on as before is a fact.
        ([4.2] * 8 + [421.0] + [4.2] * 8, "gradient-exploded info"),
        ([0.1] * 8 + [90.0], ""),
        # Sound runs begin high.
        ([5044.0] + [4.2] * 12, ""),
    ],
    "skipped": [
        ([4], "batches-skipped warning"),
        # Ten of 40 batches, and 26 of 40.
        ([0, 0, 0, 10], "batches-skipped warning"),
        ([0, 0, 0, 26], "batches-skipped error"),
        ([0], ""),
    ],
    "Peak mem 30 GB, Tokens/sec": [
        ([190.0] * 3 + [27.0, 28.0], "speed-fell warning"),
        ([5.0] + [100.0] * 10 + [30.0] * 10, "speed-fell warning"),
        ([5.0] + [100.0] * 10 + [40.0] * 10, ""),
        ([100.0, 100.0, 10.0] * 8, ""),
        ([100.0] * 5, ""),
    ],
    "Peak mem 0.5 GB, Tokens/sec": [([190.0] * 3 + [27.0, 28.0], "speed-fell info")],
    "peak_memory": [
        ([20.0 + 0.5 * i for i in range(24)], "memory-grows warning memory-rose info"),
        ([20.0 + 0.5 * (i // 3) for i in range(24)], ""),
        ([20.0 + 0.05 * i for i in range(24)], ""),
        ([0.5 + 0.1 * i for i in range(24)], ""),
    ],
    "Trained Tokens": [
        ([0] * 8, "no-trained-tokens error same-token-count info"),
        ([8400 * i for i in range(1, 9)], "same-token-count info"),
        ([51, 102, 149, 201], "few-trained-tokens info"),
        ([8400, 16520, 25030, 33360, 41800, 50090, 58470], ""),
    ],
    # A policy that is right no more, one that never is, and a score of whole rows.
    "acc": [
        ([0.98, 0.99, 1.0, 1.0, 0.99, 0.76], "score-fell warning"),
        ([0.9, 0.8, 0.9, 0.7, 0.8, 0.75], "score-fell info"),
        ([0.06, 0.04, 0.06, 0.0, 0.01], "score-fell info"),
    ],
    "Val took": [
        (["0.000s"] * 2, "validation-without-time warning"),
        (["0.000s", "0.000s", "0.7s"], "validation-without-time warning"),
        (["0.000s"], "validation-without-time warning"),
        (["0.001s"] * 2, ""),
        (["0.000s", "0.7s", "0.8s"], ""),
    ],
}


@pytest.mark.parametrize(
    ("name", "values", "signs"), [(name, *case) for name in COLUMNS for case in COLUMNS[name]]
)
def test_columns(logs: LogWriter, name: str, values: list[object], signs: str) -> None:
    rows = (f"Iter {i}0: Train loss 2.0, {name} {value}" for i, value in enumerate(values, 1))
    outcome = judge(series_facts, logs.text(*rows))
    assert " ".join(f"{code} {severity}" for code, severity in severities(outcome).items()) == signs


def test_a_skipped_batch_of_many(logs: LogWriter) -> None:
    line = "Iter 40: SKIPPED non-finite batch (loss 1.23, norm 2.5) -- weights untouched"
    log = logs.text(line, "Iter 400: Train loss 1.2")
    assert severities(judge(series_facts, log)) == {"batches-skipped": "info"}


FALLEN = decay(30, 3.0, 1.0)
#: Of rows that grow harder.
HARDER = [*decay(20, 3.0, 1.0), *[1.0 + 0.1 * i for i in range(14)]]
AGAIN = {"loss-rose-again": "error"}


@pytest.mark.parametrize(
    ("losses", "val", "first", "signs"),
    [
        ([2.0 - 0.1 * i for i in range(15)] + [0.6 + 0.1 * i for i in range(20)], {}, 10, AGAIN),
        ([*decay(20, 3.0, 1.0), *decay(20, 1.0, 3.0)], {}, 10, AGAIN),
        ([*decay(40, 6.0, 1.5), *decay(30, 4.5, 4.0, seed=1)], {1: 6.1}, 10, AGAIN),
        ([*FALLEN, *[1.0 + 0.08 * i for i in range(14)]], {}, 10, {"loss-rose-again": "warning"}),
        # A third of the way, a small step, a rise of the last two reports only.
        ([*FALLEN, *[1.0 + 0.05 * i for i in range(14)]], {}, 10, {}),
        ([*decay(40, 6.0, 1.5), *decay(30, 1.75, 1.75, seed=1)], {1: 6.1}, 10, {}),
        ([*FALLEN, 2.8, 2.9], {}, 10, {}),
        # Rows that grow harder leave the validation loss low.
        (HARDER, {1: 3.0, 200: 1.4, 340: 1.3}, 10, {}),
        (HARDER, {100: 1.4, 340: 1.3}, 10, {}),
        # Of one validation of the trained model only the level tells: the untouched one is higher.
        (HARDER, {1: 3.0, 340: 1.3}, 10, {}),
        (
            [*decay(10, 3.9, 1.83), 2.4, 2.9, 3.4, 3.8, 4.1, 4.3, 4.346],
            {1: 5.211, 170: 4.401},
            10,
            AGAIN,
        ),
        # The end of a longer run: where it began is not in the log.
        ([3.5, 3.5, 3.4, 3.6, 4.1, 4.4, 4.6, 4.8], {}, 5000, {"loss-rises": "info"}),
        ([3.5, 3.5, 3.4, 3.6, 3.7, 3.6, 3.7, 3.8], {}, 5000, {}),
        ([3.5, 4.8, 3.1, 4.6, 3.3, 4.9, 3.2, 4.8], {}, 5000, {}),
        ([0.05, 0.05, 0.04, 0.06, 0.07, 0.08, 0.09, 0.1], {}, 5000, {}),
    ],
)
def test_losses(
    logs: LogWriter, losses: list[float], val: dict[int, float], first: int, signs: dict[str, str]
) -> None:
    outcome = judge(series_facts, logs.losses(losses, val, first=first))
    # Where the log shows the start, another sign is for that.
    told = severities(outcome)
    if first == 10:
        told.pop("loss-rises", None)
    assert told == signs


def test_the_loss_of_pairs_may_rise_again(logs: LogWriter) -> None:
    losses = [*decay(20, 3.0, 1.0), *decay(20, 1.0, 3.0)]
    log = logs.text(*(f"Iter {i}: loss {loss}, margin 0.1" for i, loss in enumerate(losses)))
    assert "loss-rose-again" not in severities(judge(series_facts, log))


def test_a_column_that_nothing_else_looks_at(logs: LogWriter) -> None:
    log = logs.text(
        '{"iteration": 10, "loss": 2.0, "entropy": NaN}', '{"iteration": 20, "loss": 1.9}'
    )
    sign = finding(judge(series_facts, log), "not-finite")
    assert (sign.where, sign.onset) == ("entropy", 10)


def test_what_is_not_in_the_log_is_not_looked_for(logs: LogWriter) -> None:
    outcome = judge(series_facts, logs.text("Iter 10: Train loss 2.0"))
    assert outcome.unsought["series-facts.gradient-zero"] == "the log has no gradient norm"


def test_a_policy_that_earns_next_to_nothing(logs: LogWriter) -> None:
    scores = (0.06, 0.04, 0.06, 0.0, 0.06, 0.01)
    rows = [f"step {i}0 loss=-0.00{i} acc={score}" for i, score in enumerate(scores, 1)]
    assert severities(judge(series_facts, logs.text(*rows)))["score-nothing"] == "warning"


def test_a_noisy_column_is_told_by_its_levels_and_how_often_it_is_zero(logs: LogWriter) -> None:
    rewards = [0.5 + ((7 * i) % 10) / 20 for i in range(30)]
    rows = [
        f"{{'loss': 0.0, 'reward': {reward:.2f}, 'correct': {int(i % 5 == 3)}}}"
        for i, reward in enumerate(rewards)
    ]
    (seen,) = judge(series_facts, logs.text(*rows)).seen
    assert seen.message == (
        "The log also has reward around 0.725, between 0.5 and 0.95; correct around 0, between 0 "
        "and 1 (report 4), 0 in 24 of 30 reports; training loss 0 throughout."
    )


def test_a_score_that_froze_is_one_answer_for_everything(logs: LogWriter) -> None:
    for later, told in ((0.6, {"score-froze": "warning"}), (0.9, {}), (None, {})):
        scores = [0.95, 0.8, 0.7] + [later or 0.6 + 0.01 * (i % 3) for i in range(7)]
        rows = (f"{{'step': {25 * i}, 'loss': 0.1, 'accuracy': {s}}}" for i, s in enumerate(scores))
        outcome = judge(series_facts, logs.text(*rows))
        assert severities(outcome) == ({**told, "score-fell": "warning"} if later != 0.9 else told)
        stays = "from 0.95 to 0.6, where it stays from step 75 on"
        assert (stays in outcome.seen[0].message) == (later == 0.6)


def test_levels_of_a_long_noisy_column_are_means_of_many(logs: LogWriter) -> None:
    rewards = [0.4 + 0.3 * (i >= 250) + (0.5 if (7 * i) % 10 > 4 else -0.5) for i in range(500)]
    rows = [
        f"{{'step': {i}, 'loss': 0.0, 'reward': {value:.2f}}}" for i, value in enumerate(rewards)
    ]
    (seen,) = judge(series_facts, logs.text(*rows)).seen
    assert "reward from 0.4 to 0.7, between -0.1 and 1.2" in seen.message


def test_a_speed_that_a_reader_sees_first(logs: LogWriter) -> None:
    rows = [f"Iter {at}: Train loss 2.0, It/sec 0.018" for at in (10, 20, 30)]
    outcome = judge(series_facts, logs.text("Iter 1: Val loss 2.0, Val took 1010.2s", *rows))
    (slow,) = (one for one in outcome.findings if one.code == "series-facts.slow")
    assert slow.message == (
        "An iteration takes 56 seconds in the median, where one or a few are usual, and a "
        "validation 1,010."
    )


def test_a_speed_is_told_where_its_level_changes(logs: LogWriter) -> None:
    for last, told in ((60.0, True), (85.0, False)):
        speeds = np.linspace(90.0, last, 12)
        rows = (f"Iter {10 * i}: Train loss 2.0, Tokens/sec {x}" for i, x in enumerate(speeds, 1))
        seen = judge(series_facts, logs.text(*rows)).seen
        assert any("tokens a second from 90 to 60" in one.message for one in seen) == told


def test_every_column_is_told_and_what_a_policy_earns_first(logs: LogWriter) -> None:
    rows = [
        f"{{'loss': 0.0, 'entropy': {i / 4}, 'grad_norm': 2.5, 'reward': {0.5 - (i % 2) / 4}, "
        f"'kl': {i / 100}, 'epoch': {i / 10}, 'num_tokens': {i}, 'acc': {(9, 2, 5, 4, 4)[i - 1]}}}"
        for i in range(1, 6)
    ]
    (seen,) = judge(series_facts, logs.text(*rows)).seen
    assert seen.message == (
        "The log also has reward between 0.25 and 0.5; kl from 0.01 to 0.05; accuracy between 2 "
        "and 9; entropy from 0.25 to 1.25; training loss 0 throughout; gradient norm 2.5 "
        "throughout."
    )


@pytest.mark.parametrize(("name", "code"), [("grad_norm", "gradient"), ("lr", "rate")])
def test_zeros_beside_a_loss_that_falls_were_rounded(logs: LogWriter, name: str, code: str) -> None:
    for end, told in ((3.0, {f"{code}-zero": "error"}), (1.9, {})):
        losses = [3.0 - (3.0 - end) * i / 11 for i in range(12)]
        rows = (f"{{'loss': {loss}, '{name}': 0.0}}" for loss in losses)
        assert severities(judge(series_facts, logs.text(*rows))) == told


@pytest.mark.parametrize(
    ("first", "end", "codes"),
    [(2.0, 2.0, {"gradient-zero"}), (2.0, 1.0, set()), (0.0, -1.0, {"gradient-zero"})],
)
def test_norms_of_zero_beside_a_loss(
    logs: LogWriter, first: float, end: float, codes: set[str]
) -> None:
    losses = (first, (first + end) / 2.0, end)
    rows = [f"{{'loss': {loss}, 'grad_norm': 0.0}}" for loss in losses]
    outcome = judge(series_facts, logs.text(*rows))
    assert {one.code.partition(".")[2] for one in outcome.findings} == codes
