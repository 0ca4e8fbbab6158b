"""`diagnose` on long logs, against trainproof and runmedic on the same files."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.benchmarks.peers import Peers
from tests.benchmarks.table import Line, at_most, plain
from tests.benchmarks.timing import measure

LINES = 100_000


def _loss(n: int) -> float:
    return 0.5 + 3 / n**0.5 + 0.05 * (n % 7 - 3)


def classic_log(path: Path, lines: int) -> Path:
    """A log in mlx-lm's classic format whose loss falls as 1/sqrt(t), with a wobble."""
    rows = (
        f"Iter {10 * n}: Train loss {_loss(n):.3f}, "
        f"Learning Rate 1.000e-05, It/sec {3 + n % 5 / 10:.3f}, Tokens/sec {900 + n % 90:.3f}, "
        f"Trained Tokens {n * 3000}, Peak mem 9.707 GB\n"
        for n in range(1, lines + 1)
    )
    path.write_text("Iter 1: Val loss 3.512, Val took 5.265s\n" + "".join(rows))
    return path


def json_log(path: Path, lines: int) -> Path:
    """The same rows as one JSON object a line."""
    rows = (
        {
            "step": 10 * n,
            "train_loss": _loss(n),
            "learning_rate": 1e-5,
            "tokens_per_second": 900.0 + n % 90,
        }
        for n in range(1, lines + 1)
    )
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def measured(scratch: Path, peers: Peers) -> Iterator[Line]:
    """The rows of the table."""
    classic, lines = classic_log(scratch / "long.log", LINES), json_log(scratch / "l.jsonl", LINES)
    ours = [sys.executable, "-m", "mlxdoctor", "diagnose"]
    theirs = measure([peers.command("runmedic"), "diagnose", str(classic)], repeats=3)
    yield plain(f"runmedic, an mlx-lm log of {LINES:,} lines", theirs)
    found = measure([*ours, str(classic), "--stdout", "json"])
    yield at_most("`diagnose --stdout json`, the same log", found, theirs, "runmedic", 0.1)
    theirs = measure([peers.command("trainproof"), "epoch", str(lines)])
    yield plain(f"trainproof, {LINES:,} rows of JSONL", theirs)
    found = measure([*ours, str(lines), "--stdout", "json"])
    yield at_most("`diagnose --stdout json`, the same rows", found, theirs, "trainproof", 1.0)
