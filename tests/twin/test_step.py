"""One step: accumulation, clipping, and what is left alone."""

from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten

from mlxdoctor.twin.attach import prepare
from mlxdoctor.twin.masked_loss import exact_loss
from mlxdoctor.twin.step import build_optimizer, compile_step
from tests.twin.small import small_model, small_settings

pytestmark = pytest.mark.slow

TOKENS = [[5, 6, 7, 8, 9, 10], [11, 12, 13, 0, 0, 0], [3, 4, 5, 6, 0, 0], [9, 8, 7, 6, 5, 4]]
SPANS = [[1, 6], [2, 3], [0, 4], [4, 6]]


class Bench:
    """A prepared small model with an optimizer, and steps on it."""

    def __init__(self, folder: Path, optimizer: str = "sgd", **ours: Any) -> None:
        settings = small_settings(folder, optimizer=optimizer, learning_rate=0.1, mlxdoctor=ours)
        self.model = small_model()
        prepare(self.model, settings)
        self.model.update(
            {"model": {"layers": [{"self_attn": {"q_proj": {"lora_b": mx.ones((2, 16)) * 0.1}}}]}}
        )
        self.optimizer = build_optimizer(settings)
        self.optimizer.init(self.model.trainable_parameters())
        self.step = compile_step(self.model, self.optimizer, exact_loss, settings)

    def __call__(self, rows: Any, accumulated: Any = None, is_update: bool = True) -> Any:
        tokens = mx.array([TOKENS[row] for row in rows])
        spans = mx.array([SPANS[row] for row in rows])
        output = self.step(tokens, spans, accumulated, is_update)
        mx.eval(self.model.state, self.optimizer.state, output)
        return output

    @property
    def values(self) -> dict[str, list[Any]]:
        trees = {"model": self.model.trainable_parameters(), "optimizer": self.optimizer.state}
        return {
            f"{kind}.{name}": one.tolist()
            for kind, tree in trees.items()
            for name, one in tree_flatten(tree)
        }


def largest_difference(one: Bench, other: Bench) -> float:
    left, right = one.values, other.values
    assert left.keys() == right.keys()
    return max(mx.abs(mx.array(left[n]) - mx.array(right[n])).max().item() for n in left)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_accumulating_rows_one_by_one_is_one_batch_of_them(tmp_path: Path, optimizer: str) -> None:
    together, apart = Bench(tmp_path, optimizer), Bench(tmp_path, optimizer)
    before = apart.values
    whole = together([0, 1, 2, 3])
    output = None
    for row in (0, 1, 2, 3):
        accumulated = None if output is None else output.accumulated
        output = apart([row], accumulated, is_update=row == 3)
        if row < 3:
            assert apart.values == before
    assert output.grad_norm.item() == pytest.approx(whole.grad_norm.item(), rel=1e-5)
    assert largest_difference(together, apart) < (1e-6 if optimizer == "sgd" else 1e-3)
    assert apart.values != before


def test_equal_weights_give_another_mean_where_lengths_differ(tmp_path: Path) -> None:
    # The near miss of the test above: this is what mlx-lm does.
    together, apart = Bench(tmp_path), Bench(tmp_path, mode="parity")
    together([0, 1])
    apart([1], apart([0], None, is_update=False).accumulated)
    assert largest_difference(together, apart) > 1e-4


def test_clipping_scales_the_gradient_to_the_limit_and_leaves_smaller_ones(tmp_path: Path) -> None:
    plain = Bench(tmp_path)
    norm = plain([0, 1, 2, 3]).grad_norm.item()
    assert norm > 0.1
    loose, tight = Bench(tmp_path, grad_clip=norm * 2), Bench(tmp_path, grad_clip=norm / 2)
    start = Bench(tmp_path)
    for bench in (loose, tight):
        # The norm that is reported is the one before clipping.
        assert bench([0, 1, 2, 3]).grad_norm.item() == pytest.approx(norm, rel=1e-5)
    assert largest_difference(plain, loose) < 1e-6

    def moved(bench: Bench) -> float:
        total = 0.0
        for name, one in bench.values.items():
            if name.startswith("model."):
                total += (mx.array(one) - mx.array(start.values[name])).square().sum().item()
        return total**0.5

    assert moved(plain) == pytest.approx(0.1 * norm, rel=1e-4)
    assert moved(tight) == pytest.approx(0.1 * norm / 2, rel=1e-4)


def test_half_precision_stays_half_precision(tmp_path: Path) -> None:
    model = small_model()
    model.set_dtype(mx.bfloat16)
    settings = small_settings(tmp_path, fine_tune_type="full")
    prepare(model, settings)
    optimizer = build_optimizer(settings)
    optimizer.init(model.trainable_parameters())
    step = compile_step(model, optimizer, exact_loss, settings)
    batch = mx.array(TOKENS), mx.array(SPANS)
    step(*batch, step(*batch, None, False).accumulated, True)
    assert {one.dtype for _, one in tree_flatten(model.parameters())} == {mx.bfloat16}
