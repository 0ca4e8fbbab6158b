"""Norms over a run's saves, from the files alone, and the picture of them."""

import math
from pathlib import Path
from statistics import median

import numpy as np
import pytest

from mlxdoctor.api import diagnose
from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.checkpoints import Checkpoint, CheckpointHistory
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.exhibits import CheckpointSizes
from mlxdoctor.formats.figures import captions
from mlxdoctor.measure.weights.adapter_facts import adapter_facts
from mlxdoctor.measure.weights.save_norms import MAX_COLUMNS, MAX_ROWS, Save, follow, heat_map
from tests.bisect.states import changed, history, state
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


def followed(*saves: dict[str, float]) -> list[Save]:
    return [
        Save(Checkpoint(100 * number, Path(f"{number}.safetensors")), sizes=sizes)
        for number, sizes in enumerate(saves, 1)
    ]


def test_the_data_are_the_sizes_layer_by_save(tmp_path: Path) -> None:
    broken = changed(state(0.3), 3, 0.0)
    broken["model.layers.1.self_attn.q_proj.lora_a"][0, 0] = np.nan
    found = history(tmp_path, [state(0.1), state(0.2)], final=broken)
    data = heat_map(follow(found, TrainingConfig.read(tmp_path), None), broken=[False, False, True])
    assert data.rows == tuple(f"layer {layer}" for layer in range(4))
    assert data.columns == ("100", "200", "final")
    assert data.broken == (False, False, True)
    assert data.quantity == "‖ΔW‖/usual ‖W‖"
    expected = [[0.1, 0.2, 0.3], [0.1, 0.2, math.nan], [0.1, 0.2, 0.3], [0.1, 0.2, 0.0]]
    assert np.array(data.values) == pytest.approx(np.array(expected), rel=1e-5, nan_ok=True)


def test_many_layers_and_saves_are_thinned_and_the_last_is_kept() -> None:
    sizes = {
        f"model.layers.{layer}.{name}": ord(name) - 110.0 for layer in range(99) for name in "qr"
    }
    saves = [{**sizes, "lm_head": float(number)} for number in range(1, 200)]
    data = heat_map(followed(*saves), [number > 100 for number in range(1, 200)])
    assert len(data.rows) == len(data.values) == MAX_ROWS
    assert (data.rows[0], data.rows[-1]) == ("layer 0", "other")
    assert len(data.columns) == len(data.broken) == len(data.values[0]) == MAX_COLUMNS
    assert (data.columns[0], data.columns[-1]) == ("100", "19900")
    assert data.values[0][0] == pytest.approx(math.sqrt(12.5))
    assert data.values[-1][-1] == 199.0
    assert heat_map(followed({}, {}), [False, False]) is None


def test_the_report_of_a_run_with_three_checkpoints_has_it() -> None:
    def saved(name: str) -> tuple[CheckpointSizes | None, str | None]:
        report = diagnose([RUNS / name], allow_model=False, select=["checkpoint-history"])
        return report.exhibit(CheckpointSizes), captions(report).get("checkpoints")

    shown, caption = saved("no-supervised-tokens")
    assert shown.columns == ("40", "80", "120", "final")
    assert shown.broken == (False, True, True, True)
    assert caption.endswith("3 are broken, the first 80.")
    # Two files, of which the last is the final one, show no course.
    assert saved("rate-too-high-garbled") == (None, None)
