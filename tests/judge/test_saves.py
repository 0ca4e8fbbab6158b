"""Which saves are broken, as their files and the log show."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.checkpoints import CheckpointHistory
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.training_log import TrainingLog
from mlxdoctor.judge.log_at_saves import course
from mlxdoctor.judge.save_flaws import SaveLimits, SaveVerdict, judge
from mlxdoctor.measure.weights.save_norms import follow
from mlxdoctor.run import Run
from tests.bisect.states import changed, history, state
from tests.checks.log_evidence import LogWriter
from tests.conftest import RUNS

LIMITS = SaveLimits()


def examined(
    folder: Path,
    states: Sequence[dict[str, Any]],
    final: dict[str, Any] | None = None,
    log: TrainingLog | None = None,
) -> tuple[SaveVerdict, ...]:
    found = history(folder, states, final)
    iterations = [one.iteration or 100 * len(states) for one in found.checkpoints]
    followed = follow(found, TrainingConfig.read(folder), None)
    return judge(followed, course(log, iterations, LIMITS), LIMITS)


def standings(verdicts: Sequence[SaveVerdict]) -> str:
    return "".join(one.standing.value[0] for one in verdicts)


def symptoms(verdict: SaveVerdict) -> set[str]:
    return {one.flaw.value for one in verdict.remarks}


def test_steady_growth_is_good(tmp_path: Path) -> None:
    states = [state(0.1), state(0.15, 1), state(0.2, 2)]
    verdicts = examined(tmp_path, states, final=states[-1])
    assert standings(verdicts) == "gggg"
    assert not any(map(symptoms, verdicts))
    assert [one.same_as for one in verdicts] == [None, None, None, 2]


def test_nan_breaks_a_save_for_certain(tmp_path: Path) -> None:
    broken = state(0.2, 1)
    broken["model.layers.0.self_attn.q_proj.lora_b"][0, 0] = np.inf
    verdicts = examined(tmp_path, [state(0.1), broken, state(0.3, 2)])
    assert standings(verdicts) == "gbg"
    assert symptoms(verdicts[1]) == {"non-finite"}
    assert verdicts[1].is_certain
    assert verdicts[1].remarks[0].text == "1 of its values are NaN or infinite"


@pytest.mark.parametrize(("factor", "standing"), [(1.01, "b"), (0.99, "g")])
def test_an_update_that_outgrows_the_weights(tmp_path: Path, factor: float, standing: str) -> None:
    verdicts = examined(tmp_path, [state(LIMITS.nominal_large * factor)])
    assert standings(verdicts) == standing
    assert symptoms(verdicts[0]) == ({"exploded"} if standing == "b" else set())


@pytest.mark.parametrize(
    ("before", "growth", "standing"), [(0.5, 1.02, "b"), (0.5, 0.98, "g"), (0.15, 1.02, "g")]
)
def test_a_sudden_growth(tmp_path: Path, before: float, growth: float, standing: str) -> None:
    # From iteration 100 to 200 the limit applies to twice the growth.
    after = before * LIMITS.jump * 2 * growth
    verdicts = examined(tmp_path, [state(before), state(after, 1)])
    assert standings(verdicts) == f"g{standing}"
    assert symptoms(verdicts[1]) == ({"jumped"} if standing == "b" else set())
    assert not verdicts[1].is_certain


def test_after_a_jump_the_last_good_save_stays_the_measure(tmp_path: Path) -> None:
    sizes = [0.3, 3.0, 3.1]
    verdicts = examined(tmp_path, [state(size, seed) for seed, size in enumerate(sizes)])
    assert standings(verdicts) == "gbb"


def test_b_is_zero_in_every_save(tmp_path: Path) -> None:
    zero = {name: value * 0 if "lora_b" in name else value for name, value in state(1.0).items()}
    verdicts = examined(tmp_path, [zero, zero], final=zero)
    assert standings(verdicts) == "uuu"
    assert symptoms(verdicts[0]) == {"zero-b"}


def test_a_b_that_was_lost(tmp_path: Path) -> None:
    lost = changed(state(0.2, 1), 1, 0.0)
    verdicts = examined(tmp_path, [state(0.1), state(0.2, 1)], final=lost)
    assert standings(verdicts) == "ggb"
    assert "erased" in symptoms(verdicts[2])
    assert "1 of 4 modules" in verdicts[2].remarks[0].text


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    found = history(tmp_path, [state(0.1), state(0.2)])
    (tmp_path / "0000200_adapters.safetensors").write_bytes(b"\x00" * 4)
    verdicts = judge(follow(found, TrainingConfig.read(tmp_path), None), None, LIMITS)
    assert standings(verdicts) == "gb"
    assert symptoms(verdicts[1]) == {"unreadable"}


def test_saves_made_after_the_blow_up(tmp_path: Path) -> None:
    log = LogWriter(tmp_path).losses([2.0, 1.5, 1.2, 1.0, 6.0, 6.0], every=50)
    verdicts = examined(tmp_path, [state(0.1), state(0.2, 1), state(0.3, 2)], log=log)
    assert standings(verdicts) == "ggb"
    assert verdicts[2].remarks[0].text == "saved while the log's loss was 6"
    assert not verdicts[2].is_certain


def test_saves_made_after_the_validation_loss_rose(tmp_path: Path) -> None:
    val = {1: 4.0, 100: 1.0, 200: 1.5, 300: 2.0}
    log = LogWriter(tmp_path).losses([4.0, 3.0, 2.0, 1.0, 0.5, 0.2], val, every=50)
    verdicts = examined(tmp_path, [state(0.1), state(0.2, 1), state(0.3, 2)], log=log)
    assert standings(verdicts) == "gbb"
    assert symptoms(verdicts[1]) == {"past-its-best-in-the-log"}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("healthy-ordinary", "ggg"),
        ("healthy-noisy-batch1", "ggg"),
        ("healthy-masked-warmup", "ggg"),
        ("healthy-short-low-rate", "ggg"),
        ("no-supervised-tokens", "gbbb"),
        ("b-never-trained", "uuu"),
        ("rate-far-too-high-nan", "bbb"),
        ("rate-too-high-garbled", "bb"),
        ("scale-too-large", "bbb"),
        ("collapse-frequent-token", "bbbb"),
    ],
)
def test_real_runs(name: str, expected: str) -> None:
    run = Run.discover([RUNS / name], allow_model=False)
    found = run.need(CheckpointHistory)
    last = max(one.iteration or 0 for one in found.checkpoints)
    logged = course(
        run.get(TrainingLog), [one.iteration or last for one in found.checkpoints], LIMITS
    )
    followed = follow(found, run.get(TrainingConfig), run.get(BaseModel))
    assert standings(judge(followed, logged, LIMITS)) == expected
