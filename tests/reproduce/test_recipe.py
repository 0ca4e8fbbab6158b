"""How a run is made again, from what it left."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.reproduce.bench import usual_values
from mlxdoctor.run import Run
from mlxdoctor.twin.rerun import Recipe, recipe_of
from tests.conftest import RUNS


@pytest.fixture
def recipe() -> Recipe:
    """That of a real run."""
    return recipe_of(Run.discover([RUNS / "collapse-frequent-token"], allow_model=False))


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
    assert recipe.settings(folder, 5, 0).mode == "parity"
    own = {**recipe.config.values, "mlxdoctor": {"grad_clip": 1.0, "patience": 3}}
    again = replace(recipe, config=replace(recipe.config, values=own))
    settings = again.settings(folder, 5, 0)
    assert (settings.mode, settings.grad_clip) == ("exact", 1.0)
