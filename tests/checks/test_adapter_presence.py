"""What the adapter-presence check sees in files of factors."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlxdoctor.evidence.adapter import Adapter
from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.finding import Outcome, Severity, Status
from tests.conftest import FIXTURES, RUNS, check_called
from tests.given import Given
from tests.weight_files import lora, save, to_bfloat16, write_config

adapter_presence = check_called("adapter-presence")


MODULES = {f"model.layers.{i}.self_attn.{p}_proj": (32, 48) for i in range(3) for p in "qv"}
FIRST = "model.layers.0.self_attn.q_proj"


def examine(folder: Path, tensors: dict[str, Any], **config: Any) -> Outcome:
    save(folder / "adapters.safetensors", tensors)
    stated = TrainingConfig.read(write_config(folder, **config))
    return adapter_presence.run(Given(Adapter.read(folder), stated))


def codes(outcome: Outcome) -> set[str]:
    return {finding.code.removeprefix("adapter-presence.") for finding in outcome.findings}


def edited_lora(name: str, values: Any) -> dict[str, Any]:
    """Sound factors, with one tensor added or put in another's place; None takes it away."""
    tensors = {**lora(MODULES), name: values}
    return {name: one for name, one in tensors.items() if one is not None}


def spiked(value: float, still: bool = False) -> Any:
    """The first module's B with one value of its own, the others at zero if they are still."""
    b = np.zeros((4, 48), np.float32) if still else lora(MODULES)[f"{FIRST}.lora_b"]
    b[0, 0] = value
    return b


@pytest.mark.parametrize(
    ("tensors", "expected"),
    [
        (lora(MODULES), {}),
        (lora(MODULES, b=1e-30), {}),
        (edited_lora(f"{FIRST}.lora_b", spiked(1e-38, still=True)), {}),
        (edited_lora(f"{FIRST}.lora_b", spiked(float(np.finfo(np.float32).max))), {}),
        (
            {n: -0.0 * v if n[-1] == "b" else v for n, v in lora(MODULES).items()},
            {"zero-b": "error"},
        ),
        (edited_lora(f"{FIRST}.m", np.array([1, np.nan], np.float32)), {"non-finite": "error"}),
        (edited_lora(f"{FIRST}.lora_a", None), {"unusable-factors": "error"}),
        (
            edited_lora(f"{FIRST}.linear.weight", np.ones((48, 32), np.float32)),
            {"full-weights": "warning"},
        ),
        ({}, {"no-lora-tensors": "error"}),
    ],
)
def test_files_of_factors(
    tmp_path: Path, tensors: dict[str, Any], expected: dict[str, str]
) -> None:
    outcome = examine(tmp_path, tensors)
    found = {one.code.partition(".")[2]: str(one.severity) for one in outcome.findings}
    assert found == expected
    assert outcome.status is (Status.FOUND if expected else Status.PASSED)


def test_zero_b_is_seen_in_bfloat16(tmp_path: Path) -> None:
    tensors = {name: to_bfloat16(value) for name, value in lora(MODULES, b=0.0).items()}
    path = save(tmp_path / "adapters.safetensors", tensors, dict.fromkeys(tensors, "BF16"))
    (finding,) = adapter_presence.run(Given(Adapter.read(path))).findings
    assert (finding.code, finding.measured["a_as_drawn"]) == ("adapter-presence.zero-b", 6)


def without_b(tensors: dict[str, Any], *modules: str) -> dict[str, Any]:
    """The same factors, with the B of those modules at zero."""
    lost = {f"{name}.lora_b" for name in modules}
    return {name: np.zeros_like(one) if name in lost else one for name, one in tensors.items()}


@pytest.mark.parametrize(
    ("layers", "decay", "drawn"), [((0,), 1.0, 2), ((0, 1), 1.0, 4), ((0,), 0.5, 0)]
)
def test_no_gradient_below_a_layer(
    tmp_path: Path, layers: tuple[int, ...], decay: float, drawn: int
) -> None:
    low = [name for name in MODULES if int(name.split(".")[2]) in layers]
    tensors = without_b(lora(MODULES), *low)
    for name in low:
        tensors[f"{name}.lora_a"] *= decay
    (finding,) = examine(tmp_path, tensors).findings
    assert finding.code == "adapter-presence.some-zero-b"
    assert finding.severity is Severity.ERROR
    assert finding.measured["untrained"] == finding.measured["zero_b"] == len(low)
    assert (finding.measured["a_as_drawn"], finding.measured["below"]) == (drawn, True)
    assert f"before layer {len(layers)}" in finding.message


def test_no_gradient_for_a_module_in_the_middle(tmp_path: Path) -> None:
    middle = "model.layers.1.self_attn.q_proj"
    (finding,) = examine(tmp_path, without_b(lora(MODULES), middle)).findings
    assert finding.code == "adapter-presence.some-zero-b"
    assert (finding.measured["below"], finding.where) == (False, middle)


@pytest.mark.parametrize(
    "unused",
    [
        "model.layers.1.self_attn.v_proj",
        "model.layers.2.mlp.experts.7.up_proj",
        "vision_tower.layers.0.self_attn.q_proj",
        "mtp.layers.0.mlp.up_proj",
    ],
)
def test_what_a_model_may_leave_unused_is_sound(tmp_path: Path, unused: str) -> None:
    tensors = without_b(lora({**MODULES, unused: (32, 48)}), unused)
    assert examine(tmp_path, tensors).findings == ()


def test_unused_and_untrained_modules_are_told_apart(tmp_path: Path) -> None:
    expert = "model.layers.2.mlp.experts.7.up_proj"
    tensors = without_b(lora({**MODULES, expert: (32, 48)}), expert, FIRST)
    found = {finding.code: finding for finding in examine(tmp_path, tensors).findings}
    assert found["adapter-presence.some-zero-b"].where == FIRST
    assert len(found) == 1


def test_a_stack_of_experts_needs_only_one_that_was_used(tmp_path: Path) -> None:
    tensors = lora(MODULES)
    random = np.random.default_rng(0)
    name = "model.layers.2.mlp.switch_mlp.up_proj"
    tensors[f"{name}.lora_a"] = random.uniform(-0.1, 0.1, (4, 4, 32)).astype("f4")
    tensors[f"{name}.lora_b"] = np.zeros((4, 48, 4), "f4")
    assert codes(examine(tmp_path / "none", tensors)) == {"some-zero-b"}
    tensors[f"{name}.lora_b"][2, 0, 0] = 1e-3
    assert examine(tmp_path / "one", tensors).status is Status.PASSED


def test_b_was_lost_after_training(tmp_path: Path) -> None:
    tensors = without_b(lora(MODULES), FIRST, "model.layers.1.self_attn.q_proj")
    tensors[f"{FIRST}.lora_a"][0, 0] = 1.02 / np.sqrt(32)
    found = {finding.code: finding for finding in examine(tmp_path, tensors).findings}
    erased = found["adapter-presence.a-moved-zero-b"]
    assert (erased.severity, erased.where, erased.measured["a_moved"]) == (Severity.ERROR, FIRST, 1)
    assert found["adapter-presence.some-zero-b"].measured["untrained"] == 1


def test_another_draw_of_a_is_no_sign_of_training(tmp_path: Path) -> None:
    name = "base_model.model.model.layers"
    tensors = {}
    for layer in (0, 1):
        a = np.random.default_rng(layer).normal(size=(4, 32)).astype("f4")
        tensors[f"{name}.{layer}.q_proj.lora_A.weight"] = a
        tensors[f"{name}.{layer}.q_proj.lora_B.weight"] = (
            np.arange(192, dtype="f4").reshape(48, 4) * layer
        )
    save(tmp_path / "adapter_model.safetensors", tensors)
    for start, code in (("gaussian", "some-zero-b"), (True, "a-moved-zero-b")):
        config = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "init_lora_weights": start}
        (tmp_path / "adapter_config.json").write_text(json.dumps(config))
        evidence = Given(Adapter.read(tmp_path), TrainingConfig.read(tmp_path))
        assert codes(adapter_presence.run(evidence)) == {code}


@pytest.mark.parametrize(
    ("factor", "expected"),
    # Weight decay only makes A smaller.
    [(2.0, {"zero-b", "a-moved-zero-b"}), (0.5, {"zero-b"}), (1.0, {"zero-b"})],
)
def test_a_moved_while_b_is_zero(tmp_path: Path, factor: float, expected: set[str]) -> None:
    tensors = lora(MODULES, b=0.0)
    tensors[f"{FIRST}.lora_a"] *= factor
    outcome = examine(tmp_path, tensors)
    assert codes(outcome) == expected
    finding = outcome.findings[0]
    assert (finding.severity, finding.measured["zero_b"]) == (Severity.ERROR, 6)
    assert finding.measured["a_as_drawn"] == (6 if factor == 1.0 else 5)
    assert ("still as it was drawn" in finding.message) is (factor == 1.0)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_one_bad_value_is_found(tmp_path: Path, value: float) -> None:
    tensors = lora(MODULES)
    tensors[f"{FIRST}.lora_b"][2, 3] = value
    outcome = examine(tmp_path, tensors)
    assert codes(outcome) == {"non-finite"}
    (finding,) = outcome.findings
    assert finding.severity is Severity.ERROR
    assert (finding.measured["values"], finding.measured["tensors"]) == (1, 1)
    assert finding.where == f"{FIRST}.lora_b"


def test_unpaired_and_mismatched(tmp_path: Path) -> None:
    tensors = lora(MODULES)
    del tensors["model.layers.2.self_attn.v_proj.lora_a"]
    tensors[f"{FIRST}.lora_a"] = tensors[f"{FIRST}.lora_a"].T.copy()
    outcome = examine(tmp_path, tensors)
    assert codes(outcome) == {"unusable-factors"}
    unpaired, mismatched = outcome.findings
    assert unpaired.measured["unpaired"] == 1
    assert "A (4, 32), B (4, 48)" in mismatched.message
    assert {finding.severity for finding in outcome.findings} == {Severity.ERROR}


def test_factors_that_are_whole_numbers(tmp_path: Path) -> None:
    tensors = {name: np.rint(one * 1e3).astype(np.int8) for name, one in lora(MODULES).items()}
    outcome = examine(tmp_path, tensors)
    # Neither that the model was trained nor that their shapes do not go together.
    assert codes(outcome) == {"unusable-factors"}
    assert outcome.findings[0].measured == {"not_float": 6, "types": ("I8",)}
    assert "stored as I8" in outcome.findings[0].message


def test_half_of_every_pair(tmp_path: Path) -> None:
    tensors = {name: one for name, one in lora(MODULES).items() if name.endswith("lora_a")}
    (finding,) = examine(tmp_path, tensors).findings
    assert (finding.code, finding.severity) == ("adapter-presence.unusable-factors", Severity.ERROR)
    assert finding.measured["unpaired"] == 6


def test_full_weights_of_a_full_fine_tune_are_as_configured(tmp_path: Path) -> None:
    tensors = {"model.norm.weight": np.ones(4, np.float32)}
    assert examine(tmp_path, tensors, fine_tune_type="full").status is Status.PASSED


def test_without_a_configuration_it_is_a_warning(tmp_path: Path) -> None:
    path = save(tmp_path / "x.safetensors", {"model.norm.weight": np.ones(4, np.float32)})
    outcome = adapter_presence.run(Given(Adapter.read(path)))
    assert codes(outcome) == {"no-lora-tensors", "full-weights"}
    assert {finding.severity for finding in outcome.findings} == {Severity.WARNING}


def test_peft_may_save_whole_modules(tmp_path: Path) -> None:
    name = "base_model.model.model.layers.0.q"
    tensors = {
        f"{name}.lora_A.weight": np.arange(1, 17, dtype=np.float32).reshape(2, 8),
        f"{name}.lora_B.weight": np.arange(1, 17, dtype=np.float32).reshape(8, 2),
        "base_model.model.lm_head.weight": np.ones((9, 8), np.float32),
    }
    save(tmp_path / "adapter_model.safetensors", tensors)
    config = '{"peft_type": "LORA", "r": 2, "lora_alpha": 4, "modules_to_save": ["lm_head"]}'
    (tmp_path / "adapter_config.json").write_text(config)
    evidence = Given(Adapter.read(tmp_path), TrainingConfig.read(tmp_path))
    assert adapter_presence.run(evidence).status is Status.PASSED


def test_missing_evidence_is_skipped() -> None:
    outcome = adapter_presence.run(Given())
    assert (outcome.status, outcome.reason) == (Status.SKIPPED, "no adapter was given")


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        ("healthy-ordinary", set()),
        ("healthy-noisy-batch1", set()),
        ("collapse-frequent-token", set()),
        ("b-never-trained", {"zero-b"}),
        ("gradients-blocked", {"zero-b"}),
        ("adapter-never-attached", {"no-lora-tensors", "full-weights"}),
    ],
)
def test_fixture_runs(run: str, expected: set[str]) -> None:
    evidence = Given(Adapter.read(RUNS / run), TrainingConfig.read(RUNS / run))
    assert codes(adapter_presence.run(evidence)) == expected


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        ("f2", np.nan, {"non-finite", "float16-non-finite"}),
        ("f2", 1.0, set()),
        ("f4", np.nan, {"non-finite"}),
    ],
)
def test_what_broke_in_float16(tmp_path: Path, kind: str, value: float, expected: set[str]) -> None:
    tensors = {name: one.astype(kind) for name, one in lora(MODULES).items()}
    tensors[f"{FIRST}.lora_b"][0, 0] = value
    found = examine(tmp_path, tensors)
    assert codes(found) == expected
    for one in found.findings:
        assert one.severity is (
            Severity.WARNING if one.code.endswith("float16-non-finite") else Severity.ERROR
        )


def test_a_factor_of_one_number(tmp_path: Path) -> None:
    name = "model.layers.0.self_attn.q_proj"
    varied = np.arange(-31.5, 32, dtype=np.float32).reshape(16, 4)
    for b, found in ((varied.T, []), (np.full((4, 16), 0.01, np.float32), ["untrained-values"])):
        save(tmp_path / "adapters.safetensors", {f"{name}.lora_a": varied, f"{name}.lora_b": b})
        evidence = Given(Adapter.read(tmp_path))
        assert codes(adapter_presence.run(evidence)) == set(found)


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


@pytest.mark.parametrize("name", SOUND)
def test_a_sound_adapter(name: str) -> None:
    assert adapter_presence.run(Given(Adapter.read(RUNS / name))).findings == ()


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (each(lambda _, one: np.abs(one)), [("share", "error")]),
        # One value of forty lies on the other side; below, one of ten.
        (
            each(
                lambda _, one: np.where(np.arange(one.size).reshape(one.shape) % 20, abs(one), one)
            ),
            [("share", "error")],
        ),
        (
            each(
                lambda _, one: np.where(np.arange(one.size).reshape(one.shape) % 5, abs(one), one)
            ),
            [],
        ),
        (rounded(1), [("different", "error")]),
        (rounded(3), [("different", "error")]),
        (rounded(7), []),
        (each(lambda _, one: one.astype(np.float16)), []),
        (exchanged("b"), [("same", "error")]),
        (exchanged("a"), [("same", "warning")]),
        (exchanged("ab"), [("same", "warning")]),
        (with_magnitudes(1.0), []),
        (with_magnitudes(-1.0), [("odd", "error")]),
        (with_magnitudes(None), [("odd", "error")]),
        (with_magnitudes(1.8), []),
        (with_magnitudes(2.2), [("odd", "error")]),
        (with_magnitudes(0.4), [("odd", "error")]),
    ],
)
def test_values_that_no_training_leaves(
    tmp_path: Path, change: Callable[[Tensors], Tensors], found: list[tuple[str, str]]
) -> None:
    adapter = edited(tmp_path / "run", change)
    judged = adapter_presence.run(Given(adapter, BaseModel.read(FIXTURES / "base")))
    assert codes(judged) == ({"untrained-values"} if found else set())
    assert [one.severity for one in judged.findings] == [severity for _, severity in found]
    assert [figure for figure, _ in found if figure not in judged.findings[0].measured] == []
