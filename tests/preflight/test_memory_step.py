"""A real training takes what was predicted, and a step of another length the time that was told."""

import pytest

from fixtures.lab.preflight.memory import step_of
from fixtures.lab.preflight.memory_configurations import Configuration, configurations
from fixtures.lab.preflight.memory_measure import base_of, lengths_of, rows_of, train
from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.preflight.memory import predict_memory
from mlxdoctor.preflight.model_shape import shape_of


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_peak_of_a_real_training() -> None:
    configuration = Configuration("tiny", 3, 96, {"num_layers": 2})
    rows = rows_of(configuration)
    found = train(configuration, rows, 4)
    assert not isinstance(found, str), found
    shape = shape_of(BaseModel.read(base_of(configuration)))
    assert shape is not None
    predicted = predict_memory(shape, step_of(configuration, lengths_of(configuration, rows)))
    assert predicted.peak == pytest.approx(found["peak"], rel=0.15)


def test_every_configuration_has_a_name_of_its_own_and_half_are_held_back() -> None:
    every = list(configurations())
    assert len({one.name for one, _ in every}) == len(every) >= 40
    held_back = sum(half == "held back" for _, half in every)
    assert held_back == pytest.approx(len(every) / 2, abs=2)
