"""Logs of any size and any content: read in pieces, in bounded memory and time."""

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mlxdoctor.evidence.logs.reader import read_log
from mlxdoctor.evidence.logs.text_stream import LogStream
from mlxdoctor.evidence.training_log import TrainingLog
from mlxdoctor.safety.reading_limits import using

LINE = "Iter {0}: Train loss {1:.3f}, Learning Rate 1.000e-05, It/sec 1.5, Trained Tokens {0}\n"


def report(iteration: int, loss: float = 2.0) -> str:
    return LINE.format(iteration, loss)


def losses(path: Path) -> list[float]:
    series = TrainingLog.read([path]).main.get("train_loss")
    return [] if series is None else series.values.tolist()


def test_colours_control_characters_and_line_ends(path: Path) -> None:
    path.write_bytes(
        b"\x1b]0;title\x07\x1b[32mIter 10: Train loss 2.000\x1b[0m, It/sec 1.0\r\n"
        b"\x1b[2K\x1b[1GIter 20: Train loss 1.500, It/sec 1.0\r\n\x07\x08\x00\x85\r\n"
        b"\xff\xfe broken \xc3\n"
        b"Iter 30: Train loss 1.000, It/sec 1.0"
    )
    # The NUL comes late in a real log: a binary file begins with some.
    text = path.read_bytes()
    path.write_bytes(b"starting\n" * 8000 + text)
    assert losses(path) == [2.0, 1.5, 1.0]


def test_an_endless_line_is_cut_and_said(path: Path) -> None:
    path.write_text(report(10) + "x" * (3 << 20) + "\n" + report(20) + "y" * (3 << 20))
    log = TrainingLog.read([path])
    assert log.main.series["train_loss"].iterations.tolist() == [10, 20]
    assert (log.segments[0].first_line, log.segments[0].last_line) == (1, 3)
    assert "line 2 and 1 more cut to 1,048,576 characters" in log.sources[0].note
    assert "line_characters" in log.sources[0].note


@pytest.mark.slow
def test_pieces_end_where_lines_do(path: Path) -> None:
    bar = "".join(f"\r{i}%|#| {i}/99 [00:01<00:09, loss=2.5]" for i in range(60_000))
    text = bar + "\r\n" + "".join(report(i) for i in range(1, 30_000))
    path.write_text(text, newline="")
    pieces = list(LogStream(path))
    assert "".join(pieces) == text
    assert len(pieces) > 2
    assert all(piece[-1] in "\r\n" for piece in pieces)
    (segment,), _ = read_log(pieces, path)
    assert segment.first_line == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("limit", "text", "named"),
    [
        ("log_rows=5000", "".join(report(i) for i in range(1, 30_000)), "log_rows"),
        ("log_rows=5000", report(5) + "Iter 5: Saved weights to a\n" * 30_000, "log_rows"),
        (
            "log_forms=50",
            report(5)
            + "".join(f'{{"step": {i}, "loss_{i}": 1, "loss_b_{i}": 2}}\n' for i in range(900)),
            "log_forms",
        ),
        ("log_runs=20", "".join(report(i % 2 + 1, i) for i in range(1000)), "log_runs"),
        ("log_rows=5000", "step,loss\n" + "".join(f"{i},2.5\n" for i in range(30_000)), "log_rows"),
    ],
)
def test_what_goes_beyond_a_limit_is_said_and_the_rest_is_used(
    path: Path, limit: str, text: str, named: str
) -> None:
    path.write_text(text)
    with using([limit]):
        log = TrainingLog.read([path])
    assert [f"limit {named}" in str(one) for one in log.notes.problems] == [True]
    assert log.segments
    assert not TrainingLog.read([path]).notes.problems


def test_a_table_with_a_quote_that_nothing_closes(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('step,loss\n1,2.5\n2,2.4\n3,"' + "x" * 200_000)
    assert losses(path)[:2] == [2.5, 2.4]


MEMORY = """
import resource, sys
from pathlib import Path
from mlxdoctor.evidence.training_log import TrainingLog
from mlxdoctor.safety.errors import InputError
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    TrainingLog.read([Path(sys.argv[1])])
except InputError:
    pass
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
unit = 1 if sys.platform == "darwin" else 1024
print((after - before) * unit)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "megabytes", "most"),
    # 800,000 lines: more is left over where no more than an object is kept of each.
    [("one line", 96, 64), ("no reports", 12, 32), ("NULs", 1024, 64)],
)
def test_memory_does_not_grow_with_the_file(
    path: Path, kind: str, megabytes: int, most: int
) -> None:
    with path.open("w") as stream:
        stream.write(report(10))
        if kind == "NULs":
            stream.truncate(megabytes << 20)
        else:
            block = "x" * (1 << 20) if kind == "one line" else ("nothing of note\n" * 65_536)
            for _ in range(megabytes):
                stream.write(block)
    grown = int(subprocess.check_output([sys.executable, "-c", MEMORY, str(path)]))
    assert grown < most << 20, f"{grown / 2**20:.0f} MiB for {path.stat().st_size / 2**20:.0f} MiB"


UNITS = (
    *("1", "a", " ", "\t", "1,", "1,000", "a ", "Iter 1 ", "Iter 1: ", "=", "1/1 [", "1/1 [a=1,"),
    *("a=", "'", "{'", "{'a': ", "|", "| 1 ", "\x1b[", "\x1b]", "iter ", "-", "1 1 ▼ 1 ", "▼"),
    *("Loading ", "Starting training ", "iters: ", "Saved weights to ", "mlx 1.1.1", "torch"),
    *("│   a   b", "a:", "r = 1 ", "\r", "nan", "1e5", "1.", "..1", "loss 1 ", "step 1 loss 1 "),
    *("-1", "+1", "1-", "a- ", "Peak mem", "a/ ", "OOM ", "Metal device "),
)
OPENINGS = (
    *("", "Iter 1: loss ", "step 1 ", "Starting ", "{'loss': 1 ", "│   ", "Iter 1:\nA: "),
    "  LoRA ",
    *("╭\n│ ", "iter train_loss tok/s tokens\n", "Loading LoRA Error ", "mlx "),
    "iter 1: loss 1" + "-1" * 30 + "\niter 1: loss 1",
)


@pytest.mark.parametrize("unit", UNITS)
def test_no_line_takes_long(unit: str) -> None:
    """Doubling the line may not quadruple the time, as it did with a pattern that backtracks."""
    chosen = random.Random(unit)
    for opening in OPENINGS:
        ending = chosen.choice(["", "\0", "!", " x", "Error LoRA mlx Saved"])
        text = opening + unit * (8000 // len(unit)) + ending
        begun = time.process_time()
        read_log([text], Path("a.log"))
        # Milliseconds; the worst patterns of old took minutes.
        assert time.process_time() - begun < 2, (opening, unit, ending)
