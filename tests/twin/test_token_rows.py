"""Rows that mlx-lm has no reader for, as its own data sets encode them."""

from dataclasses import replace
from pathlib import Path

import pytest

from mlxdoctor.models.load import load_tokenizer
from mlxdoctor.preflight.configuration import planned_config
from mlxdoctor.run import Run
from mlxdoctor.safety.errors import InputError
from mlxdoctor.twin.rerun import as_configured
from mlxdoctor.twin.settings import Settings
from mlxdoctor.twin.token_rows import TokenRows, encode
from tests.checks.data_evidence import BASE, write_data

PAIRS = [
    {"prompt": f"Which lake is {at}?", "chosen": f"Lake {at}.", "rejected": "None."}
    for at in range(8)
]


def tokens(rows: TokenRows) -> list[tuple[list[int], int]]:
    return [(row.tokens.tolist(), row.offset) for row in (*rows.train, *rows.valid)]


@pytest.mark.parametrize("mask", [False, True])
def test_pairs_are_encoded_as_prompt_and_completion(tmp_path: Path, mask: bool) -> None:
    data = write_data(tmp_path, train=PAIRS, valid=PAIRS[:2])
    settings = Settings(model=str(BASE), data=str(data.path), mask_prompt=mask, mode="parity")
    tokenizer = load_tokenizer(BASE)
    renamed = replace(settings, completion_feature="chosen", prompt_feature="prompt")
    assert tokens(encode(settings, tokenizer, data)) == tokens(encode(renamed, tokenizer))
    with pytest.raises(InputError, match="Unsupported data format"):
        encode(settings, tokenizer)


def test_of_a_plan_mlx_lm_reads_the_rows(tmp_path: Path) -> None:
    data = write_data(tmp_path, train=PAIRS)
    config = planned_config(
        None, {"model": str(BASE), "data": str(data.path), "iters": 8, "num_layers": 4}
    )
    settings, parts = as_configured(Run.planned(config))
    with pytest.raises(InputError, match="Unsupported data format"):
        parts.encode(settings, None)
