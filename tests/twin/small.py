"""A model small enough to train in a moment, and rows to train it on."""

from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from mlxdoctor.twin import Settings
from mlxdoctor.twin.parts import Parts
from mlxdoctor.twin.prepared import parts_of
from mlxdoctor.twin.token_rows import TokenRow, TokenRows

VOCABULARY = 64


def small_model(seed: int = 7, layers: int = 2, kind: str = "llama", **changes: Any) -> Any:
    """A Llama of random weights, or another kind: width 16, two layers, 64 tokens."""
    import mlx.core as mx

    module = import_module(f"mlx_lm.models.{kind}")
    mx.random.seed(seed)
    sizes = {
        "model_type": kind,
        "hidden_size": 16,
        "num_hidden_layers": layers,
        "intermediate_size": 32,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "rms_norm_eps": 1e-5,
        "vocab_size": VOCABULARY,
        "tie_word_embeddings": True,
    }
    model = module.Model(module.ModelArgs.from_dict({**sizes, **changes}))
    mx.eval(model.parameters())
    return model


def small_moe() -> Any:
    """A mixture of four experts of random weights."""
    return small_model(kind="mixtral", num_local_experts=4, num_experts_per_tok=2)


def row(length: int, offset: int = 0, seed: int = 0) -> TokenRow:
    """A row of random tokens from 1 to 8, so that there is a frequency to learn."""
    tokens = np.random.default_rng([seed, length]).integers(1, 9, length)
    return TokenRow(tokens.astype(np.int32), offset, keys=1)


def small_rows(lengths: tuple[int, ...] = (5, 9, 12, 7, 20, 6, 11, 40)) -> TokenRows:
    """Rows of these lengths, the first three tokens unsupervised, and three to validate on."""
    train = tuple(row(length, 3, seed) for seed, length in enumerate(lengths))
    return TokenRows(train, tuple(row(8 + seed, 3, 100 + seed) for seed in range(3)), ())


class Rowset:
    """Rows as mlx-lm's data sets give them, each with as many keys as it says."""

    def __init__(self, rows: Sequence[TokenRow]) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, int]:
        return {"row": index, **dict.fromkeys(map(str, range(1, self.rows[index].keys)), 0)}

    def process(self, row: dict[str, int]) -> tuple[list[int], int]:
        return self.rows[row["row"]].tokens.tolist(), self.rows[row["row"]].offset


def small_settings(folder: Path, **values: Any) -> Settings:
    """Settings for the small model; `mlxdoctor` takes the table of that name."""
    usual = {
        "adapter_path": str(folder),
        "iters": 6,
        "batch_size": 2,
        "num_layers": -1,
        "learning_rate": 1e-2,
        "lora_parameters": {"rank": 2, "scale": 4.0, "dropout": 0.0},
        "max_seq_length": 32,
    }
    return Settings.from_values({**usual, **values})


def small_parts(
    settings: Settings, model: Any = None, rows: TokenRows | None = None, **changes: Any
) -> Parts:
    """The mode's parts, with the small model and rows in the place of files."""
    given = model if model is not None else small_model()
    usual = parts_of(settings)
    return replace(
        usual,
        load=lambda _: (given, None),
        encode=lambda _, __: rows or small_rows(),
        **changes,
    )
