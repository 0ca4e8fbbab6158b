"""What of a model is counted."""

from __future__ import annotations

import pytest

from tests.twin.small import small_model

pytestmark = pytest.mark.slow


def test_quantized_weights_are_counted_unpacked() -> None:
    from mlx import nn

    from mlxdoctor.models.parameters import count_parameters

    model = small_model(hidden_size=32, intermediate_size=64)
    model.freeze()
    _, whole = count_parameters(model)
    nn.quantize(model, group_size=32, bits=4)
    assert count_parameters(model)[1] == whole
