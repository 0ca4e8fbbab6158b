"""The loss: its mask against a plain loop, its gradient against finite differences."""

import math
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from mlx import nn
from mlx.utils import tree_flatten, tree_unflatten
from mlx_lm.tuner.trainer import default_loss

from mlxdoctor.twin.attach import prepare
from mlxdoctor.twin.batches import Batch, doubled
from mlxdoctor.twin.masked_loss import exact_loss, exact_mask
from tests.twin.small import VOCABULARY, small_model, small_settings

pytestmark = pytest.mark.slow

SPANS = [(0, 6), (2, 9), (5, 6), (1, 1), (9, 4), (0, 9)]
WIDTH = 9
#: Of the finite differences.
STEP = 2e-3


def supervised_targets(offset: int, length: int) -> list[bool]:
    """Target by target: a token of the row itself, not the first, from the offset on."""
    return [offset <= position < length for position in range(1, WIDTH)]


def test_the_mask_is_what_a_plain_loop_says() -> None:
    exact = exact_mask(mx.array(SPANS), WIDTH).tolist()
    assert exact == [supervised_targets(*span) for span in SPANS]


def test_the_loss_is_the_mean_over_supervised_targets() -> None:
    model = small_model()
    tokens = mx.array(np.random.default_rng(0).integers(1, VOCABULARY, (len(SPANS), WIDTH)))
    logits = np.array(model(tokens[:, :-1]).astype(mx.float32), np.float64)
    total, count = 0.0, 0
    for row, span in enumerate(SPANS):
        for column, counts in enumerate(supervised_targets(*span)):
            if counts:
                scores = logits[row, column]
                target = int(tokens[row, column + 1].item())
                total += math.log(np.exp(scores).sum()) - scores[target]
                count += 1
    mean, supervised = exact_loss(model, tokens, mx.array(SPANS))
    assert supervised.item() == count
    assert mean.item() == pytest.approx(total / count, abs=1e-5)


def test_padding_has_no_influence_and_the_padding_token_is_no_target() -> None:
    model = small_model()
    spans = mx.array([[0, 4]])
    padded = [mx.array([[5, 6, 7, 8, pad, pad, pad]]) for pad in (0, 9)]
    exact = [exact_loss(model, tokens, spans)[0].item() for tokens in padded]
    parity = [default_loss(model, tokens, spans)[0].item() for tokens in padded]
    assert exact[0] == exact[1]
    assert abs(parity[0] - parity[1]) > 1e-3


def test_padding_to_few_widths_leaves_a_usual_loss_as_it_is() -> None:
    batch = Batch(np.full((2, 97), 5, np.int32), np.array([[0, 90], [3, 40]], np.int32), (0, 1))
    wide, model, spans = doubled(batch, 200), small_model(), mx.array(batch.spans)
    assert (wide.tokens.shape, doubled(batch, 100).tokens.shape) == ((2, 129), (2, 100))
    for loss in (exact_loss, default_loss):
        losses = [loss(model, mx.array(each.tokens), spans)[0] for each in (batch, wide)]
        assert mx.allclose(*losses, atol=1e-5)


def test_nothing_supervised_is_a_loss_of_zero_and_in_parity_nan() -> None:
    tokens, spans = mx.array([[5, 6, 7, 8]]), mx.array([[9, 3]])
    mean, supervised = exact_loss(small_model(), tokens, spans)
    assert (mean.item(), supervised.item()) == (0.0, 0)
    assert math.isnan(default_loss(small_model(), tokens, spans)[0].item())


def test_the_gradient_is_that_of_finite_differences(tmp_path: Path) -> None:
    model = small_model()
    prepare(model, small_settings(tmp_path))
    # B starts at zero, where A has no gradient: move away from there.
    start = {
        name: mx.random.normal(one.shape, key=mx.random.key(index)) * 0.2
        for index, (name, one) in enumerate(tree_flatten(model.trainable_parameters()))
    }
    tokens = mx.random.randint(1, VOCABULARY, (3, WIDTH), key=mx.random.key(9))
    spans = mx.array([[2, 9], [0, 6], [4, 7]])

    def loss_at(shift: dict[str, mx.array], size: float) -> float:
        moved = [(name, one + size * shift[name]) for name, one in start.items()]
        model.update(tree_unflatten(moved))
        value: float = exact_loss(model, tokens, spans)[0].item()
        return value

    model.update(tree_unflatten(list(start.items())))
    (_, _), gradient = nn.value_and_grad(model, exact_loss)(model, tokens, spans)
    found = dict(tree_flatten(gradient))
    assert found.keys() == start.keys()
    for seed in range(4):
        shift = {
            name: mx.random.normal(one.shape, key=mx.random.key(1000 * (seed + 1) + index))
            for index, (name, one) in enumerate(start.items())
        }
        slope = sum((found[name] * shift[name]).sum() for name in start).item()
        # The central difference of fourth order: the loss is far from straight here.
        near = loss_at(shift, STEP) - loss_at(shift, -STEP)
        far = loss_at(shift, 2 * STEP) - loss_at(shift, -2 * STEP)
        measured = (8 * near - far) / (12 * STEP)
        assert measured == pytest.approx(slope, rel=0.005, abs=2e-3)
