"""How fast the reference trainer is, side by side with mlx-lm's own loop.

    python -m tests.benchmarks.trainer

One process, one model shape, taken in turns: mlx-lm's loop; ours with its batches,
gradient norms on; ours with batches of like lengths. Tokens are those of the rows, not
those of the padding. A first pass over the rows, in which every width is compiled, is
not counted; the second one is. Prints a Markdown table. Machines are noisy: compare the figures of one run with each other. On
Linux, preload OpenBLAS (LD_PRELOAD), or the reference BLAS is what is measured.
"""

from __future__ import annotations

import argparse
import io
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from mlxdoctor.trainer import Settings, StepRecord, train
from mlxdoctor.trainer.rows import Row, Rows

#: Rows as a chat data set has them: many short ones, a few long.
SHORTEST, LONGEST, MEDIAN = 16, 512, 80
ROWS = 256
VOCABULARY = 2048


@dataclass(frozen=True)
class Size:
    """A Llama of this many layers and this width, trained on batches of this many rows."""

    layers: int
    width: int
    batch: int


def mixed_rows(count: int) -> tuple[Row, ...]:
    """Rows whose lengths are log-normal about the median, in no order."""
    generator = np.random.default_rng(0)
    lengths = np.clip(generator.lognormal(np.log(MEDIAN), 0.8, count), SHORTEST, LONGEST)
    return tuple(
        Row(generator.integers(1, VOCABULARY, int(length)).astype(np.int32), 0, keys=1)
        for length in lengths
    )


def model_of(size: Size) -> Any:
    """The model, of random weights."""
    import mlx.core as mx
    from mlx_lm.models.llama import Model, ModelArgs

    mx.random.seed(0)
    values = {
        "model_type": "llama",
        "hidden_size": size.width,
        "num_hidden_layers": size.layers,
        "intermediate_size": 4 * size.width,
        "num_attention_heads": 4,
        "rms_norm_eps": 1e-5,
        "vocab_size": VOCABULARY,
    }
    model = Model(ModelArgs.from_dict(values))
    mx.eval(model.parameters())
    return model


def mlx_lm_rate(settings: Settings, size: Size, rows: Sequence[Row], warm: int) -> float:
    """Tokens a second of mlx-lm's loop, after `warm` iterations."""
    import mlx.core as mx
    from mlx_lm.tuner.datasets import CacheDataset
    from mlx_lm.tuner.trainer import TrainingArgs, iterate_batches
    from mlx_lm.tuner.trainer import train as mlx_lm_train

    from mlxdoctor.trainer.model import prepare
    from mlxdoctor.trainer.optimizers import build_optimizer

    class Rowset:
        def __len__(self) -> int:
            return len(rows)

        def __getitem__(self, index: int) -> dict[str, int]:
            return {"row": index}

        def process(self, row: dict[str, int]) -> tuple[list[int], int]:
            return rows[row["row"]].tokens.tolist(), 0

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
    data = CacheDataset(Rowset())
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
    (begun, before), (ended, after) = seen[warm], seen[settings.iters]
    return (after - before) / (ended - begun)


def our_rate(settings: Settings, size: Size, rows: Sequence[Row], warm: int) -> float:
    """Tokens a second of ours, after `warm` iterations, from one step's end to another's."""
    import mlx.core as mx

    from mlxdoctor.trainer.batches import Batch
    from mlxdoctor.trainer.loop import Hooks
    from mlxdoctor.trainer.parts import parts_of

    ends: list[float] = []
    tokens: list[int] = []

    def note(_: StepRecord) -> None:
        ends.append(time.perf_counter())

    usual = parts_of(settings)

    def counted(given: Sequence[Row], start: int) -> Iterator[Batch]:
        for batch in usual.train_batches(given, start):
            tokens.append(int(batch.spans[:, 1].sum()))
            yield batch

    parts = replace(
        usual,
        load=lambda _: (model_of(size), None),
        encode=lambda _, __: Rows(tuple(rows), (), ()),
        train_batches=counted,
    )
    mx.clear_cache()
    train(settings, parts=parts, hooks=Hooks(step=note))
    return sum(tokens[warm:]) / (ends[-1] - ends[warm - 1])


def compare(size: Size, repeats: int) -> dict[str, list[float]]:
    """The rates of the three, in turns."""
    rows = mixed_rows(ROWS)
    warm = ROWS // size.batch
    rates: dict[str, list[float]] = {"mlx-lm": [], "parity": [], "exact": []}
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
                "mlxdoctor": {"save_state": False},
            }
        )
        runs: dict[str, Callable[[], float]] = {
            "mlx-lm": lambda: mlx_lm_rate(usual, size, rows, warm),
            "parity": lambda: our_rate(parity, size, rows, warm),
            "exact": lambda: our_rate(usual, size, rows, warm),
        }
        parity = replace(usual, extras=replace(usual.extras, mode="parity"))
        for _ in range(repeats):
            for name, run in runs.items():
                rates[name].append(run())
    return rates


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    size = Size(options.layers, options.width, options.batch)
    rates = compare(size, options.repeats)
    # The ratio within each turn: what else the machine does changes between turns.
    ratios = {
        name: [ours / theirs for ours, theirs in zip(found, rates["mlx-lm"], strict=True)]
        for name, found in rates.items()
    }
    table = (
        ("mlx-lm's loop", "mlx-lm", ""),
        ("ours, mlx-lm's batches, gradient norms on", "parity", "aim: 1x"),
        ("ours, batches of like lengths", "exact", "aim: 1.3x"),
    )
    print("| loop | tokens/s, median | ratio, median (range) | |\n|---|---:|---:|---|")
    for label, name, aim in table:
        ratio, low, high = statistics.median(ratios[name]), min(ratios[name]), max(ratios[name])
        rate = statistics.median(rates[name])
        print(f"| {label} | {rate:,.0f} | {ratio:.2f} ({low:.2f} to {high:.2f}) | {aim} |")


if __name__ == "__main__":
    main()
