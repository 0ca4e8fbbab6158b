"""What a log says of where its losses went, in sentences."""

import json
from collections.abc import Sequence

import pytest

from mlxdoctor.judge.course import courses
from mlxdoctor.template import fill
from tests.checks.log_evidence import LogWriter


@pytest.mark.parametrize(
    ("train", "val", "said"),
    [
        (
            [2.8, 1.2, 1.1, 1.0, 1.0],
            {1: 2.9, 20: 0.8, 30: 0.75, 50: 0.78},
            [
                "The validation loss fell from 2.900 before the first update to 0.780 at iteration "
                "50; it was lowest at iteration 30 (0.750), and ends 4.0% above that. On the way: "
                "0.800 (iteration 20), 0.750 (30).",
                "The training loss fell from 2.800 at iteration 10 to 1.000 at iteration 50. On "
                "the way: 1.200 (iteration 20), 1.100 (30), 1.000 (40). It ends 0.22 above the "
                "validation loss.",
            ],
        ),
        # A last validation well below the one before.
        (
            [2.5],
            {1: 2.5, 100: 2.0, 200: 1.5},
            [
                "The validation loss fell from 2.500 before the first update to 1.500 at iteration "
                "200. On the way: 2.000 (iteration 100). It still falls at the end.",
                "The training loss is 2.500 (1 report",
            ],
        ),
        # What went nowhere lies somewhere.
        (
            [1.42, 1.35, 1.41],
            {},
            [
                "The training loss goes from 1.420 to 1.410, between 1.350 and 1.420 (3 reports, "
                "iteration 10 to 30)."
            ],
        ),
        # The first report is far below the others that it begins with.
        (
            [0.7, 4.65, 1.39, 1.15, 2.11, 0.8, 0.9, 2.5, 0.9, 0.95, 0.4, 0.5],
            {},
            ["The training loss goes from 0.700 to 0.500, between 0.400 and 4.650 (12 reports"],
        ),
        # Of few reports that lie far apart the last is below the first by chance.
        ([2.2, 2.3, 3.5, 2.1], {}, ["The training loss goes from 2.200 to 2.100, between"]),
        ([2.5], {}, ["The training loss is 2.500 (1 report, iteration 10)."]),
        # A validation before the training says nothing of its end.
        (
            [3.0, 1.0],
            {1: 3.2},
            ["The validation loss is 3.200 (1", "The training loss fell from 3"],
        ),
    ],
)
def test_a_loss(
    logs: LogWriter, train: Sequence[float], val: dict[int, float], said: list[str]
) -> None:
    told = [fill(seen.message, seen.measured) for seen in courses(logs.losses(train, val))]
    assert len(told) == len(said)
    assert all(one.startswith(start) for one, start in zip(told, said, strict=True))
    # An early validation is not held against the end.
    assert ("It ends" in told[-1]) == ("It ends" in said[-1])


@pytest.mark.parametrize(
    ("train", "val", "said"),
    [
        ([2.0, 0.5, 0.03], {1: 2.0, 30: 0.05}, "Both losses end near zero. Such a loss has"),
        (
            [2.0, 0.5, 0.03],
            {1: 2.0, 30: 0.4},
            "The training loss ends near zero and the validation loss at 0.400: the rows trained "
            "on are known better than others.",
        ),
        ([2.0, 0.5, 0.03], {1: 2.0}, "The training loss ends near zero, and no later validation"),
        # Neither as low nor far above.
        ([2.0, 0.5, 0.09], {1: 2.0, 30: 0.12}, ""),
    ],
)
def test_what_both_losses_come_to(
    logs: LogWriter, train: Sequence[float], val: dict[int, float], said: str
) -> None:
    log = logs.losses(train, val)
    told = [fill(seen.message, seen.measured) for seen in courses(log)]
    others = [one for one in told if " fell from " not in one and "loss is " not in one]
    assert [one.startswith(said) for one in others] == [True] * bool(said)
    assert not any("end near zero" in seen.message for seen in courses(log, is_told=True))


@pytest.mark.parametrize(
    ("losses", "head", "part"),
    [
        # A small fall that many reports agree on.
        (
            [1.7 - 0.004 * min(i, 15) for i in range(40)],
            [],
            "to 1.640 (median of the last 8 reports, to iteration 400), by 3.5% in all.",
        ),
        # How long the run was to be.
        ([3.0, 1.0], ["Starting training..., iters: 30"], "to 1.000 at iteration 20 of 30."),
        ([3.0, 1.0], [], "at iteration 20. The log has no validation."),
        (
            [*(9.0 - 0.4 * i for i in range(19)), *[1.0] * 20],
            [],
            "From iteration 200 on its level (medians of 7 reports) stays within 0 of that.",
        ),
        ([1.5, 5.2, *[0.4, 0.3] * 6, 0.2], [], " Lone reports stand out: 5.200 (iteration 20)."),
        (
            [*(3.0 - 0.2 * i for i in range(9)), *[2.4] * 4, *[1.0] * 6],
            [],
            " to 2.400 around 100, in medians of 3 reports.",
        ),
        ([4.0 - 0.1 * i for i in range(20)], [], "(150). It still falls at the end."),
        (
            [9.0, 7.0, 5.0, *[1.0, 1.4] * 10],
            [],
            "In the second half single reports lie between 1.000 and 1.400.",
        ),
    ],
)
def test_of_a_training_loss_alone(
    logs: LogWriter, losses: list[float], head: list[str], part: str
) -> None:
    (seen,) = courses(logs.losses(losses, head=head))
    assert part in fill(seen.message, seen.measured)
    assert seen.fell is ("by 3.5%" not in part)  # what is within chance is no fall


def test_a_closing_summary(logs: LogWriter) -> None:
    log = logs.text(
        "Iter 20: Val loss 2.4, Val took 1.0s",
        "Iter 20: Train loss 1.3, It/sec 1.0",
        "  Final val loss:       1.05",
    )
    told = [fill(seen.message, seen.measured) for seen in courses(log)]
    assert "A summary at the end of the log has a validation loss of 1.050." in told


def test_a_trial(logs: LogWriter) -> None:
    (trial, validation, _) = courses(logs.losses([2.5, 2.0], {1: 2.6, 2: 2.1}, every=1))
    told = fill(trial.message, trial.measured)
    assert told.startswith("What ends at iteration 2 shows that training runs")
    assert not validation.learned


@pytest.mark.parametrize(
    ("passes", "said"),
    [
        (1 / 500, "The log ends after 1.0% of a pass over the rows."),
        (5.0, "The log says of the run: epoch 25 at the end; a learning rate of 0.001 to 0."),
    ],
)
def test_passes_over_the_rows(logs: LogWriter, passes: float, said: str) -> None:
    rows = (
        {"loss": 2.0 - i / 20, "step": 10 * i, "epoch": passes * i, "lr": (5 - i) / 4000}
        for i in range(1, 6)
    )
    told = courses(logs.text(*(json.dumps(row) for row in rows)))
    assert said in [fill(one.message, one.measured) for one in told]


@pytest.mark.parametrize(
    ("second", "said"),
    [
        ([1.05, 1.0, 1.02], "from 1.510 to 1.025 where a pass over the rows begins (step 70)"),
        # It goes on falling as before.
        ([1.48, 1.45, 1.44], None),
        # One report of a pass shows nothing.
        ([1.05], None),
    ],
)
def test_rows_that_come_again(logs: LogWriter, second: list[float], said: str | None) -> None:
    losses = [1.9, 1.7, 1.55, 1.53, 1.52, 1.50, *second]
    rows = ({"loss": x, "step": 10 * i, "epoch": i / 6} for i, x in enumerate(losses, 1))
    told = [fill(one.message, one.measured) for one in courses(logs.text(*map(json.dumps, rows)))]
    assert any(said in one if said else "known by heart" in one for one in told) == bool(said)


def test_stairs_lie_level_and_what_falls_steeply_has_none(logs: LogWriter) -> None:
    def told(losses: list[float]) -> str:
        each = len(losses) // 3
        rows = ({"loss": x, "step": i, "epoch": i / each} for i, x in enumerate(losses, 1))
        seen = courses(logs.text(*map(json.dumps, rows)))
        return " ".join(fill(one.message, one.measured) for one in seen)

    wobble = [0.01 * (-1) ** i for i in range(20)]
    stairs = [level + by for level in (2.0, 1.6, 1.1) for by in wobble]
    assert "where a pass over the rows begins (step 21)" in told(stairs)
    assert "still falls" not in told(stairs)
    slope = [3.0 * 0.96**i for i in range(60)]
    assert "where a pass" not in told(slope)
    assert "still falls" in told(slope)


def test_only_held_out_rows_show_learning(logs: LogWriter) -> None:
    seen = list(courses(logs.losses([3.0, 1.0], {1: 3.0, 20: 1.0})))
    assert [(one.learned, one.fell) for one in seen] == [(True, False), (False, True)]


def test_the_test_and_other_runs_are_told(logs: LogWriter) -> None:
    lines = [
        f"Iter {at}: {kind} loss {loss + run}"
        for run in (2, 1)
        for at, kind, loss in ((1, "Val", 2.5), (10, "Train", 1.5), (20, "Train", 0.5))
    ]
    log = logs.text(*lines, "Test loss 0.452, Test ppl 1.572.")
    said = [fill(one.message, one.measured) for one in courses(log)]
    assert said[-2] == "The test loss is 0.452."
    assert said[-1] == (
        "The log has 1 more run: lines 1 to 3, validation loss 4.500, training loss 3.500 to "
        "2.500. Judged is that of lines 4 to 6. The validation loss ends lowest in lines 4 to 6."
    )


def test_runs_are_told_by_what_stands_above_them_alone(logs: LogWriter) -> None:
    tables = [
        f"Results\nWhen r = {rank}, epochs = 2:\n| Epoch | Validation Loss |\n|---|---|\n"
        f"| 1 | {2.0 + rank} |\n| 2 | {1.5 + rank} |\n"
        for rank in (8, 4, 16)
    ]
    (*_, told) = courses(logs.text(*tables))
    assert told.measured["told"] == (
        "lines 5 to 6 (“When r = 8, epochs = 2:”), validation loss 10.000 to 9.500; "
        "lines 12 to 13 (“When r = 4, epochs = 2:”), validation loss 6.000 to 5.500"
    )
    assert told.measured["judged"] == "lines 19 to 20 (“When r = 16, epochs = 2:”)"
    assert told.measured["lowest"] == "lines 12 to 13 (“When r = 4, epochs = 2:”)"


def test_a_validation_that_stands_still(logs: LogWriter) -> None:
    val = dict(enumerate([4.0, 3.0, 2.5, 2.2, 2.0, 1.91, 1.9, 1.91, 1.9, 1.9, 1.91, 1.9], 1))
    (seen, *_) = courses(logs.losses([2.5], {100 * at: loss for at, loss in val.items()}))
    assert (
        "From iteration 600 on its level (medians of 2 reports) stays within 0.005 of that."
        in fill(seen.message, seen.measured)
    )
