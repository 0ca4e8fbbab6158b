"""Values that no training leaves."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlxdoctor.evidence.adapter import Adapter
from mlxdoctor.evidence.base_model import BaseModel
from tests.conftest import FIXTURES, RUNS, check_called
from tests.given import outcome

adapter_values = check_called("adapter-values")
Tensors = dict[str, Any]
SOUND = [one.name for one in sorted(RUNS.glob("healthy-*"))]


def edited(folder: Path, change: Callable[[Tensors], Tensors]) -> Adapter:
    from safetensors.numpy import load_file, save_file

    folder.mkdir()
    path = folder / "adapters.safetensors"
    shutil.copy(RUNS / "healthy-ordinary" / "adapters.safetensors", path)
    save_file(change(load_file(path)), path)
    return Adapter.read(folder)


def each(change: Callable[[str, Any], Any]) -> Callable[[Tensors], Tensors]:
    return lambda found: {
        name: np.ascontiguousarray(change(name, one)).astype(one.dtype)
        for name, one in found.items()
    }


def rounded(levels: int) -> Callable[[Tensors], Tensors]:
    def change(_: str, one: Any) -> Any:
        step = np.abs(one).max() / levels
        return np.round(one / step) * step

    return each(change)


def exchanged(letter: str) -> Callable[[Tensors], Tensors]:
    """Every layer has the first one's factor."""

    def change(found: Tensors) -> Tensors:
        return {
            name: found[f"model.layers.0.{name.split('.', 3)[3]}"] if name[-1] in letter else one
            for name, one in found.items()
        }

    return change


def with_magnitudes(factor: float | None) -> Callable[[Tensors], Tensors]:
    """The norms of the base's rows, times a factor; all ones for None."""

    def change(found: Tensors) -> Tensors:
        import mlx.core as mx

        base = mx.load(str(FIXTURES / "base" / "model.safetensors"))
        added = {}
        for name in found:
            if name.endswith("lora_a"):
                module = name.removesuffix(".lora_a")
                norms = np.linalg.norm(np.array(base[f"{module}.weight"]), axis=1)
                own = norms * factor if factor is not None else np.ones_like(norms)
                added[f"{module}.m"] = own.astype(np.float32)
        return {**found, **added}

    return change


def codes(adapter: Adapter, base: BaseModel | None = None) -> list[tuple[str, str]]:
    judged = outcome(adapter_values, adapter, *([base] if base else []))
    assert judged.status != "crashed", judged.reason
    return [(one.code.removeprefix("adapter-values."), one.severity) for one in judged.findings]


@pytest.mark.parametrize("name", SOUND)
def test_a_sound_adapter(name: str) -> None:
    assert codes(Adapter.read(RUNS / name), BaseModel.read(FIXTURES / "base")) == []


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (each(lambda _, one: np.abs(one)), [("one-sided", "error")]),
        # One value of forty lies on the other side; below, one of ten.
        (
            each(
                lambda _, one: np.where(np.arange(one.size).reshape(one.shape) % 20, abs(one), one)
            ),
            [("one-sided", "error")],
        ),
        (
            each(
                lambda _, one: np.where(np.arange(one.size).reshape(one.shape) % 5, abs(one), one)
            ),
            [],
        ),
        (rounded(1), [("few-values", "error")]),
        (rounded(3), [("few-values", "error")]),
        (rounded(7), []),
        (each(lambda _, one: one.astype(np.float16)), []),
        (exchanged("b"), [("same-factors", "error")]),
        (exchanged("a"), [("same-factors", "warning")]),
        (exchanged("ab"), [("same-factors", "warning")]),
        (with_magnitudes(1.0), []),
        (with_magnitudes(-1.0), [("negative-magnitudes", "error")]),
        (with_magnitudes(None), [("other-magnitudes", "error")]),
        (with_magnitudes(1.8), []),
        (with_magnitudes(2.2), [("other-magnitudes", "error")]),
        (with_magnitudes(0.4), [("other-magnitudes", "error")]),
    ],
)
def test_values_that_no_training_leaves(
    tmp_path: Path, change: Callable[[Tensors], Tensors], found: list[tuple[str, str]]
) -> None:
    adapter = edited(tmp_path / "run", change)
    assert codes(adapter, BaseModel.read(FIXTURES / "base")) == found


def test_magnitudes_of_another_size_need_the_base_model(tmp_path: Path) -> None:
    assert codes(edited(tmp_path / "run", with_magnitudes(10.0))) == []


def test_a_start_has_nothing_of_this(tmp_path: Path) -> None:
    """B is zero in every module: that is told elsewhere."""
    start = each(lambda name, one: one * (not name.endswith("b")))
    assert codes(edited(tmp_path / "run", start)) == []


def test_what_is_not_finite_is_not_called_rounded() -> None:
    found = outcome(adapter_values, Adapter.read(RUNS / "rate-far-too-high-nan"))
    assert (found.status, found.findings) == ("passed", ())
