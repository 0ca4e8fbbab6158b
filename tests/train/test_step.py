"""One step: accumulation, clipping, the guard, and what is left alone."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from tests.train.small import VOCABULARY, small_model, small_settings

pytestmark = pytest.mark.slow

TOKENS = [[5, 6, 7, 8, 9, 10], [11, 12, 13, 0, 0, 0], [3, 4, 5, 6, 0, 0], [9, 8, 7, 6, 5, 4]]
SPANS = [[1, 6], [2, 3], [0, 4], [4, 6]]
#: A token that `poisoned` answers with NaN.
POISON = VOCABULARY - 1


def poisoned(model: Any, tokens: Any, spans: Any) -> Any:
    """The exact loss, NaN where a batch holds the poison."""
    import mlx.core as mx

    from mlxdoctor.train.masked_loss import exact_loss

    mean, supervised = exact_loss(model, tokens, spans)
    return mx.where((tokens == POISON).any(), math.nan, 1.0) * mean, supervised


class Bench:
    """A prepared small model with an optimizer, and steps on it."""

    def __init__(self, folder: Path, optimizer: str = "sgd", **extras: Any) -> None:
        import mlx.core as mx

        from mlxdoctor.train.attach import prepare
        from mlxdoctor.train.optimizers import build_optimizer
        from mlxdoctor.train.settings import Extras
        from mlxdoctor.train.step import compile_step

        settings = small_settings(folder, optimizer=optimizer, learning_rate=0.1)
        self.model = small_model()
        prepare(self.model, settings)
        self.model.update(
            {"model": {"layers": [{"self_attn": {"q_proj": {"lora_b": mx.ones((2, 16)) * 0.1}}}]}}
        )
        self.optimizer = build_optimizer(settings)
        self.optimizer.init(self.model.trainable_parameters())
        self.step = compile_step(self.model, self.optimizer, poisoned, Extras(**extras))

    def __call__(self, rows: Any, accumulated: Any = None, is_update: bool = True) -> Any:
        import mlx.core as mx

        tokens = mx.array([TOKENS[row] if isinstance(row, int) else row for row in rows])
        spans = mx.array([SPANS[row] if isinstance(row, int) else [0, 6] for row in rows])
        output = self.step(tokens, spans, accumulated, is_update)
        mx.eval(self.model.state, self.optimizer.state, output)
        return output

    @property
    def values(self) -> dict[str, list[Any]]:
        from mlx.utils import tree_flatten

        trees = {"model": self.model.trainable_parameters(), "optimizer": self.optimizer.state}
        return {
            f"{kind}.{name}": one.tolist()
            for kind, tree in trees.items()
            for name, one in tree_flatten(tree)
        }


def largest_difference(one: Bench, other: Bench) -> float:
    import mlx.core as mx

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
    assert output is not None
    assert output.grad_norm.item() == pytest.approx(whole.grad_norm.item(), rel=1e-5)
    assert largest_difference(together, apart) < (1e-6 if optimizer == "sgd" else 1e-3)
    assert apart.values != before


def test_equal_weights_give_another_mean_where_lengths_differ(tmp_path: Path) -> None:
    # The near miss of the test above: this is what mlx-lm does.
    together, apart = Bench(tmp_path), Bench(tmp_path, mode="parity", max_skipped=10)
    together([0, 1])
    apart([1], apart([0], None, is_update=False).accumulated)
    assert largest_difference(together, apart) > 1e-4


def test_a_batch_that_is_not_finite_changes_nothing(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "adam")
    bench([0, 1])
    before = bench.values
    output = bench([0, [POISON] * 6])
    assert not output.sound.item()
    assert math.isnan(output.loss.item())
    assert bench.values == before
    assert bench([2, 3]).sound.item()
    assert bench.values != before


def test_without_the_guard_it_spreads(tmp_path: Path) -> None:
    bench = Bench(tmp_path, max_skipped=-1)
    output = bench([0, [POISON] * 6])
    assert output.sound.item()
    assert any("nan" in str(one) for one in bench.values.values())


def test_a_broken_batch_leaves_the_others_of_its_update(tmp_path: Path) -> None:
    with_poison, without = Bench(tmp_path), Bench(tmp_path)
    output = with_poison([0, 1], None, is_update=False)
    output = with_poison([[POISON] * 6], output.accumulated, is_update=False)
    assert not output.sound.item()
    with_poison([2], output.accumulated)
    without([0, 1, 2])
    assert largest_difference(with_poison, without) < 1e-6


def test_an_update_of_broken_batches_alone_is_none(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "adam")
    before = bench.values
    output = bench([[POISON] * 6], None, is_update=False)
    bench([[POISON] * 6], output.accumulated)
    assert bench.values == before


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
        import mlx.core as mx

        total = 0.0
        for name, one in bench.values.items():
            if name.startswith("model."):
                total += (mx.array(one) - mx.array(start.values[name])).square().sum().item()
        return total**0.5

    assert moved(plain) == pytest.approx(0.1 * norm, rel=1e-4)
    assert moved(tight) == pytest.approx(0.1 * norm / 2, rel=1e-4)


def test_the_norms_of_the_modules_add_up(tmp_path: Path) -> None:
    output = Bench(tmp_path, module_norms=True)([0, 1, 2, 3])
    assert len(output.module_norms) == 14
    assert "model.layers.0.self_attn.q_proj" in output.module_norms
    total = sum(one.item() ** 2 for one in output.module_norms.values()) ** 0.5
    assert total == pytest.approx(output.grad_norm.item(), rel=1e-5)
    assert Bench(tmp_path)([0]).module_norms == {}


def test_half_precision_stays_half_precision(tmp_path: Path) -> None:
    import mlx.core as mx
    from mlx.utils import tree_flatten

    from mlxdoctor.train.attach import prepare
    from mlxdoctor.train.masked_loss import exact_loss
    from mlxdoctor.train.optimizers import build_optimizer
    from mlxdoctor.train.step import compile_step

    model = small_model()
    model.set_dtype(mx.bfloat16)
    settings = small_settings(tmp_path, fine_tune_type="full")
    prepare(model, settings)
    optimizer = build_optimizer(settings)
    optimizer.init(model.trainable_parameters())
    step = compile_step(model, optimizer, exact_loss, settings.extras)
    batch = mx.array(TOKENS), mx.array(SPANS)
    step(*batch, step(*batch, None, False).accumulated, True)
    assert {one.dtype for _, one in tree_flatten(model.parameters())} == {mx.bfloat16}
