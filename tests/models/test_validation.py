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
from mlxdoctor.models.readings import Reading, mean_loss
from mlxdoctor.models.validation import WITHOUT_END, ValidationRows, prepare
from tests.conftest import FIXTURES, RUNS

pytestmark = pytest.mark.slow

RUN = RUNS / "healthy-ordinary"


def prepared(data: str = "geography", base: BaseModel | None = None) -> ValidationRows:
    base = base or BaseModel.read(FIXTURES / "base")
    tokenizer, dataset = (
        Tokenizer.read(FIXTURES / "base"),
        Dataset.read(FIXTURES / "data" / data),
    )
    config = TrainingConfig.read(RUN / "adapter_config.json")
    meter = Meter(models.load(base, RUN / "adapters.safetensors"), tokenizer)
    return prepare(meter, build(dataset, tokenizer, config, split="valid"), dataset)


def test_the_losses_are_those_that_mlx_lm_logged() -> None:
    validation = prepared()
    rows = validation.measure(None, validation.total)
    assert (len(rows), validation.total, validation.affordable) == (40, 40, 40)
    reading = Reading(masks_prompt=False)
    # What `mlx_lm.lora` wrote: before the first update, and before the last one.
    assert mean_loss(rows, "base", reading).value == pytest.approx(4.150, abs=6e-4)
    assert mean_loss(rows, "tuned", reading).value == pytest.approx(0.183, abs=2e-3)


def test_rows_can_be_measured_in_other_formats() -> None:
    validation = prepared()
    plain = next(one for one in validation.formats if one.pattern and one.pattern.startswith("Q:"))
    rows = validation.measure(plain, 6)
    assert len(rows) == 6
    assert all(row.tuned is not None and row.prompt_length > 0 for row in rows)
    # The template's own markers are no other format of a model that writes ChatML.
    assert not any("im_start" in str(one) for one in validation.formats if one.apart)


def test_text_has_no_other_format_but_its_end() -> None:
    assert prepared("geography-text").formats == (WITHOUT_END,)


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
