"""What the factors of an adapter grew from."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlxdoctor.evidence.adapter import Adapter
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.finding import Status
from mlxdoctor.measure.weights.drawn_starts import starts
from tests.conftest import RUNS, check_called
from tests.given import outcome

adapter_start = check_called("adapter-start")
Tensors = dict[str, Any]
HEALTHY = RUNS / "healthy-ordinary"


def judged(folder: Path, change: Callable[[Tensors], Tensors], **settings: Any) -> Any:
    from safetensors.numpy import load_file, save_file

    folder.mkdir()
    tensors = change(load_file(HEALTHY / "adapters.safetensors"))
    save_file(
        {k: np.ascontiguousarray(v) for k, v in tensors.items()}, folder / "adapters.safetensors"
    )
    config = json.loads((HEALTHY / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps({**config, **settings}))
    config_read = TrainingConfig.read(folder / "adapter_config.json")
    return outcome(adapter_start, Adapter.read(folder), config_read)


def codes(judged: Any) -> list[str]:
    return [one.code.removeprefix("adapter-start.") for one in judged.findings]


def renamed(*pairs: tuple[str, str]) -> Callable[[Tensors], Tensors]:
    """Tensors exchanged, by a part of their names."""
    other = {**dict(pairs), **{two: one for one, two in pairs}}

    def name_of(name: str) -> str:
        for one, two in other.items():
            if one in name:
                return name.replace(one, two)
        return name

    return lambda found: {name_of(name): one for name, one in found.items()}


def a_of(change: Callable[[str, Any], Any]) -> Callable[[Tensors], Tensors]:
    return lambda found: {
        name: change(name, one) if name.endswith("lora_a") else one for name, one in found.items()
    }


def foreign(one: Any) -> Any:
    bound = 1 / np.sqrt(len(one))
    return np.random.default_rng(7).uniform(-bound, bound, one.shape).astype(one.dtype)


def by_columns(name: str, one: Any) -> Any:
    return one.T.reshape(one.shape) if name.endswith("lora_a") else one


def cut(name: str, one: Any) -> Any:
    return one[:, :2] if name.endswith("lora_a") else one[:2]


@pytest.mark.parametrize("run", sorted(one.name for one in RUNS.glob("healthy-*")))
def test_sound_runs_are_not_accused(run: str) -> None:
    config = TrainingConfig.read(RUNS / run / "adapter_config.json")
    assert outcome(adapter_start, Adapter.read(RUNS / run), config).findings == ()


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (dict, []),
        (a_of(by_columns), ["in-other-order"]),
        (lambda found: {k: cut(k, v) for k, v in found.items()}, ["ranks-cut"]),
        (renamed(("layers.1.", "layers.2.")), ["exchanged"]),
        (renamed(("k_proj", "v_proj")), ["exchanged"]),
        (renamed(("gate_proj", "up_proj")), ["exchanged"]),
        (renamed(("layers.0.self_attn.q_proj", "layers.0.self_attn.o_proj")), ["exchanged"]),
        (a_of(lambda name, one: foreign(one) if "layers.3" in name else one), ["another-run"]),
        (a_of(lambda name, one: foreign(one) if "3.mlp.up" in name else one), ["another-run"]),
        (a_of(lambda _, one: (one + foreign(one)) / 2), ["averaged"]),
        # Scaled, and not mixed: B may be as much larger.
        (a_of(lambda _, one: one / 2), []),
        (a_of(lambda _, one: one.astype(np.float16)), []),
        # Nothing shows its draw: another seed, another trainer.
        (a_of(lambda _, one: foreign(one)), []),
    ],
)
def test_what_did_not_grow_where_it_lies(
    tmp_path: Path, change: Callable[[Tensors], Tensors], found: list[str]
) -> None:
    assert codes(judged(tmp_path / "a", change)) == found


def test_what_decay_takes_is_no_average(tmp_path: Path) -> None:
    mixed = a_of(lambda _, one: (one + foreign(one)) / 2)
    decay = {"optimizer": "adamw", "optimizer_config": {"adamw": {"weight_decay": 0.1}}}
    long = {"learning_rate": 1e-3, "iters": 5000}
    assert codes(judged(tmp_path / "a", mixed, **decay, **long)) == []
    assert codes(judged(tmp_path / "muon", mixed, optimizer="muon")) == []
    assert codes(judged(tmp_path / "b", mixed, **decay, learning_rate=1e-5)) == ["averaged"]


def test_one_draw_for_two_modules_is_told_unless_they_are_one_module(tmp_path: Path) -> None:
    def first(name: str) -> str:
        return name.replace("layers.1.", "layers.0.")

    def as_the_first(found: Tensors) -> Tensors:
        return {name: found[first(name)] for name in found}

    only_a = judged(
        tmp_path / "a",
        lambda t: {**t, **{k: v for k, v in as_the_first(t).items() if k[-1] == "a"}},
    )
    assert codes(only_a) == ["exchanged"]
    assert "no draw is made twice" in only_a.findings[0].message
    assert codes(judged(tmp_path / "b", as_the_first)) == []


@pytest.mark.parametrize(
    ("settings", "status"),
    [
        ({"resume_adapter_file": "runs/a"}, Status.SKIPPED),
        ({"seed": 4711}, Status.INCONCLUSIVE),
    ],
)
def test_without_the_seed_of_its_start_nothing_is_said(
    tmp_path: Path, settings: dict[str, Any], status: Status
) -> None:
    swapped = renamed(("k_proj", "v_proj"))
    assert judged(tmp_path / "a", swapped, **settings).status is status


@pytest.mark.parametrize("seed", [0, 7, 2**40 + 3])
def test_draws_are_those_of_mlx(tmp_path: Path, seed: int) -> None:
    import mlx.core as mx

    mx.random.seed(seed)
    tensors = {}
    for at, shape in enumerate([(96, 8), (31, 9), (256, 16)]):
        mx.random.uniform(shape=(5, 3))
        bound = 1 / shape[0] ** 0.5
        name = f"model.layers.{at}.mlp.up_proj"
        tensors[f"{name}.lora_a"] = mx.random.uniform(-bound, bound, shape)
        tensors[f"{name}.lora_b"] = mx.ones((shape[1], 4))
    mx.save_safetensors(str(tmp_path / "adapters.safetensors"), tensors)
    found = starts(Adapter.read(tmp_path).modules, seed, 8, 1 << 12)
    assert [one.place for one in found] == [1, 3, 5]
    assert all(one.likeness > 0.999 and 0.9 < one.part < 1.1 for one in found)
