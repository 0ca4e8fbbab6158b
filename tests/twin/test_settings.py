"""Settings: mlx-lm's keys and defaults, and nothing it does not know."""

import json
from pathlib import Path
from typing import Any

import pytest

from mlxdoctor.safety.errors import InputError
from mlxdoctor.twin import Settings
from tests.conftest import FIXTURES, RUNS

LORA = {"rank": 8, "scale": 20.0, "dropout": 0.0}


@pytest.mark.slow
def test_the_defaults_are_those_of_mlx_lm() -> None:
    from mlx_lm.lora import CONFIG_DEFAULTS

    assert Settings().stated() == CONFIG_DEFAULTS


def test_an_adapter_config_is_taken_and_given_back_unchanged() -> None:
    path = RUNS / "healthy-ordinary" / "adapter_config.json"
    stated = Settings.read(path).stated()
    assert stated.pop("config") == str(path)
    assert stated == {k: v for k, v in json.loads(path.read_text()).items() if k != "config"}


#: Made with scripts that take keys of their own.
FOREIGN = {"adapter-never-attached", "end-token-flood", "padding-supervised"}
CONFIGS = sorted((FIXTURES / "configs").glob("*.yaml"))


@pytest.mark.parametrize(
    "path", [p for p in CONFIGS if p.stem not in FOREIGN], ids=lambda p: p.stem
)
def test_the_fixture_configurations_of_mlx_lm_are_taken(path: Path) -> None:
    assert Settings.read(path).iters > 0


def test_yaml_rates_without_a_dot_are_numbers(tmp_path: Path) -> None:
    config = tmp_path / "lora.yaml"
    config.write_text("learning_rate: 1e-5\nmax_seq_length: 64\nseed: null\n")
    settings = Settings.read(config)
    assert settings.learning_rate == 1e-5
    assert settings.max_seq_length == 64
    assert settings.seed == 0
    assert settings.config == str(config)


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"learning_rte": 1e-5}, "unknown key 'learning_rte'; did you mean 'learning_rate'?"),
        ({"zebra": 1}, "unknown key 'zebra'; remove it"),
        ({"lora_layers": 4}, "unknown key 'lora_layers'; did you mean 'num_layers'?"),
        ({"grad_clip": 1.0}, "it belongs under `mlxdoctor:`"),
        ({"mlxdoctor": {"grad_clp": 1.0}}, "did you mean 'grad_clip'?"),
        ({"mlxdoctor": 3}, "mlxdoctor is not a table"),
        ({"mlxdoctor": {"mode": "exactly"}}, "must be one of exact, parity"),
        ({"iters": "many"}, "iters is 'many'; it must be a whole number"),
        ({"iters": 2.5}, "it must be a whole number"),
        ({"iters": True}, "it must be a whole number"),
        ({"iters": 0}, "iters is 0; it must be a whole number from 1 on"),
        ({"learning_rate": float("nan")}, "it must be at least 0"),
        ({"mask_prompt": 1}, "it must be true or false"),
        ({"optimizer": "lion"}, "must be one of adam, adamw, muon, sgd, adafactor"),
        ({"lr_schedule": "cosine"}, "it must be a table"),
        ({"num_layers": 0}, "mlx-lm takes for all layers"),
        ({"lora_parameters": {"rank": 8, "alpha": 16, "dropout": 0.0}}, "scale, which is alpha"),
        ({"lora_parameters": {"rank": 8}}, "lacks dropout, scale"),
        ({"lora_parameters": {**LORA, "scale": "20"}}, "scale is '20'; it must be a finite number"),
        (
            {"lora_parameters": {**LORA, "rank": 0}},
            "rank is 0; it must be a whole number from 1 on",
        ),
        ({"lora_parameters": {**LORA, "rank": True}}, "rank is True"),
        ({"lora_parameters": {**LORA, "dropout": 7.0}}, "it must be a number from 0 to below 1"),
        ({"lora_parameters": {**LORA, "keys": [[1] * 1000]}}, "keys is "),
        ({"lora_parameters": {"rank": 8, "scale": 1.0, "dropout": 0.0, "key": []}}, "'keys'?"),
    ],
)
def test_what_mlx_lm_does_not_have_is_refused_with_a_hint(
    values: dict[str, Any], problem: str
) -> None:
    with pytest.raises(InputError) as caught:
        Settings.from_values(values)
    assert problem in str(caught.value)
    assert len(str(caught.value)) < 250


def test_whole_numbers_are_taken_for_rates_and_names_in_any_case() -> None:
    settings = Settings.from_values({"learning_rate": 1, "optimizer": "AdamW"})
    assert settings.learning_rate == 1.0
    assert settings.optimizer == "adamw"


def test_overrides_reach_tables_and_keep_the_rest(tmp_path: Path) -> None:
    config = tmp_path / "lora.json"
    config.write_text(json.dumps({"iters": 9, "batch_size": 2, "lora_parameters": LORA}))
    changes = ["iters=50", "lora_parameters.rank=4", "mlxdoctor.grad_clip=1", "data=folder"]
    settings = Settings.read(config, changes)
    assert (settings.iters, settings.batch_size, settings.data) == (50, 2, "folder")
    assert settings.lora_parameters == {**LORA, "rank": 4}
    assert settings.grad_clip == 1.0
    assert settings.stated()["mlxdoctor"] == {"grad_clip": 1.0}
    with pytest.raises(InputError, match="not KEY=VALUE"):
        Settings.read(config, ["iters"])
    for many in ("9" * 400, "9" * 5000, "[" * 100_000):
        with pytest.raises(InputError, match=r"learning_rate is .*it must be a number"):
            Settings.read(config, [f"learning_rate={many}"])
