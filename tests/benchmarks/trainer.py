"""How fast the reference trainer is, side by side with mlx-lm's own loop.

One process, one model shape, in turns: mlx-lm's loop; ours with its batches, gradient
norms on; ours with batches of like lengths. A first pass over the rows, in which every
width is compiled, is not counted; of each step of the second one, the shortest time of
all turns is, so that what else the machine does has little to say. Tokens are those of
the rows, not of the padding.
"""

import io
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from mlxdoctor.twin import Settings, StepRecord, train
from mlxdoctor.twin.token_rows import TokenRow, TokenRows
from tests.benchmarks.setup import Line, Setup
from tests.twin.small import Rowset, small_model

#: Rows as a chat data set has them: many short ones, a few long.
SHORTEST, LONGEST, MEDIAN = 16, 512, 80
ROWS = 128
VOCABULARY = 2048


@dataclass(frozen=True)
class Size:
    """A Llama of this many layers and this width, trained on batches of this many rows."""

    layers: int
    width: int
    batch: int


@dataclass(frozen=True)
class Pass:
    """One pass over the rows: the seconds of each step, and the tokens of all."""

    seconds: tuple[float, ...]
    tokens: int

    @classmethod
    def between(cls, ends: Sequence[float], tokens: int) -> "Pass":
        """From the moments at which steps ended, the first being that before the pass."""
        return cls(tuple(after - before for before, after in pairwise(ends)), tokens)


def rate(passes: Sequence[Pass]) -> float:
    """Tokens a second, with the shortest time of each step."""
    steps = zip(*(one.seconds for one in passes), strict=True)
    return passes[0].tokens / sum(map(min, steps))


def mixed_rows(count: int) -> tuple[TokenRow, ...]:
    """Rows whose lengths are log-normal about the median, in no order."""
    generator = np.random.default_rng(0)
    lengths = np.clip(generator.lognormal(np.log(MEDIAN), 0.8, count), SHORTEST, LONGEST)
    return tuple(
        TokenRow(generator.integers(1, VOCABULARY, int(length)).astype(np.int32), 0, keys=1)
        for length in lengths
    )


def model_of(size: Size) -> Any:
    """The model, of random weights."""
    sizes = {"hidden_size": size.width, "intermediate_size": 4 * size.width}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 4}
    return small_model(0, size.layers, vocab_size=VOCABULARY, **sizes, **heads)


def mlx_lm_pass(settings: Settings, size: Size, rows: Sequence[TokenRow], warm: int) -> Pass:
    """The second pass of mlx-lm's loop."""
    import mlx.core as mx
    from mlx_lm.tuner.datasets import CacheDataset
    from mlx_lm.tuner.trainer import TrainingArgs, iterate_batches
    from mlx_lm.tuner.trainer import train as mlx_lm_train

    from mlxdoctor.twin.attach import prepare
    from mlxdoctor.twin.step import build_optimizer

    seen: list[tuple[float, int]] = []

    def counted(**options: Any) -> Iterator[Any]:
        # When a batch is asked for, the one before it is done.
        total = 0
        for batch in iterate_batches(**options):
            seen.append((time.perf_counter(), total))
            total += int(batch[1][:, 1].sum().item())
            yield batch

    model = model_of(size)
    prepare(model, settings)
    data = CacheDataset(Rowset(rows))
    for index in range(len(rows)):
        data[index]
    arguments = TrainingArgs(
        batch_size=settings.batch_size,
        # One batch more: its draw ends the last one counted.
        iters=settings.iters + 1,
        steps_per_report=10**6,
        steps_per_save=10**6,
        adapter_file=str(Path(settings.adapter_path) / "peer.safetensors"),
        max_seq_length=settings.max_seq_length,
    )
    np.random.seed(settings.seed)
    mx.clear_cache()
    optimizer = build_optimizer(settings)
    with redirect_stdout(io.StringIO()):
        mlx_lm_train(model, optimizer, data, None, arguments, iterate_batches=counted)
    return Pass.between([at for at, _ in seen][warm:], seen[settings.iters][1] - seen[warm][1])


def our_pass(settings: Settings, size: Size, rows: Sequence[TokenRow], warm: int) -> Pass:
    """The second pass of ours, each step from the end of the one before it."""
    import mlx.core as mx

    from mlxdoctor.twin.batches import Batch, Batches
    from mlxdoctor.twin.prepared import parts_of

    ends: list[float] = []
    tokens: list[int] = []

    def note(record: Any) -> None:
        if isinstance(record, StepRecord):
            ends.append(time.perf_counter())

    usual = parts_of(settings)

    def batches(settings: Settings) -> Batches:
        made = usual.batches(settings)

        def counted(given: Sequence[TokenRow]) -> Iterator[Batch]:
            for batch in made.train(given):
                tokens.append(int(batch.spans[:, 1].sum()))
                yield batch

        return made._replace(train=counted)

    parts = replace(
        usual,
        load=lambda _: (model_of(size), None),
        encode=lambda _, __: TokenRows(tuple(rows), (), ()),
        batches=batches,
    )
    mx.clear_cache()
    train(settings, parts=parts, tell=note)
    return Pass.between(ends[warm - 1 :], sum(tokens[warm:]))


def compare(size: Size, rows: Sequence[TokenRow], repeats: int) -> dict[str, list[Pass]]:
    """The passes of the three, in turns."""
    warm = len(rows) // size.batch
    passes: dict[str, list[Pass]] = {"mlx-lm": [], "parity": [], "exact": []}
    with tempfile.TemporaryDirectory() as folder:
        usual = Settings.from_values(
            {
                "adapter_path": folder,
                "iters": 2 * warm,
                "batch_size": size.batch,
                "num_layers": -1,
                "learning_rate": 1e-4,
                "max_seq_length": LONGEST,
                "save_every": 10**6,
            }
        )
        runs: dict[str, Callable[[], Pass]] = {
            "mlx-lm": lambda: mlx_lm_pass(usual, size, rows, warm),
            "parity": lambda: our_pass(parity, size, rows, warm),
            "exact": lambda: our_pass(usual, size, rows, warm),
        }
        parity = replace(usual, mode="parity")
        for _ in range(repeats):
            for name, run in runs.items():
                passes[name].append(run())
    return passes


def measured(scratch: Path, setup: Setup) -> Iterator[Line]:
    """The rows of the table."""
    del scratch
    rows = mixed_rows(8 if setup.smallest else ROWS)
    size = Size(layers=1, width=32, batch=4) if setup.smallest else Size(2, 128, 4)
    passes = compare(size, rows, max(setup.turns(7), 1))
    peer = rate(passes["mlx-lm"])
    yield Line("training, mlx-lm's loop", result=f"{peer:,.0f} tokens/s")
    for what, name, least in (
        ("training with its batches, gradient norms on", "parity", 1.0),
        ("training with batches of like lengths", "exact", 1.3),
    ):
        ratio = rate(passes[name]) / peer
        # Two digits are what the clock is good for.
        met = round(ratio, 2) >= least
        yield Line(what, result=f"{ratio:.2f}x mlx-lm", aim=f"at least {least:g}x", met=met)
