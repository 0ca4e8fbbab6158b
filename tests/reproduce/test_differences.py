"""In which keys two configurations differ, and what lies between."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.experiments.shared.recipe import Recipe, recipe_of, usual_values
from mlxdoctor.reproduce.differences import between, differences, healthy_of, suggested
from mlxdoctor.run import Run
from mlxdoctor.safety.errors import InputError
from tests.conftest import RUNS


@pytest.fixture
def recipe() -> Recipe:
    """That of a real run."""
    return recipe_of(Run.discover([RUNS / "collapse-frequent-token"], allow_model=False))


def keys(ours: dict[str, object], theirs: dict[str, object]) -> list[str]:
    """The keys that differ."""
    return [one.key for one in differences(ours, theirs)]


def test_defaults_are_filled_in_before_comparing() -> None:
    assert keys({"batch_size": 4}, {}) == []
    assert keys({"batch_size": 5}, {}) == ["batch_size"]
    lora = {"rank": 8, "dropout": 0.0, "scale": 20.0}
    assert keys({"lora_parameters": lora}, {}) == []
    assert keys({"lora_parameters": {**lora, "scale": 200.0}}, {}) == ["lora_parameters.scale"]


def test_what_only_says_where_and_how_often_is_no_difference() -> None:
    ours = {"adapter_path": "a", "save_every": 1, "steps_per_report": 1, "seed": 3, "test": True}
    assert keys(ours, {}) == []


def test_options_of_an_optimizer_that_is_not_used_are_no_difference() -> None:
    own = {"optimizer_config": {"adam": {"eps": 1e-6}, "muon": {"momentum": 0.5}}}
    assert keys(own, {"optimizer_config": {"adam": {"eps": 1e-6}}}) == []
    assert keys(own, {}) == ["optimizer_config"]


def test_a_full_fine_tune_has_no_table() -> None:
    found = keys({"fine_tune_type": "full"}, {})
    assert found[0] == "fine_tune_type"
    assert "lora_parameters.scale" in found


def test_between_goes_all_the_way() -> None:
    ours = {
        "learning_rate": 1.0,
        "lora_parameters": {"rank": 8, "dropout": 0.0, "scale": 99.0, "keys": ["q_proj"]},
        "lr_schedule": {"name": "cosine_decay", "arguments": [1e-4, 10]},
    }
    theirs = {"learning_rate": 1e-4, "batch_size": 2}
    every = differences(ours, theirs)
    assert {one.key for one in every} == {
        *("learning_rate", "batch_size", "lr_schedule"),
        *("lora_parameters.scale", "lora_parameters.keys"),
    }
    healed = between(ours, every, towards="healthy")
    assert differences(healed, theirs) == ()
    assert differences(between(healed, every, towards="failing"), ours) == ()
    (scale,) = (one for one in every if one.key == "lora_parameters.scale")
    assert keys(between(ours, [scale], towards="healthy"), ours) == ["lora_parameters.scale"]
    assert ours["lora_parameters"]["scale"] == 99.0


def test_base_and_data_that_are_not_here_are_the_failing_runs(
    recipe: Recipe, tmp_path: Path
) -> None:
    path = tmp_path / "healthy.json"
    path.write_text(json.dumps({"model": "org/gone", "data": "gone", "learning_rate": 1e-4}))
    healthy = healthy_of(path, recipe)
    assert healthy.name == "healthy"
    found = keys(dict(recipe.values), dict(healthy.values))
    assert "learning_rate" in found
    assert not {"model", "data"} & set(found)


@pytest.mark.parametrize("content", ['{"peft_type": "LORA", "r": 8}', '{"rank": 8}', "no"])
def test_what_is_no_configuration_is_refused(recipe: Recipe, tmp_path: Path, content: str) -> None:
    path = tmp_path / "adapter_config.json"
    path.write_text(content)
    with pytest.raises(InputError):
        healthy_of(path, recipe)


def test_sound_defaults_keep_the_task_and_take_the_middle_of_the_usual(recipe: Recipe) -> None:
    without = suggested(recipe, {}, None)
    assert without.values["learning_rate"] == 0.005
    assert without.values["data"] == recipe.values["data"]
    assert without.values["num_layers"] == 16
    values = suggested(recipe, {"learning_rate": (1e-4, 1e-2)}, None).values
    assert values["learning_rate"] == pytest.approx(1e-3)
    assert values["lora_parameters"]["scale"] == 20.0


def test_the_usual_rate_is_the_models_whatever_the_runs_is(recipe: Recipe) -> None:
    run = Run.discover([RUNS / "collapse-frequent-token"], allow_model=False)
    base = run.get(BaseModel)
    usual = usual_values(recipe.config, base)["learning_rate"]
    assert usual[0] < 3e-4 < usual[1] < 0.005
    for changes in ({"learning_rate": 0.0}, {"lr_schedule": {"name": "x", "arguments": [0.0]}}):
        other = replace(recipe.config, values={**recipe.config.values, **changes})
        assert usual_values(other, base) == {"learning_rate": usual}
    wide = {"lora_parameters": {"rank": 8, "dropout": 0.0, "scale": 200.0}}
    low, high = usual_values(replace(recipe.config, values={**recipe.config.values, **wide}), base)[
        "learning_rate"
    ]
    assert (low, high) == (pytest.approx(usual[0] / 10), pytest.approx(usual[1] / 10))
    full = replace(recipe.config, values={**recipe.config.values, "fine_tune_type": "full"})
    assert usual_values(full, base) == {}


def test_a_run_of_our_own_trainer_is_made_again_in_its_own_mode(recipe: Recipe) -> None:
    folder = Path("adapters")
    assert recipe.settings(folder, 5, 0).extras.mode == "parity"
    own = {**recipe.config.values, "mlxdoctor": {"grad_clip": 1.0, "resume_state": "x"}}
    again = replace(recipe, config=replace(recipe.config, values=own))
    extras = again.settings(folder, 5, 0).extras
    assert (extras.mode, extras.grad_clip, extras.resume_state) == ("exact", 1.0, None)
