"""What the adapter-structure check sees in names and shapes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlxdoctor.evidence.adapter import Adapter
from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.finding import Outcome, Severity, Status
from mlxdoctor.run import Run
from tests.conftest import FIXTURES, RUNS, check_called
from tests.weight_files import MLX_CONFIG, Evidence, lora, save, write_config

adapter_structure = check_called("adapter-structure")


#: q and v of the last two layers of the fixture base model.
MODULES = {
    f"model.layers.{i}.self_attn.{p}_proj": (96, o)
    for i in (2, 3)
    for p, o in (("q", 96), ("v", 48))
}
KEYS = ["self_attn.q_proj", "self_attn.v_proj"]
BASE = BaseModel.read(FIXTURES / "base")


def examine(
    folder: Path, tensors: dict[str, Any], base: BaseModel | None = BASE, **config: Any
) -> Outcome:
    config.setdefault("lora_parameters", {"rank": 4, "scale": 10.0, "keys": KEYS})
    save(folder / "adapters.safetensors", tensors)
    stated = TrainingConfig.read(write_config(folder, **config))
    evidence = [one for one in (Adapter.read(folder), stated, base) if one is not None]
    return adapter_structure.run(Evidence(*evidence))


def codes(outcome: Outcome) -> set[str]:
    assert outcome.status is not Status.CRASHED, outcome.reason
    return {finding.code.removeprefix("adapter-structure.") for finding in outcome.findings}


def parameters(**changes: Any) -> dict[str, Any]:
    return {"rank": 4, "scale": 10.0, "keys": KEYS, **changes}


def test_a_fitting_adapter_passes(tmp_path: Path) -> None:
    assert examine(tmp_path, lora(MODULES)).status is Status.PASSED
    assert examine(tmp_path / "x", lora(MODULES), base=None).status is Status.PASSED


#: Modules, `lora_parameters`, and the one finding with its figures.
MISFITS: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "rank-mismatch": (MODULES, parameters(rank=8), {"ranks": (4,), "configured": 8}),
    "unmatched-key": (MODULES, parameters(keys=[*KEYS, "k_proj"]), {"keys": ("k_proj",)}),
    "scale-missing": (MODULES, {"rank": 4, "alpha": 16, "keys": KEYS}, {"alpha": 16}),
    "modules-not-in-base": (
        {**MODULES, "model.layers.2.self_attn.g_proj": (96, 96)},
        parameters(keys=[*KEYS, "self_attn.g_proj"]),
        {"missing": 1},
    ),
    "layer-out-of-range": (
        {**MODULES, "model.layers.4.self_attn.q_proj": (96, 96)},
        parameters(),
        {"layer": 4},
    ),
    "shape-mismatch": (
        {name: (128, outputs) for name, (_, outputs) in MODULES.items()},
        parameters(),
        {"in": 128, "base_in": 96},
    ),
}


@pytest.mark.parametrize("code", MISFITS)
def test_a_misfit(tmp_path: Path, code: str) -> None:
    modules, config, measured = MISFITS[code]
    (finding,) = examine(tmp_path, lora(modules), lora_parameters=config).findings
    assert finding.code == f"adapter-structure.{code}"
    assert finding.measured.items() >= measured.items()


@pytest.mark.parametrize("base", [BASE, None])
def test_a_missing_layer(tmp_path: Path, base: BaseModel | None) -> None:
    outcome = examine(tmp_path, lora(MODULES), base=base, num_layers=3)
    (finding,) = outcome.findings
    assert finding.code == "adapter-structure.missing-modules"
    expected = (2, 6) if base else (1, 3)
    assert (finding.measured["missing"], finding.measured["expected"]) == expected
    assert finding.severity is Severity.WARNING


def without(tensors: dict[str, Any], *endings: str) -> dict[str, Any]:
    """The tensors of all modules but those whose names end so."""
    return {n: one for n, one in tensors.items() if not n.rpartition(".")[0].endswith(endings)}


@pytest.mark.parametrize("keys", [KEYS, None])
def test_a_module_missing_in_one_layer(tmp_path: Path, keys: list[str] | None) -> None:
    tensors = without(lora(MODULES), "3.self_attn.v_proj")
    outcome = examine(tmp_path, tensors, lora_parameters=parameters(keys=keys))
    (finding,) = outcome.findings
    assert (finding.code, finding.severity) == ("adapter-structure.missing-modules", Severity.ERROR)
    assert finding.where == "model.layers.3.self_attn.v_proj"
    assert (finding.measured["missing"], finding.measured["expected"]) == (1, 4)


def test_blocks_of_several_kinds_under_one_name(tmp_path: Path) -> None:
    """A dense layer among layers of experts, as DeepSeek's first: nothing of it is missing."""
    dense = {f"model.layers.0.mlp.{name}_proj": (96, 96) for name in ("up", "down")}
    experts = {
        f"model.layers.{layer}.mlp.{name}": (96, 96)
        for layer in (1, 2)
        for name in ("gate", "shared_experts.up_proj", "shared_experts.down_proj")
    }
    chosen = parameters(keys=None)
    sound = lora({**dense, **experts})
    (tmp_path / "one").mkdir()
    outcome = examine(tmp_path / "one", sound, base=None, num_layers=3, lora_parameters=chosen)
    assert codes(outcome) == set()
    lacking = without(sound, "2.mlp.shared_experts.up_proj")
    (tmp_path / "two").mkdir()
    outcome = examine(tmp_path / "two", lacking, base=None, num_layers=3, lora_parameters=chosen)
    assert codes(outcome) == {"missing-modules"}


#: Part of what `mlx_lm.lora` writes of its arguments.
WRITTEN: dict[str, Any] = {
    "adapter_path": "x",
    "grad_accumulation_steps": 1,
    "test_batches": 1,
    "train": True,
}


def test_a_kind_of_module_missing_in_every_layer(tmp_path: Path) -> None:
    chosen = parameters(keys=None)
    few = lora(MODULES)
    # Earlier releases took only some layers where no keys were stated.
    assert codes(examine(tmp_path / "1", few, lora_parameters=chosen)) == set()
    outcome = examine(tmp_path / "2", few, lora_parameters=chosen, **WRITTEN)
    (finding,) = outcome.findings
    assert (finding.code, finding.severity) == ("adapter-structure.missing-modules", Severity.ERROR)
    # Of seven projections in each of two layers.
    assert (finding.measured["missing"], finding.measured["expected"]) == (10, 14)
    whole = {n: shape for n, shape in BASE.linear_shapes.items() if ".2." in n or ".3." in n}
    outcome = examine(tmp_path / "3", lora(whole), lora_parameters=chosen, **WRITTEN)
    assert outcome.status is Status.PASSED
    assert codes(examine(tmp_path / "4", few, **WRITTEN)) == set()


def test_layers_missing_from_what_mlx_lm_wrote(tmp_path: Path) -> None:
    (finding,) = examine(tmp_path, lora(MODULES), num_layers=3, **WRITTEN).findings
    assert (finding.code, finding.severity) == ("adapter-structure.missing-modules", Severity.ERROR)


def test_modules_under_other_names_are_not_called_missing(tmp_path: Path) -> None:
    tensors = without(lora(MODULES), "3.self_attn.v_proj")
    tensors.update(lora({"language_model.model.layers.3.self_attn.v_proj": (96, 48)}))
    assert codes(examine(tmp_path, tensors)) == {"modules-not-in-base"}


@pytest.mark.parametrize(
    ("is_mlx", "severity"), [(True, Severity.ERROR), (False, Severity.WARNING)]
)
def test_a_prefix_that_differs(tmp_path: Path, is_mlx: bool, severity: Severity) -> None:
    names = {f"language_model.{name}": shape for name, shape in MODULES.items()}
    base = BASE
    if not is_mlx:
        save(
            tmp_path / "base" / "model.safetensors", {n: t.load() for n, t in BASE.tensors.items()}
        )
        (tmp_path / "base" / "config.json").write_text(json.dumps(dict(BASE.config)))
        base = BaseModel.read(tmp_path / "base")
    outcome = examine(tmp_path / "run", lora(names), base=base)
    finding = next(f for f in outcome.findings if f.code.endswith("modules-not-in-base"))
    assert codes(outcome) == {"modules-not-in-base"}
    assert finding.severity is severity
    assert finding.measured["closest"] == "model.layers.2.self_attn.q_proj"


def test_a_rank_as_large_as_the_module_is_not_turned(tmp_path: Path) -> None:
    config = parameters(rank=96, keys=["x"])
    tensors = lora({"model.layers.2.x": (96, 96), "model.layers.3.x": (96, 96)}, rank=96)
    assert codes(examine(tmp_path, tensors, base=None, lora_parameters=config)) == set()


def test_dora_and_its_magnitudes(tmp_path: Path) -> None:
    tensors = lora(MODULES)
    assert codes(examine(tmp_path / "1", tensors, fine_tune_type="dora")) == {
        "dora-without-magnitude"
    }
    full = {**tensors, **{f"{n}.m": np.ones(o, np.float32) for n, (_, o) in MODULES.items()}}
    assert codes(examine(tmp_path / "2", full, fine_tune_type="dora")) == set()
    assert codes(examine(tmp_path / "3", full)) == {"magnitude-without-dora"}


def severities(outcome: Outcome) -> dict[str, Severity]:
    assert outcome.status is not Status.CRASHED, outcome.reason
    return {one.code.removeprefix("adapter-structure."): one.severity for one in outcome.findings}


KEYS_OF_NOTHING = ["q_proj", "auto"]


@pytest.mark.parametrize("is_mlx", [True, False])
def test_keys_of_which_none_names_a_module(tmp_path: Path, is_mlx: bool) -> None:
    base = BASE if is_mlx else replace(BASE, is_mlx=False)
    config = parameters(keys=KEYS_OF_NOTHING)
    outcome = examine(tmp_path, lora(MODULES), base=base, lora_parameters=config)
    severity = Severity.ERROR if is_mlx else Severity.WARNING
    assert severities(outcome) == {"unmatched-key": severity}
    assert outcome.findings[0].measured["in_base"] == 0


def test_one_key_that_names_a_module_of_the_base_is_no_error(tmp_path: Path) -> None:
    config = parameters(keys=[*KEYS_OF_NOTHING, "mlp.up_proj"])
    outcome = examine(tmp_path, lora(MODULES), lora_parameters=config)
    assert severities(outcome)["unmatched-key"] is Severity.WARNING
    unknown = examine(
        tmp_path / "x", lora(MODULES), base=None, lora_parameters=parameters(keys=KEYS_OF_NOTHING)
    )
    assert severities(unknown) == {"unmatched-key": Severity.WARNING}
    assert unknown.findings[0].measured["in_base"] is None


@pytest.mark.parametrize("base", [BASE, None])
@pytest.mark.parametrize(("loose", "severity"), [(False, Severity.WARNING), (True, Severity.INFO)])
def test_no_configuration(
    tmp_path: Path, base: BaseModel | None, loose: bool, severity: Severity
) -> None:
    path = save(tmp_path / "adapters.safetensors", lora(MODULES))
    evidence = [one for one in (Adapter.read(path, is_loose=loose), base) if one is not None]
    assert severities(adapter_structure.run(Evidence(*evidence))) == {"no-configuration": severity}


@pytest.mark.parametrize("named", ["run", "run/adapters.safetensors"])
def test_no_configuration_in_the_folder_that_was_named(tmp_path: Path, named: str) -> None:
    (tmp_path / "run").mkdir()
    save(tmp_path / "run" / "adapters.safetensors", lora(MODULES))
    for options in ({"adapter": tmp_path / named}, {}):
        paths = [] if options else [tmp_path / named]
        run = Run.discover(paths, base=FIXTURES / "base", allow_model=False, **options)
        severity = Severity.WARNING if named == "run" else Severity.INFO
        assert severities(adapter_structure.run(run)) == {"no-configuration": severity}


def test_a_configuration_under_another_name_does_not_load_the_adapter(tmp_path: Path) -> None:
    path = save(tmp_path / "adapters.safetensors", lora(MODULES))
    stated = tmp_path / "lora.json"
    stated.write_text(json.dumps({**MLX_CONFIG, "lora_parameters": parameters()}))
    evidence = Evidence(Adapter.read(path), TrainingConfig.read(stated), BASE)
    assert severities(adapter_structure.run(evidence)) == {"no-configuration": Severity.WARNING}


def test_nothing_to_compare_with_is_inconclusive(tmp_path: Path) -> None:
    path = save(tmp_path / "adapters.safetensors", lora(MODULES))
    # It lies beside the adapter, and can't be read.
    (tmp_path / "adapter_config.json").write_text("{")
    outcome = adapter_structure.run(Evidence(Adapter.read(path)))
    assert outcome.status is Status.INCONCLUSIVE


def test_missing_evidence_is_skipped() -> None:
    assert adapter_structure.run(Evidence(BASE)).status is Status.SKIPPED


@pytest.mark.parametrize("run", ["healthy-ordinary", "healthy-noisy-batch1"])
def test_healthy_fixture_runs_pass(run: str) -> None:
    folder = RUNS / run
    evidence = Evidence(Adapter.read(folder), TrainingConfig.read(folder), BASE)
    assert codes(adapter_structure.run(evidence)) == set()


ATTENTION = {"q_proj": (96, 128), "k_proj": (96, 48), "v_proj": (96, 48), "o_proj": (128, 96)}
FEED_FORWARD = {"gate_proj": (96, 256), "up_proj": (96, 256), "down_proj": (256, 96)}


def block_of(
    folder: Path, block: str, sizes: dict[str, tuple[int, int]], experts: int = 0
) -> Adapter:
    tensors: dict[str, Any] = {}
    for name, (inputs, outputs) in sizes.items():
        a, b = (inputs, 4), (4, outputs)
        if experts:
            a, b = (experts, *a[::-1]), (experts, *b[::-1])
        tensors[f"model.layers.0.{block}.{name}.lora_a"] = np.ones(a, np.float32)
        tensors[f"model.layers.0.{block}.{name}.lora_b"] = np.ones(b, np.float32)
    save(folder / "adapters.safetensors", tensors)
    return Adapter.read(folder)


def messages(adapter: Adapter) -> list[str]:
    judged = adapter_structure.run(Evidence(adapter))
    return [one.message for one in judged.findings if one.code.endswith("sizes-disagree")]


@pytest.mark.parametrize("experts", [0, 3])
@pytest.mark.parametrize(
    ("block", "sizes", "agree"),
    [
        ("self_attn", ATTENTION, True),
        ("mlp", FEED_FORWARD, True),
        # The gate of Qwen3-Next's attention doubles the queries.
        ("self_attn", {**ATTENTION, "q_proj": (96, 256)}, True),
        ("self_attn", {**ATTENTION, "k_proj": (48, 96)}, False),
        ("self_attn", {"q_proj": (96, 96), "v_proj": (48, 96)}, False),
        ("mlp", {**FEED_FORWARD, "up_proj": (256, 96)}, False),
        ("mlp", {**FEED_FORWARD, "down_proj": (96, 256)}, False),
        ("mlp", {"up_proj": (96, 256), "down_proj": (128, 96)}, False),
        ("mlp", {"down_proj": (96, 256)}, True),
    ],
)
def test_sizes(
    tmp_path: Path, block: str, sizes: dict[str, tuple[int, int]], agree: bool, experts: int
) -> None:
    found = messages(block_of(tmp_path, block, sizes, experts))
    assert bool(found) is not agree


def test_what_is_said(tmp_path: Path) -> None:
    found = messages(block_of(tmp_path, "mlp", {**FEED_FORWARD, "up_proj": (96, 128)}))
    assert found == [
        "The sizes of 1 of 1 blocks do not go together: model.layers.0.mlp.gate_proj maps 96 to "
        "256, model.layers.0.mlp.up_proj maps 96 to 128, model.layers.0.mlp.down_proj maps 256 to "
        "96."
    ]


def test_sound_adapters() -> None:
    for folder in (*sorted(RUNS.glob("healthy-*")), FIXTURES / "adapters" / "peft-written"):
        assert messages(Adapter.read(folder)) == []
