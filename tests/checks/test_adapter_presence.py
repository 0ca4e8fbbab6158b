import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fixtures.lab.cases.workshop import copied_run
from mlxdoctor.evidence.adapter import Adapter
from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.finding import Outcome, Status
from tests.conftest import FIXTURES, check_called
from tests.edits import Tensors, change_tensors
from tests.given import outcome, severities
from tests.weight_files import lora, save, to_bfloat16, write_config

adapter_presence = check_called("adapter-presence")

MODULES = {f"model.layers.{i}.self_attn.{p}_proj": (32, 48) for i in range(3) for p in "qv"}
FIRST = "model.layers.0.self_attn.q_proj"

SECOND = "model.layers.1.self_attn.q_proj"
EXPERT = "model.layers.2.mlp.experts.7.up_proj"
STACKED = "model.layers.2.mlp.switch_mlp.up_proj"


def examine(folder: Path, tensors: dict[str, Any], **config: Any) -> Outcome:
    save(folder / "adapters.safetensors", tensors)
    stated = TrainingConfig.read(write_config(folder, **config))
    return outcome(adapter_presence, Adapter.read(folder), stated)


def edited_lora(name: str, values: Any) -> dict[str, Any]:
    """Sound factors, with one tensor added or put in another's place; None takes it away."""
    tensors = {**lora(MODULES), name: values}
    return {name: one for name, one in tensors.items() if one is not None}


def spiked(value: float, still: bool = False) -> Any:
    """The first module's B with one value of its own, the others at zero if they are still."""
    b = np.zeros((4, 48), np.float32) if still else lora(MODULES)[f"{FIRST}.lora_b"]
    b[0, 0] = value
    return b


def with_b(values: Any) -> dict[str, Any]:
    """Sound factors, with another B in the first module."""
    return edited_lora(f"{FIRST}.lora_b", values)


def without_b(*modules: str, decay: float = 1.0, more: tuple[str, ...] = ()) -> dict[str, Any]:
    """Sound factors, also of other modules; the B of some is zero, and their A times `decay`."""
    tensors = lora({**MODULES, **dict.fromkeys(more, (32, 48))})
    for name in modules:
        tensors[f"{name}.lora_b"][:] = 0
        tensors[f"{name}.lora_a"] *= decay
    return tensors


def halves(tensors: dict[str, Any]) -> dict[str, Any]:
    return {name: values.astype("f2") for name, values in tensors.items()}


def stacked(used: float) -> dict[str, Any]:
    """With a stack of experts of which one has a value in its B."""
    b = np.zeros((4, 48, 4), "f4")
    b[2, 0, 0] = used
    a = np.random.default_rng(0).uniform(-0.1, 0.1, (4, 4, 32)).astype("f4")
    return {**lora(MODULES), f"{STACKED}.lora_a": a, f"{STACKED}.lora_b": b}


def low(layers: int, decay: float = 1.0) -> dict[str, Any]:
    """The B of the lowest layers is zero."""
    names = [name for name in MODULES if int(name.split(".")[2]) < layers]
    return without_b(*names, decay=decay)


LORA, BF16 = lora(MODULES), {n: to_bfloat16(one) for n, one in lora(MODULES, b=0.0).items()}
ZERO = {"zero-b": "error"}
SOME = {"some-zero-b": "error"}
UNUSABLE = {"unusable-factors": "error"}
BROKEN = {"non-finite": "error"}
HALF_PRECISION = {**BROKEN, "float16-non-finite": "warning"}
ALONE = {name: one for name, one in LORA.items() if name.endswith("lora_a")}
TURNED = edited_lora(f"{FIRST}.lora_a", LORA[f"{FIRST}.lora_a"].T.copy())
WHOLE = np.ones((48, 32), np.float32)
ROUNDED = {name: np.rint(one * 1e3).astype(np.int8) for name, one in LORA.items()}
LOST = without_b(FIRST, SECOND)
LOST[f"{FIRST}.lora_a"][0, 0] = 1.02 / np.sqrt(32)

PRUNED = without_b(FIRST, more=tuple(f"model.layers.3.self_attn.{name}" for name in "qkvo"))
PRUNED[f"{FIRST}.lora_a"][0, 0] = 1.02 / np.sqrt(32)

#: Tensors, what is found, and figures of the first finding.
CASES: dict[str, tuple[dict[str, Any], dict[str, str], dict[str, Any]]] = {
    "sound": (LORA, {}, {}),
    "a small B": (lora(MODULES, b=1e-30), {}, {}),
    "a B of one value": (with_b(spiked(1e-38, still=True)), {}, {}),
    "the largest value": (with_b(spiked(float(np.finfo("f4").max))), {}, {}),
    "minus zero": ({n: -0.0 * v if n[-1] == "b" else v for n, v in LORA.items()}, ZERO, {}),
    "NaN": (with_b(spiked(np.nan)), BROKEN, {"values": 1}),
    "infinity": (with_b(spiked(-np.inf)), BROKEN, {}),
    "NaN in a magnitude": (edited_lora(f"{FIRST}.m", np.array([1, np.nan], "f4")), BROKEN, {}),
    "NaN in float16": (halves(with_b(spiked(np.nan))), HALF_PRECISION, {"tensors": 1}),
    "float16": (halves(LORA), {}, {}),
    "no partner": (edited_lora(f"{FIRST}.lora_a", None), UNUSABLE, {"unpaired": 1}),
    "half of every pair": (ALONE, UNUSABLE, {"unpaired": 6}),
    "turned round": (TURNED, UNUSABLE, {"mismatched": 1, "shapes": "A (4, 32), B (4, 48)"}),
    # Neither that the model was trained nor that their shapes do not go together.
    "whole numbers": (ROUNDED, UNUSABLE, {"not_float": 6, "types": ("I8",)}),
    "a weight beside them": (
        edited_lora(f"{FIRST}.linear.weight", WHOLE),
        {"full-weights": "warning"},
        {},
    ),
    "nothing": ({}, {"no-lora-tensors": "error"}, {}),
    "never trained": (lora(MODULES, b=0.0), ZERO, {"a_as_drawn": 6}),
    # Weight decay only makes A smaller.
    "decayed and B zero": (without_b(*MODULES, decay=0.5), ZERO, {"a_as_drawn": 0, "zero_b": 6}),
    "moved and B zero": (
        without_b(*MODULES, decay=2.0),
        {**ZERO, "a-moved-zero-b": "warning"},
        {"a_drawn": None},
    ),
    "B lost after training": (LOST, {"a-moved-zero-b": "error", **SOME}, {"a_moved": 1}),
    "one of many pruned": (PRUNED, {"a-moved-zero-b": "warning"}, {"a_moved": 1}),
    "no gradient below a layer": (
        low(1),
        SOME,
        {"untrained": 2, "a_as_drawn": 2, "below": True, "first_trained": 1},
    ),
    "no gradient below two": (low(2), SOME, {"untrained": 4, "first_trained": 2}),
    "the same with decay": (low(1, decay=0.5), SOME, {"a_as_drawn": 0, "below": True}),
    "one module in the middle": (without_b(SECOND), SOME, {"below": False}),
    "unused values": (without_b("model.layers.1.self_attn.v_proj"), {}, {}),
    # What a model may leave unused.
    **{
        name: (without_b(name, more=(name,)), {}, {})
        for name in ("vision_tower.layers.0.self_attn.q_proj", "mtp.layers.0.mlp.up_proj")
    },
    "an unused expert": (without_b(EXPERT, more=(EXPERT,)), {}, {}),
    "an unused expert beside another": (
        without_b(EXPERT, FIRST, more=(EXPERT,)),
        SOME,
        {"untrained": 1, "zero_b": 2},
    ),
    "an unused expert in a stack": (stacked(1e-3), {}, {}),
    "a stack of unused experts": (stacked(0.0), SOME, {}),
}


@pytest.mark.parametrize("name", CASES)
def test_files_of_factors(tmp_path: Path, name: str) -> None:
    tensors, expected, figures = CASES[name]
    judged = examine(tmp_path, tensors)
    assert severities(judged) == expected
    assert all(judged.findings[0].measured[key] == value for key, value in figures.items())
    assert judged.status is (Status.FOUND if expected else Status.PASSED)


def test_zero_b_is_seen_in_bfloat16(tmp_path: Path) -> None:
    path = save(tmp_path / "adapters.safetensors", BF16, dict.fromkeys(BF16, "BF16"))
    assert severities(outcome(adapter_presence, Adapter.read(path))) == ZERO


def peft(folder: Path, tensors: dict[str, Any], **config: Any) -> dict[str, str]:
    """What is found in factors that are named as PEFT names them."""
    named = {f"base_model.model.{name}.weight": value for name, value in tensors.items()}
    save(folder / "adapter_model.safetensors", named)
    stated = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, **config}
    (folder / "adapter_config.json").write_text(json.dumps(stated))
    evidence = Adapter.read(folder), TrainingConfig.read(folder)
    return severities(outcome(adapter_presence, *evidence))


def test_another_draw_of_a_is_no_sign_of_training(tmp_path: Path) -> None:
    tensors = {}
    for layer in (0, 1):
        a = np.random.default_rng(layer).normal(size=(4, 32)).astype("f4")
        tensors[f"model.layers.{layer}.q_proj.lora_A"] = a
        b = np.arange(192, dtype="f4").reshape(48, 4) * layer
        tensors[f"model.layers.{layer}.q_proj.lora_B"] = b
    assert peft(tmp_path, tensors, init_lora_weights="gaussian") == SOME
    assert peft(tmp_path, tensors, init_lora_weights=True) == {"a-moved-zero-b": "error"}


def test_peft_may_save_whole_modules(tmp_path: Path) -> None:
    tensors = {
        "model.layers.0.q.lora_A": np.arange(1, 17, dtype="f4").reshape(2, 8),
        "model.layers.0.q.lora_B": np.arange(1, 17, dtype="f4").reshape(8, 2),
        "lm_head": np.ones((9, 8), "f4"),
    }
    assert peft(tmp_path, tensors, modules_to_save=["lm_head"]) == {}
    assert peft(tmp_path, tensors) == {"full-weights": "info"}


def test_whole_weights_alone(tmp_path: Path) -> None:
    tensors = {"model.norm.weight": np.ones(4, np.float32)}
    assert examine(tmp_path, tensors, fine_tune_type="full").status is Status.PASSED
    alone = outcome(adapter_presence, Adapter.read(tmp_path))
    assert severities(alone) == {"no-lora-tensors": "warning", "full-weights": "warning"}


def test_a_factor_of_one_number(tmp_path: Path) -> None:
    a = np.arange(-31.5, 32, dtype=np.float32).reshape(16, 4)
    for b, found in ((a.T, {}), (np.full((4, 16), 0.01, "f4"), {"untrained-values": "error"})):
        save(tmp_path / "adapters.safetensors", {f"{FIRST}.lora_a": a, f"{FIRST}.lora_b": b})
        assert severities(outcome(adapter_presence, Adapter.read(tmp_path))) == found


def edited(folder: Path, change: Callable[[Tensors], Tensors]) -> Adapter:
    path = copied_run(folder) / "adapters.safetensors"
    change_tensors(path, change)
    return Adapter.read(folder)


def each(change: Callable[[str, Any], Any]) -> Callable[[Tensors], Tensors]:
    return lambda found: {name: change(name, one).astype(one.dtype) for name, one in found.items()}


def rounded(levels: int) -> Callable[[Tensors], Tensors]:
    def change(_: str, one: Any) -> Any:
        step = np.abs(one).max() / levels
        return np.round(one / step) * step

    return each(change)


def of_one_sign(every: int) -> Callable[[Tensors], Tensors]:
    """All values but some are above zero."""

    def change(_: str, one: Any) -> Any:
        return np.where(np.arange(one.size).reshape(one.shape) % every, abs(one), one)

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


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (each(lambda _, one: np.abs(one)), "share error"),
        # One value of forty lies on the other side; below, one of ten.
        (of_one_sign(20), "share error"),
        (of_one_sign(5), ""),
        (rounded(1), "different error"),
        (rounded(3), "different error"),
        (rounded(7), ""),
        (each(lambda _, one: one.astype(np.float16)), ""),
        (exchanged("b"), "same error"),
        (exchanged("a"), "same warning"),
        (exchanged("ab"), "same warning"),
        (with_magnitudes(1.0), ""),
        (with_magnitudes(-1.0), "odd error"),
        (with_magnitudes(None), "odd error"),
        (with_magnitudes(1.8), ""),
        (with_magnitudes(2.2), "odd error"),
        (with_magnitudes(0.4), "odd error"),
    ],
)
def test_values_that_no_training_leaves(
    tmp_path: Path, change: Callable[[Tensors], Tensors], found: str
) -> None:
    """What is found is a figure of `untrained-values`, and its severity."""
    adapter = edited(tmp_path / "run", change)
    judged = outcome(adapter_presence, adapter, BaseModel.read(FIXTURES / "base"))
    figure, _, severity = found.partition(" ")
    assert severities(judged) == ({"untrained-values": severity} if found else {})
    assert not found or figure in judged.findings[0].measured
