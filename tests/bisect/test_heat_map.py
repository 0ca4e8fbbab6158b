"""The picture of all updates over all saves."""

import math
from pathlib import Path

import numpy as np
import pytest

from mlxdoctor.api import diagnose
from mlxdoctor.evidence.checkpoints import Checkpoint
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.exhibits import CheckpointSizes
from mlxdoctor.formats.figures import captions
from mlxdoctor.measure.weights.save_norms import MAX_COLUMNS, MAX_ROWS, Save, follow, heat_map
from tests.bisect.states import changed, history, state
from tests.conftest import RUNS


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
