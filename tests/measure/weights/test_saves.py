"""Norms over a run's saves, from the files alone."""

import math
from pathlib import Path
from statistics import median

import numpy as np
import pytest

from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.checkpoints import Checkpoint, CheckpointHistory
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.measure.weights.adapter_facts import adapter_facts
from mlxdoctor.measure.weights.save_norms import Save, follow
from tests.bisect.states import history, state
from tests.conftest import FIXTURES, HEALTHY, RUNS


@pytest.fixture
def base() -> BaseModel:
    return BaseModel.read(FIXTURES / "base")


def test_sizes_are_those_of_the_drift(base: BaseModel) -> None:
    found = CheckpointHistory.read(HEALTHY)
    config = TrainingConfig.read(HEALTHY)
    followed = follow(found, config, base)
    assert followed[0].quantity == "relative"
    assert [one.checkpoint.iteration for one in followed] == [300, 600, None]
    for save, checkpoint in zip(followed, found.checkpoints, strict=True):
        facts = adapter_facts(checkpoint.adapter, config, base)
        assert save.sizes == {one.name: one.relative for one in facts}
        assert save.size == median(one.relative or 0.0 for one in facts)


def test_the_base_is_read_once_for_all_saves(
    base: BaseModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    norm = BaseModel.weight_norm

    def noted(self: BaseModel, module: str) -> float:
        read.append(module)
        return norm(self, module)

    monkeypatch.setattr(BaseModel, "weight_norm", noted)
    follow(CheckpointHistory.read(HEALTHY), TrainingConfig.read(HEALTHY), base)
    assert len(read) == len(set(read)) == 28


def test_what_stands_in_for_an_unknown_scale_or_base(tmp_path: Path) -> None:
    found = history(tmp_path, [state(0.5), state(2.0)])
    told: list[tuple[int, int]] = []
    for config, quantity in ((TrainingConfig.read(tmp_path), "nominal"), (None, "unscaled")):
        followed = follow(found, config, None, lambda _, done, total: told.append((done, total)))
        assert followed[0].quantity == quantity
        assert [save.size for save in followed] == pytest.approx([0.5, 2.0], rel=1e-5)
    assert told == 2 * [(0, 2), (1, 2)]


def test_whole_weights_are_compared_with_the_base(base: BaseModel) -> None:
    run = RUNS / "adapter-never-attached"
    found = CheckpointHistory.read(run)
    followed = follow(found, TrainingConfig.read(run), base)
    sizes = [one.size for one in followed]
    assert all(0 < size < 1 for size in sizes)
    name = "model.layers.0.self_attn.q_proj.weight"
    ours, theirs = (
        tensors[name].load().astype(float)
        for tensors in (found.checkpoints[0].adapter.tensors, base.tensors)
    )
    expected = np.linalg.norm(ours - theirs) / np.linalg.norm(theirs)
    assert followed[0].sizes[name] == pytest.approx(expected)
    assert not follow(found, TrainingConfig.read(run), None)[0].sizes


def test_mixed_saves_take_the_least_that_is_known(tmp_path: Path, base: BaseModel) -> None:
    # The base has modules of these names, but none of the third save's.
    other = {f"other.{name}": tensor for name, tensor in state(0.3).items()}
    found = history(tmp_path, [state(0.1), state(0.2)])
    assert follow(found, TrainingConfig.read(tmp_path), base)[0].quantity == "relative"
    found = history(tmp_path, [state(0.1), state(0.2), other])
    followed = follow(found, TrainingConfig.read(tmp_path), base)
    assert followed[0].quantity == "nominal"
    assert [one.size for one in followed] == pytest.approx([0.1, 0.2, 0.3], rel=1e-5)


def test_a_size_is_that_of_what_was_trained() -> None:
    def save(**sizes: float) -> Save:
        return Save(Checkpoint(100, Path("x")), sizes=sizes)

    assert save(q=0.0, v=0.2, k=0.4).size == pytest.approx(0.3)
    assert math.isnan(save(q=0.2, v=0.4, k=math.nan).size)
    assert save(q=0.0).is_zero
    assert not save().is_zero
