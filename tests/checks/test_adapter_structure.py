"""What the adapter-structure check sees in names and shapes, and what mlx-lm does with them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
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
from tests.conftest import FIXTURES, ROOT, RUNS, check_called
from tests.given import Given, outcome
from tests.weight_files import MLX_CONFIG, lora, save, write_config

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
    config.setdefault("lora_parameters", parameters())
    save(folder / "adapters.safetensors", tensors)
    stated = TrainingConfig.read(write_config(folder, **config))
    evidence = [one for one in (Adapter.read(folder), stated, base) if one is not None]
    return adapter_structure.run(Given(*evidence))


def codes(outcome: Outcome) -> set[str]:
    assert outcome.status is not Status.CRASHED, outcome.reason
    return {finding.code.removeprefix("adapter-structure.") for finding in outcome.findings}


def parameters(**changes: Any) -> dict[str, Any]:
    return {"rank": 4, "scale": 10.0, "dropout": 0.0, "keys": KEYS, **changes}


def test_a_fitting_adapter_passes(tmp_path: Path) -> None:
    assert examine(tmp_path, lora(MODULES)).status is Status.PASSED
    assert examine(tmp_path / "x", lora(MODULES), base=None).status is Status.PASSED


#: Modules, `lora_parameters`, and the one finding with its figures.
MISFITS: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "unmatched-key": (MODULES, parameters(keys=[*KEYS, "k_proj"]), {"keys": ("k_proj",)}),
    "modules-not-in-base": (
        {**MODULES, "model.layers.2.self_attn.g_proj": (96, 96)},
        parameters(keys=[*KEYS, "self_attn.g_proj"]),
        {"missing": 1},
    ),
    "shape-mismatch": (
        {name: (128, outputs) for name, (_, outputs) in MODULES.items()},
        parameters(),
        {"in": 128, "base_in": 96},
    ),
    "shape-mismatch of layers": (
        {**MODULES, "model.layers.4.self_attn.q_proj": (96, 96)},
        parameters(),
        {"layer": 4, "base_layers": 4},
    ),
}


@pytest.mark.parametrize("name", MISFITS)
def test_a_misfit(tmp_path: Path, name: str) -> None:
    modules, config, measured = MISFITS[name]
    code = name.partition(" ")[0]
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


def test_dora_and_its_magnitudes(tmp_path: Path) -> None:
    tensors = lora(MODULES)
    assert codes(examine(tmp_path / "1", tensors, fine_tune_type="dora")) == {
        "dora-without-magnitude"
    }
    full = {**tensors, **{f"{n}.m": np.ones(o, np.float32) for n, (_, o) in MODULES.items()}}
    assert codes(examine(tmp_path / "2", full, fine_tune_type="dora")) == set()
    assert codes(examine(tmp_path / "3", full)) == {"tensors-refused"}


def severities(outcome: Outcome) -> dict[str, Severity]:
    assert outcome.status is not Status.CRASHED, outcome.reason
    return {one.code.removeprefix("adapter-structure."): one.severity for one in outcome.findings}


@pytest.mark.parametrize(
    ("base", "keys", "severity"),
    [
        (BASE, ["q_proj", "auto"], Severity.ERROR),
        (replace(BASE, is_mlx=False), ["q_proj", "auto"], Severity.WARNING),
        (None, ["q_proj", "auto"], Severity.WARNING),
        # One of these names a module of the base model.
        (BASE, ["q_proj", "auto", "mlp.up_proj"], Severity.WARNING),
    ],
)
def test_keys_of_which_none_names_a_module(
    tmp_path: Path, base: BaseModel | None, keys: list[str], severity: Severity
) -> None:
    outcome = examine(tmp_path, lora(MODULES), base=base, lora_parameters=parameters(keys=keys))
    assert severities(outcome) == {
        "tensors-refused": Severity.ERROR,
        "unmatched-key": severity,
    }
    nothing = base is not None and "mlp.up_proj" not in keys
    assert ("nothing is converted" in outcome.findings[-1].message) is nothing


@pytest.mark.parametrize(
    ("rank", "pattern", "found"),
    [(4, {}, set()), (8, {}, {"rank-mismatch"}), (8, {"q_proj": 4, "v_proj": 4}, set())],
)
def test_the_rank_of_peft(
    tmp_path: Path, rank: int, pattern: dict[str, int], found: set[str]
) -> None:
    folder = tmp_path / "run"
    save(folder / "adapters.safetensors", lora(MODULES))
    stated = {"peft_type": "LORA", "r": rank, "lora_alpha": 8, "rank_pattern": pattern}
    (folder / "adapter_config.json").write_text(json.dumps(stated))
    judged = adapter_structure.run(Given(Adapter.read(folder), TrainingConfig.read(folder), BASE))
    assert codes(judged) - {"another-format"} == found
    for finding in judged.findings:
        if finding.code.endswith("rank-mismatch"):
            assert finding.measured.items() >= {"ranks": (4,), "configured": 8}.items()


@pytest.mark.parametrize("base", [BASE, None])
@pytest.mark.parametrize(("loose", "severity"), [(False, Severity.WARNING), (True, Severity.INFO)])
def test_no_configuration(
    tmp_path: Path, base: BaseModel | None, loose: bool, severity: Severity
) -> None:
    path = save(tmp_path / "adapters.safetensors", lora(MODULES))
    evidence = [one for one in (Adapter.read(path, is_loose=loose), base) if one is not None]
    assert severities(adapter_structure.run(Given(*evidence))) == {"no-configuration": severity}


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
    evidence = Given(Adapter.read(path), TrainingConfig.read(stated), BASE)
    assert severities(adapter_structure.run(evidence)) == {"no-configuration": Severity.WARNING}


def test_nothing_to_compare_with_is_inconclusive(tmp_path: Path) -> None:
    path = save(tmp_path / "adapters.safetensors", lora(MODULES))
    # It lies beside the adapter, and can't be read.
    (tmp_path / "adapter_config.json").write_text("{")
    outcome = adapter_structure.run(Given(Adapter.read(path)))
    assert outcome.status is Status.INCONCLUSIVE


def test_missing_evidence_is_skipped() -> None:
    assert adapter_structure.run(Given(BASE)).status is Status.SKIPPED


@pytest.mark.parametrize("run", ["healthy-ordinary", "healthy-noisy-batch1"])
def test_healthy_fixture_runs_pass(run: str) -> None:
    folder = RUNS / run
    evidence = Given(Adapter.read(folder), TrainingConfig.read(folder), BASE)
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
    judged = adapter_structure.run(Given(adapter))
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


RUN = RUNS / "healthy-ordinary"
Tensors = dict[str, Any]
Edit = Callable[[Path], None]


def setting(key: str, value: object) -> Edit:
    """Another value in adapter_config.json; keys of lora_parameters by `lora.` and their name."""

    def edit(folder: Path) -> None:
        path = folder / "adapter_config.json"
        values = json.loads(path.read_text())
        place = values["lora_parameters"] if key.startswith("lora.") else values
        place[key.removeprefix("lora.")] = value
        path.write_text(json.dumps(values))

    return edit


def tensors(change: Callable[[Tensors], Tensors]) -> Edit:
    """Other tensors in the file."""

    def edit(folder: Path) -> None:
        from safetensors.numpy import load_file, save_file

        path = folder / "adapters.safetensors"
        changed = change(load_file(path))
        save_file({name: np.ascontiguousarray(one) for name, one in changed.items()}, path)

    return edit


def renamed(before: str, after: str) -> Edit:
    return tensors(lambda found: {name.replace(before, after): x for name, x in found.items()})


def magnitudes(found: Tensors) -> Tensors:
    """One for every output."""
    return {
        name.replace("lora_b", "m"): np.ones(one.shape[1], np.float32)
        for name, one in found.items()
        if name.endswith("lora_b")
    }


#: name -> an edit, and the error that is found; None where mlx-lm loads it all the same.
EDITS: dict[str, tuple[Edit, str | None]] = {
    "as it is": (lambda _: None, None),
    "scale of text": (setting("lora.scale", "20"), "setting-refused"),
    "scale of none": (setting("lora.scale", None), "setting-refused"),
    "scale in a list": (setting("lora.scale", [20.0]), "setting-refused"),
    "whole scale": (setting("lora.scale", 20), None),
    "rank of text": (setting("lora.rank", "8"), "setting-refused"),
    "broken rank": (setting("lora.rank", 8.0), "setting-refused"),
    "no rank at all": (setting("lora.rank", 0), "setting-refused"),
    "dropout of two": (setting("lora.dropout", 2.0), "setting-refused"),
    "dropout below zero": (setting("lora.dropout", -0.1), "setting-refused"),
    "a list of parameters": (setting("lora_parameters", []), "setting-refused"),
    "no parameters": (setting("lora_parameters", None), "setting-refused"),
    "layers of text": (setting("num_layers", "4"), "setting-refused"),
    "no layers": (setting("num_layers", None), "setting-refused"),
    "all layers": (setting("num_layers", -1), None),
    "zero layers": (setting("num_layers", 0), None),
    "more layers than there are": (setting("num_layers", 40), None),
    "one layer": (setting("num_layers", 1), "tensors-refused"),
    "another rank": (setting("lora.rank", 16), "tensors-refused"),
    "alpha for scale": (
        setting("lora_parameters", {"rank": 8, "alpha": 16, "dropout": 0.0}),
        "setting-refused",
    ),
    "keys of text": (setting("lora.keys", "self_attn.q_proj"), "setting-refused"),
    "no keys": (setting("lora.keys", []), "tensors-refused"),
    "one key": (setting("lora.keys", ["self_attn.q_proj"]), "tensors-refused"),
    "another kind of tuning": (setting("fine_tune_type", "lorra"), None),
    "a full fine-tune": (setting("fine_tune_type", "full"), "tensors-refused"),
    "numbers of 64 bits": (
        tensors(lambda found: {name: one.astype(np.float64) for name, one in found.items()}),
        "tensors-refused",
    ),
    "magnitudes without DoRA": (
        tensors(lambda found: {**found, **magnitudes(found)}),
        "tensors-refused",
    ),
    "the embedding without keys": (
        tensors(
            lambda found: {
                **found,
                "model.embed_tokens.lora_a": np.ones((768, 8), np.float32),
                "model.embed_tokens.lora_b": np.ones((8, 96), np.float32),
            }
        ),
        "tensors-refused",
    ),
    "a bias beside them": (
        tensors(lambda found: {**found, "lm_head.bias": np.zeros(8, np.float32)}),
        "tensors-refused",
    ),
}


def edited(folder: Path, edit: Edit) -> Path:
    folder.mkdir()
    for name in ("adapters.safetensors", "adapter_config.json"):
        shutil.copy(RUN / name, folder / name)
    edit(folder)
    return folder


def loading(folder: Path, base: BaseModel | None = None) -> Outcome:
    config = TrainingConfig.beside(folder / "adapters.safetensors")
    return outcome(adapter_structure, Adapter.read(folder), config, *([base] if base else []))


def refusals(judged: Outcome) -> list[str]:
    """What mlx-lm would stop at, by code."""
    assert judged.status != "crashed", judged.reason
    found = {one.code.removeprefix("adapter-structure.") for one in judged.findings}
    return sorted(found & {"setting-refused", "tensors-refused", "scale-zero", "scale-impossible"})


def answer(base: Path, folder: Path) -> None:
    """Load the adapter, and ask the model something."""
    import mlx.core as mx
    import mlx_lm

    model, *_ = mlx_lm.load(str(base), adapter_path=str(folder))
    model(mx.array([[1, 2, 3]]))


@pytest.mark.parametrize("name", EDITS)
def test_what_is_refused_is_told_without_the_base_model(tmp_path: Path, name: str) -> None:
    edit, expected = EDITS[name]
    folder = edited(tmp_path / "run", edit)
    assert refusals(loading(folder)) == ([expected] if expected else [])


@pytest.mark.slow
@pytest.mark.parametrize("name", EDITS)
def test_mlx_lm_refuses_just_these(tmp_path: Path, name: str) -> None:
    edit, expected = EDITS[name]
    folder = edited(tmp_path / "run", edit)
    base = FIXTURES / "base"
    assert refusals(loading(folder, BaseModel.read(base))) == ([expected] if expected else [])
    if expected is None:
        answer(base, folder)
    else:
        with pytest.raises((ValueError, TypeError, KeyError, AttributeError, RuntimeError)):
            answer(base, folder)


def test_layers_under_their_old_name(tmp_path: Path) -> None:
    """`lora_layers` was right for the mlx-lm of its time."""

    def edit(folder: Path) -> None:
        path = folder / "adapter_config.json"
        values = json.loads(path.read_text())
        values["lora_layers"] = values.pop("num_layers")
        path.write_text(json.dumps(values))

    judged = loading(edited(tmp_path / "run", edit))
    assert [(one.code, one.severity) for one in judged.findings] == [
        ("adapter-structure.setting-refused", "warning")
    ]


@pytest.mark.parametrize(
    ("scale", "code"),
    [(0, "scale-zero"), (-20.0, "scale-impossible"), (float("nan"), "scale-impossible")],
)
def test_a_scale_that_undoes_the_adapter(tmp_path: Path, scale: float, code: str) -> None:
    folder = edited(tmp_path / "run", setting("lora.scale", scale))
    assert refusals(loading(folder)) == [code]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("model.layers", "transformer.h"),
        ("model.layers", "base_model.model.model.layers"),
        ("q_proj", "query"),
        # Each name is that of some architecture, and all of them together of none.
        ("self_attn.q_proj", "self_attn.query_key_value"),
    ],
)
def test_names_that_no_architecture_has(tmp_path: Path, before: str, after: str) -> None:
    folder = edited(tmp_path / "run", renamed(before, after))
    judged = loading(folder)
    assert codes(judged) == {"unknown-names"}
    assert loading(edited(tmp_path / "sound", lambda _: None)).findings == ()
    # The base model itself tells more.
    with_base = loading(folder, BaseModel.read(FIXTURES / "base"))
    assert "unknown-names" not in {one.code.partition(".")[2] for one in with_base.findings}


@pytest.mark.slow
def test_the_known_names_are_those_of_the_mlx_lm_that_is_installed() -> None:
    import mlx_lm
    import mlx_lm.models

    from fixtures.lab.families import known

    written = json.loads((ROOT / "mlxdoctor" / "evidence" / "module_names.json").read_text())
    if written["mlx-lm"] != mlx_lm.__version__:
        pytest.skip(f"they are those of {written['mlx-lm']}: python -m fixtures.lab.families")
    names, experts = known(Path(mlx_lm.models.__path__[0]))
    assert written["names"] == names
    assert written["experts"] == experts


def test_names_of_experts_with_factors_of_one_matrix(tmp_path: Path) -> None:
    folder = edited(tmp_path / "run", renamed("mlp.", "mlp.switch_mlp."))
    judged = loading(folder)
    assert codes(judged) == {"unknown-names"}
    assert "stacked experts" in judged.findings[0].message


def test_another_file_name_and_another_format(tmp_path: Path) -> None:
    folder = edited(tmp_path / "run", lambda _: None)
    (folder / "adapters.safetensors").rename(folder / "mine.safetensors")
    config = TrainingConfig.beside(folder / "mine.safetensors")
    adapter = Adapter.read(folder / "mine.safetensors")
    judged = outcome(adapter_structure, adapter, config)
    assert [one.code for one in judged.findings] == ["adapter-structure.another-format"]
    # A file that was named by itself may go where it is called right.
    loose = Adapter.read(folder / "mine.safetensors", is_loose=True)
    assert outcome(adapter_structure, loose, config).findings == ()
    (folder / "mine.safetensors").rename(folder / "0000300_adapters.safetensors")
    saved = Adapter.read(folder / "0000300_adapters.safetensors")
    assert outcome(adapter_structure, saved, config).findings == ()
