"""Answers generated in batches, against one prompt at a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

from mlxdoctor.evidence.dataset import Dataset
from mlxdoctor.evidence.tokenizer import Tokenizer
from mlxdoctor.models.answer import answer
from mlxdoctor.models.prompts import prompts_for
from tests.benchmarks.peers import Peers
from tests.benchmarks.startup import FIXTURES
from tests.benchmarks.table import Line

PROMPTS, TOKENS, REPEATS = 32, 48, 3


def measured(scratch: Path, peers: Peers) -> Iterator[Line]:
    """The rows of the table."""
    del scratch, peers
    from mlx_lm import load

    model, _ = load(str(FIXTURES / "base"))  # type: ignore[misc]
    tokenizer = Tokenizer.read(FIXTURES / "base")
    data = Dataset.read(FIXTURES / "data" / "geography")
    prompts = prompts_for(data, tokenizer, held_out=16, trained=16)[:PROMPTS]
    ends = tokenizer.eos_token_ids

    def batched() -> None:
        answer(model, prompts, ends, TOKENS)

    def single() -> None:
        for one in prompts:
            answer(model, [one], ends, TOKENS)

    together, alone = _best(batched), _best(single)
    yield Line(f"answers to {len(prompts)} prompts, one at a time", alone)
    ratio = alone / together
    yield Line(
        "the same in one batch",
        together,
        result=f"{ratio:.1f}x the speed",
        aim="at least 3x",
        met=ratio >= 3,
    )


def _best(work: Callable[[], None]) -> float:
    """The shortest time of several turns, after one that is not counted."""
    work()
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)
