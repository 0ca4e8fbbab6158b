"""What the probe says of the tokens that a model is given, and of what it is expected to train."""

from typing import Any

import mlx.core as mx
import pytest
from mlx import nn
from mlx_lm.tuner.utils import linear_to_lora_layers

from fixtures.trainers.common import (
    IGNORED,
    answer_loss,
    encoded,
    load_base,
    next_token_batch,
    padded,
)
from mlxdoctor import probe
from mlxdoctor.finding import Severity
from tests.probe.conftest import codes, probed


@pytest.mark.slow
def test_prompts_that_never_reach_the_model(base: Any) -> None:
    pairs = encoded(base[1])

    def batch(*, blank: bool, late: int = 0) -> tuple[mx.array, mx.array]:
        inputs = [[0] * len(p) + a[:-1] if blank else p + a[:-1] for p, a in pairs]
        targets = [[IGNORED] * (len(p) - 1 + late) + a[late:] for p, a in pairs]
        return padded(inputs, 0), padded(targets, IGNORED)

    found = {one.code: one for one in probed(base, answer_loss, batch(blank=True)).findings}
    blank = found["step-alignment.blank-prompt"]
    assert blank.message.startswith("In 4 of 4 rows every token before the trained ones is token 0")
    assert blank.measured["shortest"] == min(len(prompt) for prompt, _ in pairs)
    assert "step-alignment.first-token-untrained" not in found
    assert probed(base, answer_loss, batch(blank=False)).sound
    for is_blank in (True, False):
        result = probed(base, answer_loss, batch(blank=is_blank, late=1))
        assert "step-alignment.first-token-untrained" in codes(result)


@pytest.mark.slow
def test_rows_padded_on_the_left(base: Any) -> None:
    rows = [prompt + answer for prompt, answer in encoded(base[1])]
    width = max(map(len, rows)) + 5
    tokens = mx.array([[0] * (width - len(row)) + row for row in rows])
    begins = mx.array([[width - len(row)] for row in rows])

    def loss(model: Any, tokens: mx.array, begins: mx.array) -> mx.array:
        mask = mx.arange(tokens.shape[1] - 1)[None, :] >= begins
        losses = nn.losses.cross_entropy(model(tokens[:, :-1]), tokens[:, 1:])
        return (losses * mask).sum() / mask.sum()

    assert codes(probed(base, loss, (tokens, begins))) == []


@pytest.mark.slow
def test_rows_of_one_token(base: Any) -> None:
    tokens = mx.full((3, 12), 7)

    def loss(model: Any, tokens: mx.array) -> mx.array:
        return nn.losses.cross_entropy(model(tokens[:, :-1]), tokens[:, 1:]).mean()

    result = probed(base, loss, (tokens,))
    assert "step-alignment.blank-prompt" in codes(result, Severity.ERROR)
    some = mx.concatenate([tokens, padded([row[:12] for row, _ in encoded(base[1], 1)], 0)])
    found = {one.code: one for one in probed(base, loss, (some,)).findings}
    assert found["step-alignment.blank-prompt"].severity is Severity.WARNING
    assert found["step-alignment.blank-prompt"].message == "3 of 4 rows are one token repeated."


def trained(kind: str) -> tuple[Any, Any]:
    model, tokenizer = load_base()
    if kind in {"lora", "dora", "unfrozen"}:
        if kind != "unfrozen":
            model.freeze()
        settings = {"rank": 4, "scale": 10.0, "dropout": 0.0}
        linear_to_lora_layers(model, len(model.layers), settings, use_dora=kind == "dora")
    elif kind == "nothing":
        model.freeze()
    elif kind == "part":
        model.freeze()
        model.model.layers[-1].unfreeze()
    return model, tokenizer


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "expect", "severity", "code"),
    [
        ("lora", None, None, None),
        ("lora", "lora", None, None),
        ("lora", "full", "warning", "frozen"),
        ("dora", None, None, None),
        ("dora", "lora", None, None),
        ("unfrozen", "lora", "error", "outside-adapter"),
        ("whole", None, "warning", "no-adapter"),
        ("whole", "lora", "error", "no-adapter"),
        ("whole", "full", None, None),
        ("part", None, "info", "no-adapter"),
        ("part", "lora", "error", "no-adapter"),
        ("part", "full", "info", "frozen"),
        ("nothing", "lora", "error", "frozen"),
    ],
)
def test_what_is_expected(kind: str, expect: str, severity: str, code: str) -> None:
    model, tokenizer = trained(kind)
    result = probe(
        model, answer_loss, next_token_batch(tokenizer), None, tokenizer, 1, expect=expect
    )
    state = next(one for one in result.outcomes if one.check == "step-state")
    found = [(one.severity.value, one.code) for one in state.findings]
    assert found == ([(severity, f"step-state.{code}")] if code else [])
    assert (result.headline.endswith("nothing was found")) == (not result.findings)
