"""What a log tells of its run besides the losses."""

import json

import pytest

from mlxdoctor.judge.course import courses
from mlxdoctor.judge.extent import extent, remarked, warned
from mlxdoctor.template import fill
from tests.checks.log_evidence import LogWriter


@pytest.mark.parametrize(
    ("rates", "said"),
    [
        (
            [0.0, 1e-4, 2e-4, 1e-4, 1e-6],
            "a learning rate that begins at 0, comes to 0.0002 (step 3) and ends at 1e-06",
        ),
        ([1e-4, 1e-4], "a learning rate of 0.0001"),
        ([1e-5, 2e-4, 2e-4], "a learning rate of 1e-05 to 0.0002"),
    ],
)
def test_a_schedule(logs: LogWriter, rates: list[float], said: str) -> None:
    rows = ({"loss": 2.0, "step": i, "learning_rate": rate} for i, rate in enumerate(rates, 1))
    (told,) = extent(logs.text(*map(json.dumps, rows)))
    assert told.endswith(said)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("Split -> train: 2,700 | val: 300", ["2,700 rows to train on"]),
        # Losses of both splits are no rows.
        ("summary of epoch three, train: 2.5 | val: 3.1", []),
        ("summary of epoch three, train: 2 | val: 3.1", []),
    ],
)
def test_rows_of_a_split(logs: LogWriter, line: str, told: list[str]) -> None:
    log = logs.text(line, "Iter 10: Train loss 2.5, It/sec 1.0", "Iter 20: Train loss 2.4")
    assert [each for each in extent(log) if "rows" in each] == told


def test_warnings(logs: LogWriter) -> None:
    lines = [f"2024-01-01 | WARNING | batch {i} took {i} seconds" for i in range(3)]
    log = logs.text(
        *lines, "[CRITICAL] do not deploy this model", "Iter 1: Train loss 2.5, It/sec 1.0"
    )
    (seen,) = warned(log)
    assert fill(seen.message, seen.measured) == (
        "The log warns: “CRITICAL: do not deploy this model” (line 4); “WARNING: batch 0 took 0 "
        "seconds” (line 1, 3 times)."
    )


@pytest.mark.parametrize(
    ("clocks", "said"),
    [
        (["0:00", "10:00", "20:00"], ["20 minutes for 20 of 40 on its longest progress bar"]),
        (
            ["00:00", "10:00", "1:00:00"],
            [
                "60 minutes for 20 of 40 on its longest progress bar, 60 s each in the first half "
                "and 300 in the second"
            ],
        ),
        # A run that goes on has skipped the first rows.
        (["00:00", "00:10", "1:00:00"], ["60 minutes for 20 of 40 on its longest progress bar"]),
        (["00:00", "00:02", "00:05"], []),
    ],
)
def test_the_clock_of_a_progress_bar(logs: LogWriter, clocks: list[str], said: list[str]) -> None:
    lines = [f" {5 * i}%|█▌   | {10 * i}/40 [{at}<09:00, 1s/it]" for i, at in enumerate(clocks)]
    assert extent(logs.text(*lines, "Iter 20: Train loss 2.5")) == said


@pytest.mark.parametrize(("scores", "learned"), [([0.6, 0.8, 0.7], True), ([0.6, 0.6], False)])
def test_scores_on_held_out_rows(logs: LogWriter, scores: list[float], learned: bool) -> None:
    rows = ({"loss": 2.0, "step": i, "eval_f1": one} for i, one in enumerate(scores, 1))
    _, seen = courses(logs.text(*map(json.dumps, rows)))
    told = fill(seen.message, seen.measured)
    assert told.startswith(f"The f1 on held-out rows goes from 0.600 to {scores[-1]:.3f}")
    assert ("highest at step 2 (0.800)" in told, seen.learned) == (learned, learned)


@pytest.mark.parametrize(
    ("last", "told"), [("", []), ("  Num examples = 5,017", ["5,017 rows to train on"])]
)
def test_of_several_files_none_has_all_rows(logs: LogWriter, last: str, told: list[str]) -> None:
    lines = [f"INFO - Loaded {count} examples from part {count}.jsonl" for count in (7, 8, 7)]
    assert extent(logs.text("Iter 1: Train loss 2.5, It/sec 1.0", *lines, last)) == told


PROSE = "the fox runs over the hill and sees a house where nobody has lived since the war ended "
LOOP = "and then the fox runs home "


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([f"[step {at}] SKIP rewards=[1,1]" for at in range(3)], "3 lines say that something"),
        (["[Rank 0] step=0, skipped=0", "skipping the download of a file"], None),
        (["step=10, skipped=2, lr=[1e-05]", "step=20, skipped=2, lr=[1e-05]"], None),
        (["step=10, skipped=10, lr=[1e-05]", "step=20, skipped=20, lr=[1e-05]"], "2 lines say"),
        (
            ["Accuracy: 60%", "Accuracy: 67%", "Accuracy: 63%"],
            "“Accuracy: 63%” (line 4), 3 times, the highest “Accuracy: 67%” (line 3)",
        ),
        (["Sample: " + LOOP * 8], "over and over in 1 line"),
        (["Sample: " + PROSE * 2, "| 0.0 | 0.0 " * 20, "layers.0.bias, layers.1.bias, " * 9], None),
        (["Test accuracy (greedy): 11/20"], "“Test accuracy (greedy): 11/20” (line 2)"),
        (["{'rouge1': np.float64(0.0)}", "BLEU-4 32.5"], "“BLEU-4 32.5” (line 3)"),
        (["Converting to f16 takes 3 minutes", "the correct answer is 4", "F1 pipeline"], None),
        (["eval_delay=0", "Downloaded: 5/10 (50.0%)", "Total val samples: 2289"], None),
    ],
)
def test_what_is_no_report_is_quoted(logs: LogWriter, lines: list[str], said: str | None) -> None:
    log = logs.text("Iter 1: Train loss 2.5, It/sec 1.0", *lines)
    told = [fill(one.message, one.measured) for one in remarked(log)]
    assert len(told) == (said is not None)
    assert said is None or said in told[0]
