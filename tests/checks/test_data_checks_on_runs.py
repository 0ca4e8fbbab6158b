"""The checks of data, configuration and tokenizer on the recorded runs."""

from __future__ import annotations

import importlib

import pytest

from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.dataset import Dataset
from mlxdoctor.evidence.tokenizer import Tokenizer
from mlxdoctor.evidence.training_log import TrainingLog
from tests.checks.data_evidence import FIXTURES, rows_of, run

CHECKS = (
    "data_format",
    "data_quality",
    "label_mask",
    "learning_rate",
    "tokenizer_consistency",
    "trained_tokens",
)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("healthy-ordinary", {}),
        ("healthy-noisy-batch1", {}),
        ("healthy-masked-warmup", {}),
        ("healthy-short-low-rate", {}),
        (
            "no-supervised-tokens",
            {
                "label-mask.empty-batch": "warning",
                "label-mask.no-supervised-tokens": "warning",
            },
        ),
        ("rate-far-too-high-nan", {"learning-rate.far-above-guideline": "warning"}),
        ("rate-too-low", {"learning-rate.far-below-guideline": "warning"}),
        ("scale-too-large", {"learning-rate.scale-looks-like-alpha": "warning"}),
        ("overfitting", {"data-quality.few-rows": "warning"}),
    ],
)
def test_warnings_and_errors(name, expected):
    folder = FIXTURES / "runs" / name
    logs = [path for path in (folder / "train.log", folder / "train.jsonl") if path.is_file()]
    if not logs:
        pytest.skip(f"the fixture run {name} is not there")
    config = TrainingConfig.read(folder)
    dataset = Dataset.read(FIXTURES / config.data)
    model = FIXTURES / config.model
    evidence = (
        config,
        dataset,
        rows_of(dataset, config),
        Tokenizer.read(model),
        BaseModel.read(model),
        TrainingLog.read(logs),
    )
    found = {}
    for check in CHECKS:
        module = importlib.import_module(f"mlxdoctor.checks.{check}")
        _, codes = run(getattr(module, check), *evidence)
        found |= {code: severity for code, severity in codes.items() if severity != "info"}
    assert found == expected
