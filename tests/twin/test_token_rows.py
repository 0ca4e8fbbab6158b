"""Rows that mlx-lm has no reader for, as its own data sets encode them."""

from dataclasses import replace
from pathlib import Path

import pytest

from mlxdoctor.evidence.supervision import build
from mlxdoctor.evidence.tokenizer import Tokenizer
from mlxdoctor.models.load import load_tokenizer
from mlxdoctor.preflight.configuration import planned_config
from mlxdoctor.run import Run
from mlxdoctor.safety.errors import InputError
from mlxdoctor.twin.rerun import AsConfigured
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


def test_of_a_text_the_question_is_masked(tmp_path: Path) -> None:
    """As the row encoder has its place; mlx-lm refuses to, where there is none."""
    marked = [{"text": f"Is lake {at} deep? => no, {at}"} for at in range(8)]
    data = write_data(tmp_path, train=marked)
    settings = Settings(model=str(BASE), data=str(data.path), mask_prompt=True, mode="parity")
    tokenizer = load_tokenizer(BASE)
    rows = build(data, Tokenizer.read(BASE), None).rows
    offsets = [row.offset for row in encode(settings, tokenizer).train]
    assert offsets == [row.prompt_length for row in rows]
    assert all(0 < offset < len(row.tokens) for offset, row in zip(offsets, rows, strict=True))
    write_data(tmp_path, train=[{"text": f"Lake {at} lies deep."} for at in range(8)])
    with pytest.raises(InputError, match="masking"):
        encode(settings, tokenizer)


def test_of_a_plan_mlx_lm_reads_the_rows(tmp_path: Path) -> None:
    data = write_data(tmp_path, train=PAIRS)
    config = planned_config(
        None, {"model": str(BASE), "data": str(data.path), "iters": 8, "num_layers": 4}
    )
    configured = Run.planned(config).need(AsConfigured)
    with pytest.raises(InputError, match="Unsupported data format"):
        configured.parts.encode(configured.settings, None)
