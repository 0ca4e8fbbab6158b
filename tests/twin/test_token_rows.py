"""Rows that mlx-lm masks otherwise, or has no reader for."""

from pathlib import Path

import pytest

from mlxdoctor.evidence.supervision import build
from mlxdoctor.evidence.tokenizer import Tokenizer
from mlxdoctor.models.load import load_tokenizer
from mlxdoctor.safety.errors import InputError
from mlxdoctor.twin.settings import Settings
from mlxdoctor.twin.token_rows import encode
from tests.checks.data_evidence import BASE, write_data


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


def test_pairs_are_refused_as_mlx_lm_refuses_them(tmp_path: Path) -> None:
    pairs = [{"prompt": "Which lake?", "chosen": f"Lake {n}.", "rejected": ""} for n in range(8)]
    data = write_data(tmp_path, train=pairs)
    settings = Settings(model=str(BASE), data=str(data.path), mode="parity")
    with pytest.raises(InputError, match="Unsupported data format"):
        encode(settings, load_tokenizer(BASE))
