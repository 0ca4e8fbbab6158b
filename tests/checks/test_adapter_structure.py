import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from fixtures.lab.cases.workshop import copied_run
from mlxdoctor.evidence.adapter import Adapter
from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.finding import Outcome, Status
from mlxdoctor.run import Run
from tests.conftest import FIXTURES, check_called
from tests.edits import Tensors, change_tensors
from tests.given import WRITTEN, outcome, severities
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

#: Another base: MLX did not write it, so that its names may be others once it is loaded.
RENAMED = replace(BASE, is_mlx=False)


def examine(
    folder: Path, tensors: dict[str, Any], base: BaseModel | None = BASE, **config: Any
) -> Outcome:
    config.setdefault("lora_parameters", parameters())
    save(folder / "adapters.safetensors", tensors)
    stated = TrainingConfig.read(write_config(folder, **config))
    return outcome(adapter_structure, Adapter.read(folder), stated, *([base] if base else []))


def parameters(**changes: Any) -> dict[str, Any]:
    return {"rank": 4, "scale": 10.0, "dropout": 0.0, "keys": KEYS, **changes}


def keyed(*keys: str) -> dict[str, Any]:
    """The settings with other keys; without any for none."""
    return {"lora_parameters": parameters(keys=list(keys) or None)}


def without(tensors: dict[str, Any], *endings: str) -> dict[str, Any]:
    """The tensors of all modules but those whose names end so."""
    return {n: one for n, one in tensors.items() if not n.rpartition(".")[0].endswith(endings)}


LORA = lora(MODULES)
MAGNITUDES = {f"{name}.m": np.ones(outputs, np.float32) for name, (_, outputs) in MODULES.items()}
#: Modules of all kinds in the last two layers.
WHOLE = {
    name: shape for name, shape in BASE.linear_shapes.items() if ".2." in name or ".3." in name
}
PREFIXED = lora({f"language_model.{name}": shape for name, shape in MODULES.items()})


class Case(NamedTuple):
    """Tensors beside settings and a base: what is found, and figures of the last finding."""

    found: tuple[str, ...]
    tensors: dict[str, Any]
    base: BaseModel | None
    figures: dict[str, Any]
    settings: dict[str, Any]


def case(
    *found: str,
    tensors: dict[str, Any] = LORA,
    base: BaseModel | None = BASE,
    figures: dict[str, Any] | None = None,
    **settings: Any,
) -> Case:
    """A case; what is found is `CODE SEVERITY`, of which there is none by default."""
    return Case(found, tensors, base, figures or {}, settings)


STRANGE = {**MODULES, "model.layers.2.self_attn.g_proj": (96, 96)}
WIDE = {name: (128, outputs) for name, (_, outputs) in MODULES.items()}
DEEP = {**MODULES, "model.layers.4.self_attn.q_proj": (96, 96)}
LACKING = without(LORA, "3.self_attn.v_proj")
ELSEWHERE = lora({"language_model.model.layers.3.self_attn.v_proj": (96, 48)})
OTHER, ONE_OTHER = keyed("q_proj", "auto"), keyed("q_proj", "auto", "mlp.up_proj")
FEW, ERROR = "missing-modules warning", "missing-modules error"
MISSING = {"missing": 1, "expected": 14}
UNMATCHED, REFUSED = "unmatched-key warning", "tensors-refused error"
CASES = {
    "sound": case(),
    "sound without the base": case(base=None),
    "a key too many": case(UNMATCHED, figures={"keys": ("k_proj",)}, **keyed(*KEYS, "k_proj")),
    "a module of another model": case(
        "modules-not-in-base error", tensors=lora(STRANGE), **keyed(*KEYS, "self_attn.g_proj")
    ),
    "another width": case(
        "shape-mismatch error", tensors=lora(WIDE), figures={"in": 128, "base_in": 96}
    ),
    "a layer too many": case(
        "shape-mismatch error", tensors=lora(DEEP), figures={"layer": 4, "base_layers": 4}
    ),
    "a layer too few": case(FEW, num_layers=3, figures={"missing": 2, "expected": 6}),
    "the same without the base": case(
        FEW, base=None, num_layers=3, figures={"missing": 1, "expected": 3}
    ),
    "the same of what mlx-lm wrote": case(ERROR, num_layers=3, **WRITTEN),
    "one of many left out": case(
        FEW, tensors=without(lora(WHOLE), "3.mlp.up_proj"), figures=MISSING, **keyed(), **WRITTEN
    ),
    "no module in one layer": case(ERROR, tensors=LACKING, figures={"missing": 1, "expected": 4}),
    "the same without keys": case(ERROR, tensors=LACKING, figures={"expected": 4}, **keyed()),
    # Earlier releases took only some layers where no keys were stated.
    "few kinds of modules": case(**keyed()),
    # Of seven projections in each of two layers.
    "few kinds where mlx-lm takes all": case(
        ERROR, figures={"missing": 10, "expected": 14}, **keyed(), **WRITTEN
    ),
    "all kinds": case(tensors=lora(WHOLE), **keyed(), **WRITTEN),
    "few kinds as its keys say": case(**WRITTEN),
    "a missing module under another name": case(
        "modules-not-in-base error", tensors=LACKING | ELSEWHERE
    ),
    "a prefix": case(
        "modules-not-in-base error",
        tensors=PREFIXED,
        figures={"closest": "model.layers.2.self_attn.q_proj"},
    ),
    "a prefix, of a base that is renamed": case(
        "modules-not-in-base warning", tensors=PREFIXED, base=RENAMED
    ),
    "no magnitudes": case("dora-without-magnitude warning", fine_tune_type="dora"),
    "magnitudes": case(tensors=LORA | MAGNITUDES, fine_tune_type="dora"),
    "magnitudes without DoRA": case(REFUSED, tensors=LORA | MAGNITUDES),
    "keys that name nothing": case(REFUSED, "unmatched-key error", **OTHER),
    "the same of a base that is renamed": case(REFUSED, UNMATCHED, base=RENAMED, **OTHER),
    "the same without a base": case(REFUSED, UNMATCHED, base=None, figures={"rest": None}, **OTHER),
    "a key of the base's": case(REFUSED, UNMATCHED, figures={"rest": None}, **ONE_OTHER),
}


@pytest.mark.parametrize("name", CASES)
def test_names_and_shapes(tmp_path: Path, name: str) -> None:
    found, tensors, base, figures, settings = CASES[name]
    judged = examine(tmp_path, tensors, base, **settings)
    assert severities(judged) == dict(text.split() for text in found)
    assert all(judged.findings[-1].measured[key] == value for key, value in figures.items())


@pytest.mark.parametrize("named", ["run", "run/adapters.safetensors"])
def test_no_configuration(tmp_path: Path, named: str) -> None:
    path = save(tmp_path / "run" / "adapters.safetensors", LORA)
    # A file that was named by itself may have its configuration elsewhere.
    expected = {"no-configuration": "warning" if named == "run" else "info"}
    for paths, options in (([tmp_path / named], {}), ([], {"adapter": tmp_path / named})):
        run = Run.discover(paths, base=FIXTURES / "base", allow_model=False, **options)
        assert severities(adapter_structure.run(run)) == expected
    loose = Adapter.read(path, is_loose=named != "run")
    assert severities(outcome(adapter_structure, loose)) == expected


def test_a_configuration_that_no_loader_reads(tmp_path: Path) -> None:
    adapter = Adapter.read(save(tmp_path / "adapters.safetensors", LORA))
    stated = tmp_path / "lora.json"
    stated.write_text(json.dumps({**MLX_CONFIG, "lora_parameters": parameters()}))
    judged = outcome(adapter_structure, adapter, TrainingConfig.read(stated), BASE)
    assert severities(judged) == {"no-configuration": "warning"}
    # It lies beside the adapter, and can't be read.
    (tmp_path / "adapter_config.json").write_text("{")
    adapter = Adapter.read(adapter.path)
    assert outcome(adapter_structure, adapter).status is Status.INCONCLUSIVE
    assert outcome(adapter_structure, BASE).status is Status.SKIPPED


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
    """What is said of sizes, without the sizes."""
    judged = outcome(adapter_structure, adapter).findings
    return [one.message.partition(":")[0] for one in judged if one.code.endswith("sizes-disagree")]


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
    told = [] if agree else ["The sizes of 1 of 1 blocks do not go together"]
    assert messages(block_of(tmp_path, block, sizes, experts)) == told


def test_names_of_a_gguf_file(tmp_path: Path) -> None:
    named = {"blk.2.attn_q.weight": (96, 96), "blk.3.attn_q.weight": (96, 96)}
    (found,) = examine(tmp_path, lora(named), base=None).findings
    assert (found.code, found.measured["gguf"]) == (
        "adapter-structure.another-format",
        "blk.2.attn_q.weight",
    )


def test_what_peft_wrote() -> None:
    assert messages(Adapter.read(FIXTURES / "adapters" / "peft-written")) == []


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

    return lambda folder: change_tensors(folder / "adapters.safetensors", change)


def renamed(before: str, after: str) -> Edit:
    return tensors(lambda found: {name.replace(before, after): x for name, x in found.items()})


STOPS, NO_PLACE = "setting-refused", "tensors-refused"
#: A value in the configuration, and what is found; nothing where mlx-lm loads it all the same.
SETTINGS: list[tuple[str, object, str]] = [
    ("lora.scale", "20", STOPS),
    ("lora.scale", None, STOPS),
    ("lora.rank", "8", STOPS),
    ("lora.rank", 8.0, STOPS),
    ("lora.rank", 16, NO_PLACE),
    ("lora.dropout", 2.0, STOPS),
    ("lora.keys", "self_attn.q_proj", STOPS),
    ("lora.keys", [], NO_PLACE),
    ("lora.keys", ["self_attn.q_proj"], NO_PLACE),
    ("lora_parameters", [], STOPS),
    ("lora_parameters", None, STOPS),
    ("lora_parameters", {"rank": 8, "alpha": 16, "dropout": 0.0}, STOPS),
    ("num_layers", "4", STOPS),
    ("num_layers", None, STOPS),
    ("num_layers", -1, ""),
    ("num_layers", 0, ""),
    ("num_layers", 1, NO_PLACE),
    ("fine_tune_type", "lora", ""),
    ("fine_tune_type", "lorra", ""),
    ("fine_tune_type", "full", NO_PLACE),
]
#: Tensors that are added and that mlx-lm has no place for.
ADDED: dict[str, Tensors] = {
    "magnitudes without DoRA": {"model.layers.0.self_attn.q_proj.m": np.ones(96, np.float32)},
    "the embedding without keys": lora({"model.embed_tokens": (768, 96)}, rank=8),
    "a bias": {"lm_head.bias": np.zeros(8, np.float32)},
}
EDITS: dict[str, tuple[Edit, str]] = {
    **{f"{key} {value}": (setting(key, value), found) for key, value, found in SETTINGS},
    **{
        name: (tensors(lambda found, more=more: found | more), NO_PLACE)
        for name, more in ADDED.items()
    },
    "numbers of 64 bits": (
        tensors(lambda found: {name: one.astype(np.float64) for name, one in found.items()}),
        NO_PLACE,
    ),
}


def edited(folder: Path, edit: Edit) -> Path:
    edit(copied_run(folder))
    return folder


def loading(folder: Path, base: BaseModel | None = None) -> Outcome:
    config = TrainingConfig.beside(folder / "adapters.safetensors")
    return outcome(adapter_structure, Adapter.read(folder), config, *([base] if base else []))


def refusals(judged: Outcome) -> str:
    """What mlx-lm would stop at, by code."""
    stops = {STOPS, NO_PLACE, "scale-zero", "scale-impossible"}
    return " ".join(stops & severities(judged).keys())


def answer(base: Path, folder: Path) -> None:
    """Load the adapter, and ask the model something."""
    import mlx.core as mx
    import mlx_lm

    model, *_ = mlx_lm.load(str(base), adapter_path=str(folder))
    model(mx.array([[1, 2, 3]]))


@pytest.mark.parametrize("name", EDITS)
def test_what_is_refused_is_told_without_the_base_model(tmp_path: Path, name: str) -> None:
    edit, expected = EDITS[name]
    assert refusals(loading(edited(tmp_path / "run", edit))) == expected


@pytest.mark.slow
@pytest.mark.parametrize("name", EDITS)
def test_mlx_lm_refuses_just_these(tmp_path: Path, name: str) -> None:
    edit, expected = EDITS[name]
    folder = edited(tmp_path / "run", edit)
    assert refusals(loading(folder, BASE)) == expected
    if not expected:
        answer(BASE.path, folder)
    else:
        with pytest.raises((ValueError, TypeError, KeyError, AttributeError, RuntimeError)):
            answer(BASE.path, folder)


def old_name(folder: Path) -> None:
    path = folder / "adapter_config.json"
    path.write_text(path.read_text().replace('"num_layers"', '"lora_layers"'))


@pytest.mark.parametrize(
    ("edit", "expected"),
    [
        # It was right for the mlx-lm of its time.
        (old_name, "setting-refused warning"),
        (setting("lora.scale", 0), "scale-zero error"),
        (setting("lora.scale", -20.0), "scale-impossible error"),
        (setting("lora.scale", float("nan")), "scale-impossible error"),
    ],
)
def test_what_is_told_besides(tmp_path: Path, edit: Edit, expected: str) -> None:
    folder = edited(tmp_path / "run", edit)
    assert severities(loading(folder)) == dict([expected.split()])


def test_another_file_name_and_another_format(tmp_path: Path) -> None:
    folder = edited(tmp_path / "run", lambda _: None)
    (folder / "adapters.safetensors").rename(folder / "mine.safetensors")
    config = TrainingConfig.beside(folder / "mine.safetensors")
    adapter = Adapter.read(folder / "mine.safetensors")
    assert severities(outcome(adapter_structure, adapter, config)) == {"another-format": "warning"}
    # A file that was named by itself may go where it is called right.
    loose = Adapter.read(folder / "mine.safetensors", is_loose=True)
    assert outcome(adapter_structure, loose, config).findings == ()
    (folder / "mine.safetensors").rename(folder / "0000300_adapters.safetensors")
    saved = Adapter.read(folder / "0000300_adapters.safetensors")
    assert outcome(adapter_structure, saved, config).findings == ()
