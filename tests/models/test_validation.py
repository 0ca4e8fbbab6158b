"""Validation rows measured on demand, on the fixtures."""

from dataclasses import replace

import pytest

from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.dataset import Dataset
from mlxdoctor.evidence.supervision import build
from mlxdoctor.evidence.tokenizer import Tokenizer
from mlxdoctor.models import load as models
from mlxdoctor.models.losses import Meter
from mlxdoctor.models.mean_loss import Targets, mean_loss
from mlxdoctor.models.validation import ValidationRows, prepare
from tests.conftest import FIXTURES, RUNS

pytestmark = pytest.mark.slow

RUN = RUNS / "healthy-ordinary"


def prepared(base: BaseModel | None = None) -> ValidationRows:
    base = base or BaseModel.read(FIXTURES / "base")
    tokenizer, dataset = (
        Tokenizer.read(FIXTURES / "base"),
        Dataset.read(FIXTURES / "data" / "geography"),
    )
    config = TrainingConfig.read(RUN / "adapter_config.json")
    meter = Meter(models.load(base, RUN / "adapters.safetensors"), tokenizer)
    return prepare(meter, build(dataset, tokenizer, config, split="valid"))


def test_the_losses_are_those_that_mlx_lm_logged() -> None:
    validation = prepared()
    rows = validation.measure(validation.total)
    assert (len(rows), validation.total, validation.affordable) == (40, 40, 40)
    targets = Targets(masks_prompt=False)
    # What `mlx_lm.lora` wrote: before the first update, and before the last one.
    assert mean_loss(rows, "base", targets).value == pytest.approx(4.150, abs=6e-4)
    assert mean_loss(rows, "tuned", targets).value == pytest.approx(0.183, abs=2e-3)


def test_a_large_model_affords_fewer_rows() -> None:
    base = BaseModel.read(FIXTURES / "base")
    large = replace(
        base,
        tensors={
            **base.tensors,
            **{f"t{i}": t for i, t in enumerate(list(base.tensors.values()) * 20)},
        },
    )
    assert 0 < prepared(base=large).affordable < 40
