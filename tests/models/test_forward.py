"""What forward passes give: the same as the whole model at once, however it is computed."""

from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx import nn

from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.models import forward
from mlxdoctor.models import load as models
from mlxdoctor.models.forward import Question, predict
from mlxdoctor.models.load import count_parameters, in_float32
from tests.conftest import FIXTURES
from tests.twin.small import small_model

LENGTHS = (3, 40, 17, 9)


@pytest.fixture(scope="module")
def model() -> Any:
    return models.load(BaseModel.read(FIXTURES / "base")).select("base")


@pytest.fixture(scope="module")
def questions() -> list[Question]:
    random = np.random.default_rng(0)
    rows = [random.integers(0, 768, n + 1).astype(np.int32) for n in LENGTHS]
    return [Question(row[:-1], np.stack([row[1:], row[:-1]], axis=1)[-5:]) for row in rows]


def test_losses_are_those_of_the_whole_model(model: Any, questions: list[Question]) -> None:
    for asked, found in zip(questions, predict(model, questions), strict=True):
        places = len(asked.targets)
        logits = model(mx.array(asked.tokens)[None])[0, -places:]
        for number in range(2):
            expected = nn.losses.cross_entropy(logits, mx.array(asked.targets[:, number]))
            np.testing.assert_allclose(found.losses[:, number], np.array(expected), atol=2e-4)
        assert found.greedy.tolist() == mx.argmax(logits, axis=-1).tolist()


@pytest.mark.parametrize("on_cpu", [True, False])
def test_small_batches_and_mlxs_own_functions_give_the_same(
    model: Any, questions: list[Question], monkeypatch: pytest.MonkeyPatch, on_cpu: bool
) -> None:
    expected = predict(model, questions)
    monkeypatch.setattr(forward, "BATCH_TOKENS", {on_cpu: 32})
    monkeypatch.setattr(forward, "LOGIT_BYTES", {on_cpu: 50 * 4 * 768})
    monkeypatch.setattr(forward, "on_cpu", lambda: on_cpu)
    for one, other in zip(predict(model, questions), expected, strict=True):
        np.testing.assert_allclose(one.losses, other.losses, atol=2e-4)
        assert one.greedy.tolist() == other.greedy.tolist()


def test_tokens_that_the_model_does_not_have_are_refused(
    model: Any, questions: list[Question]
) -> None:
    alien = Question(questions[0].tokens, np.full((1, 1), 768, np.int32))
    with pytest.raises(ValueError, match="token 768 is outside the vocabulary of 768"):
        predict(model, [alien])
    assert predict(model, []) == []


@pytest.mark.parametrize("bits", [4, 8])
def test_half_precision_and_quantised_matrices_are_written_out(bits: int) -> None:
    model = models.load(BaseModel.read(FIXTURES / "base")).select("base")
    tokens = mx.array([[5, 6, 7, 8]])
    nn.quantize(model, 32, bits, class_predicate=lambda _, one: hasattr(one, "to_quantized"))
    expected = np.array(model(tokens))
    in_float32(model)
    assert not [one for _, one in model.named_modules() if hasattr(one, "scales")]
    np.testing.assert_allclose(np.array(model(tokens)), expected, atol=1e-3)
    model.set_dtype(mx.bfloat16)
    in_float32(model)
    assert model(tokens).dtype == mx.float32


def test_quantized_weights_are_counted_unpacked() -> None:
    model = small_model(hidden_size=32, intermediate_size=64)
    model.freeze()
    _, whole = count_parameters(model)
    nn.quantize(model, group_size=32, bits=4)
    assert count_parameters(model)[1] == whole
