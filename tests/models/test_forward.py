"""What forward passes give: the same as the whole model at once, however it is computed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx import nn

from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.models import cpu_functions, forward
from mlxdoctor.models import load as models
from mlxdoctor.models.forward import Question, predict
from mlxdoctor.models.load import in_float32
from tests.conftest import FIXTURES

LENGTHS = (3, 40, 17, 9)


@pytest.fixture(scope="module")
def model() -> Any:
    return models.load(BaseModel.read(FIXTURES / "base")).select("base")


@pytest.fixture(scope="module")
def questions() -> list[Question]:
    random = np.random.default_rng(0)
    rows = [random.integers(0, 768, n + 1).astype(np.int32) for n in LENGTHS]
    return [Question(row[:-1], np.stack([row[1:], row[:-1]], axis=1)[-5:]) for row in rows]


@contextmanager
def slowly() -> Iterator[None]:
    yield


def test_losses_are_those_of_the_whole_model(model: Any, questions: list[Question]) -> None:
    for asked, found in zip(questions, predict(model, questions, [2, 5]), strict=True):
        places = len(asked.targets)
        logits = model(mx.array(asked.tokens)[None])[0, -places:]
        for number in range(2):
            expected = nn.losses.cross_entropy(logits, mx.array(asked.targets[:, number]))
            np.testing.assert_allclose(found.losses[:, number], np.array(expected), atol=2e-4)
        chances = np.array(mx.softmax(logits, axis=-1), np.float64)[:, [2, 5]].sum(-1)
        np.testing.assert_allclose(found.ends, -np.log(chances), atol=2e-4)
        assert found.greedy.tolist() == mx.argmax(logits, axis=-1).tolist()


@pytest.mark.parametrize("on_cpu", [True, False])
def test_small_batches_and_mlxs_own_functions_give_the_same(
    model: Any, questions: list[Question], monkeypatch: pytest.MonkeyPatch, on_cpu: bool
) -> None:
    expected = predict(model, questions, [2])
    monkeypatch.setattr(forward, "BATCH_TOKENS", {on_cpu: 32})
    monkeypatch.setattr(forward, "LOGIT_BYTES", {on_cpu: 3 * 4 * 768})
    monkeypatch.setattr(forward, "on_cpu", lambda: on_cpu)
    monkeypatch.setattr(forward, "quick_functions", slowly)
    for one, other in zip(predict(model, questions, [2]), expected, strict=True):
        np.testing.assert_allclose(one.losses, other.losses, atol=2e-4)
        np.testing.assert_allclose(one.ends, other.ends, atol=2e-4)
        assert one.greedy.tolist() == other.greedy.tolist()


def test_a_model_that_scales_its_logits_is_taken_whole(
    model: Any, questions: list[Question]
) -> None:
    class Scaled:
        def __init__(self) -> None:
            self.model, self.lm_head = model.model, model.model.embed_tokens.as_linear

        def __call__(self, tokens: Any) -> Any:
            return 0.25 * model(tokens)

    (found,) = predict(Scaled(), questions[:1])
    logits = 0.25 * model(mx.array(questions[0].tokens)[None])[0]
    expected = nn.losses.cross_entropy(logits, mx.array(questions[0].targets[:, 0]))
    np.testing.assert_allclose(found.losses[:, 0], np.array(expected), atol=2e-4)


def test_what_a_models_parts_are_is_tried_once_and_of_a_broken_model_again(
    model: Any, questions: list[Question]
) -> None:
    asked: list[str] = []

    class Counted:
        def __init__(self) -> None:
            self.model, self.factor = self.body, 1.0
            self.lm_head = lambda hidden: self.factor * model.model.embed_tokens.as_linear(hidden)

        def body(self, tokens: Any) -> Any:
            asked.append("body")
            return model.model(tokens)

        def __call__(self, tokens: Any) -> Any:
            asked.append("whole")
            return self.lm_head(model.model(tokens))

    counted = Counted()
    counted.factor = float("nan")
    predict(counted, questions[:1])
    # The size of its vocabulary, and whether the parts are all there is.
    assert asked == ["whole", "whole", "body", "body"]
    counted.factor = 1.0
    asked.clear()
    first = predict(counted, questions[:1])
    assert asked == ["whole", "whole", "body", "body"]
    asked.clear()
    again = predict(counted, questions[:1])
    assert asked == ["body"]
    np.testing.assert_array_equal(first[0].losses, again[0].losses)


def test_an_end_token_that_the_model_does_not_have_is_never_predicted(
    model: Any, questions: list[Question]
) -> None:
    (known,) = predict(model, questions[:1], [2])
    (both,) = predict(model, questions[:1], [2, 1_000_000])
    (alien,) = predict(model, questions[:1], [1_000_000])
    np.testing.assert_array_equal(both.ends, known.ends)
    np.testing.assert_array_equal(alien.losses, known.losses)
    assert np.isinf(alien.ends).all()


def test_tokens_that_the_model_does_not_have_are_refused(
    model: Any, questions: list[Question]
) -> None:
    alien = Question(questions[0].tokens, np.full((1, 1), 768, np.int32))
    with pytest.raises(ValueError, match="token 768 is outside the vocabulary of 768"):
        predict(model, [alien])
    assert predict(model, []) == []


@pytest.mark.parametrize("mask", [None, "causal", "left"])
def test_attention_and_gate_are_mlxs(monkeypatch: pytest.MonkeyPatch, mask: str | None) -> None:
    monkeypatch.setattr(
        cpu_functions, "SLOW_PROCESSORS", {cpu_functions.platform.machine().lower()}
    )
    monkeypatch.setattr(cpu_functions, "on_cpu", lambda: True)
    from mlx_lm.models import activations, llama

    q, k, v = (mx.random.normal((2, heads, 6, 16)) for heads in (4, 2, 2))
    known = mx.tri(6, dtype=mx.bool_)[None, None] & (mx.arange(6) > 1) if mask == "left" else mask
    seen = slice(2, None) if mask == "left" else slice(None)
    values = 30 * mx.random.normal((3, 40))

    def computed() -> list[Any]:
        attended = mx.fast.scaled_dot_product_attention(q, k, v, scale=0.3, mask=known)
        total = mx.logsumexp(values, axis=-1, keepdims=True)
        return [np.array(one) for one in (attended[:, :, seen], llama.swiglu(q, k[:, :1]), total)]

    expected = computed()
    before = mx.fast.scaled_dot_product_attention, llama.swiglu, mx.logsumexp
    with cpu_functions.quick_functions(), cpu_functions.quick_functions():
        assert llama.swiglu is not activations.swiglu
        for one, other in zip(computed(), expected, strict=True):
            np.testing.assert_allclose(one, other, atol=2e-5)
        half = mx.fast.scaled_dot_product_attention(
            *(one.astype(mx.bfloat16) for one in (q, k, v)), scale=0.3, mask=known
        )
        assert half.dtype == mx.bfloat16
    assert (mx.fast.scaled_dot_product_attention, llama.swiglu, mx.logsumexp) == before


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
