"""Configurations: mlx-lm's YAML and JSON, PEFT's JSON, and files that are neither."""

import json
import math
from pathlib import Path

import pytest

from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.mlx_lm_defaults import MLX_LM_DEFAULTS, MLX_LM_LORA_DEFAULTS
from mlxdoctor.run import Run
from mlxdoctor.safety.errors import InputError
from tests.weight_files import lora, save


@pytest.fixture
def write(tmp_path):
    def write(content, name="config.yaml"):
        path = tmp_path / name
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return path

    return write


def test_yaml_rate_without_a_point_is_a_number_and_pyyaml_is_left_alone(write):
    import yaml

    # mlx_lm.lora, where a test before this one has imported it, does not leave it alone.
    before = yaml.safe_load("1e-5")
    config = TrainingConfig.read(write("learning_rate: 1e-5\niters: 600\n"))
    assert config.learning_rate == 1e-5
    assert config.values["learning_rate"] == 1e-5
    assert config.iters == 600
    assert yaml.safe_load("1e-5") == before


@pytest.mark.parametrize(
    ("name", "more", "optimizer"),
    [
        ("config.yaml", {}, "adam"),
        ("adapter_config.json", {}, None),
        ("adapter_config.json", {"iters": 100, "seed": 0}, "adam"),
        ("adapter_config.json", {"optimizer": "sgd"}, "sgd"),
    ],
)
def test_what_another_trainer_leaves_out_is_no_default_of_mlx_lm(write, name, more, optimizer):
    config = TrainingConfig.read(write({"learning_rate": 1e-4, "num_layers": 8, **more}, name))
    assert config.optimizer == optimizer
    assert config.states_steps is (optimizer is not None)


def test_defaults_are_those_of_mlx_lm_and_marked():
    from mlx_lm.lora import CONFIG_DEFAULTS

    assert {key: CONFIG_DEFAULTS[key] for key in MLX_LM_DEFAULTS} == dict(MLX_LM_DEFAULTS)
    assert CONFIG_DEFAULTS["lora_parameters"] == dict(MLX_LM_LORA_DEFAULTS)


@pytest.mark.parametrize(
    ("text", "stated"),
    [
        (
            "learning_rate: 2e-4\nmask_prompt: true",
            {"batch_size": 4, "max_seq_length": 2048, "num_layers": 16, "mask_prompt": True}
            | {"rank": 8, "scale": 20.0, "dropout": 0.0, "fine_tune_type": "lora"},
        ),
        ("lora_layers: 4", {"num_layers": 4}),
        ("gradient_accumulation_steps: 3", {"grad_accumulation_steps": 3}),
        ("fine_tune_type: full", {"rank": None, "scale": None}),
        ("lr_schedule: [1]", {"lr_schedule": None, "warmup": 0}),
        ("lora_parameters: {rank: 4, scale: 2}", {"rank": 4, "dropout": None}),
    ],
)
def test_what_a_key_means_and_what_mlx_lm_adds(write, text, stated):
    config = TrainingConfig.read(write(f"{text}\niters: 1\n"))
    assert {key: getattr(config, key) for key in stated} == stated
    assert config.is_default("batch_size")
    assert not config.is_default("iters")
    assert config.is_default("scale") is (config.values.get("lora_parameters") is None)


def test_a_file_that_only_describes_the_adapter_says_nothing_about_training(write):
    path = write({"fine_tune_type": "dora", "num_layers": 4}, "adapter_config.json")
    config = TrainingConfig.read(path.parent)
    assert config.path == path
    assert not config.describes_training
    assert (config.learning_rate, config.batch_size, config.mask_prompt) == (None, None, None)
    assert not config.is_default("learning_rate")
    assert (config.fine_tune_type, config.num_layers) == ("dora", 4)


@pytest.mark.parametrize(
    ("schedule", "peak"),
    [
        ({"name": "cosine_decay", "warmup": 100, "arguments": [1e-5, 1000, 1e-7]}, 1e-5),
        ({"name": "linear_schedule", "arguments": [0.0, 3e-4, 100]}, 3e-4),
        ({"name": "cosine_decay", "arguments": []}, None),
    ],
)
def test_a_schedule_decides_the_rate(write, schedule, peak):
    path = write({"learning_rate": 1.0, "lr_schedule": schedule}, "config.json")
    config = TrainingConfig.read(path)
    assert config.learning_rate == peak
    assert config.warmup == schedule.get("warmup", 0)


@pytest.mark.parametrize(("extra", "scale"), [({}, 2.0), ({"use_rslora": True}, 16 / math.sqrt(8))])
def test_peft_scale(write, extra, scale):
    values = {
        "peft_type": "LORA",
        "r": 8,
        "lora_alpha": 16,
        "lora_dropout": 0.1,
        "target_modules": ["q_proj", "v_proj"],
        "base_model_name_or_path": "org/base",
        **extra,
    }
    config = TrainingConfig.read(write(values, "adapter_config.json"))
    assert config.origin == "peft"
    assert config.scale == pytest.approx(scale)
    assert (config.rank, config.alpha, config.dropout) == (8, 16.0, 0.1)
    assert config.keys == ("q_proj", "v_proj")
    assert config.model == "org/base"
    assert config.learning_rate is None
    assert not config.is_default("learning_rate")
    assert config.fine_tune_type == "lora"


def test_a_beginners_file_is_a_configuration(write):
    config = TrainingConfig.read(write("model: a/b\ntrain: true\ndata: rows\n"))
    assert (config.model, config.data) == ("a/b", "rows")


def test_an_alias_bomb_is_refused_but_an_alias_is_not(write):
    lines = ["a: &a {x: 1}"]
    for name, before in zip("bcdefghij", "abcdefghi", strict=True):
        lines.append(f"{name}: &{name} {{<<: [{', '.join([f'*{before}'] * 10)}]}}")
    with pytest.raises(InputError, match=r"aliases written out.*limit yaml_values of 20,000"):
        TrainingConfig.read(write("\n".join(lines)))
    assert TrainingConfig.read(write("iters: &n 5\nbatch_size: *n\n")).batch_size == 5


def test_settings_beside_an_adapters_own_file(tmp_path):
    """mlx-lm-lora writes the adapter's shape beside it, and nothing of the training."""
    folder = tmp_path / "adapters"
    save(folder / "adapters.safetensors", lora({"model.layers.0.q_proj": (16, 16)}, b=0.01))
    (folder / "adapter_config.json").write_text(json.dumps({"lora_parameters": {"rank": 4}}))
    (tmp_path / "config.yaml").write_text(
        "model: nowhere\ntrain_mode: dpo\ntrain_type: dora\nlearning_rate: 1e-5\nbeta: 0.2\n"
        "lora_parameters: {rank: 16, scale: 20.0}\n"
    )
    config = Run.discover([tmp_path]).get(TrainingConfig)
    assert (config.learning_rate, config.values["beta"], config.rank) == (1e-5, 0.2, 4)
    assert (config.fine_tune_type, config.of_preferences) == ("dora", True)
    assert len(config.sources) == 2


def test_what_a_trainer_leaves_out_beside_its_adapter_stands_in_its_own_file(tmp_path):
    folder = tmp_path / "adapters"
    save(folder / "adapters.safetensors", lora({"model.layers.0.q_proj": (16, 16)}, b=0.01))
    beside = {"model": "a", "learning_rate": 1e-3, "batch_size": 8, "lora_parameters": {"rank": 4}}
    (folder / "adapter_config.json").write_text(json.dumps(beside))
    (tmp_path / "config.yaml").write_text("model: a\ndata: d\niters: 300\nlearning_rate: 1e-5\n")
    config = Run.discover([tmp_path]).get(TrainingConfig)
    assert (config.iters, config.learning_rate, config.batch_size) == (300, 1e-3, 8)
    # It is another trainer's still: what neither says is no default of mlx-lm.
    assert config.optimizer is None


def test_keys_of_peft_beside_those_of_mlx_lm_change_nothing(tmp_path: Path) -> None:
    lora = {"rank": 8, "scale": 2.0, "dropout": 0.0}
    values = {"fine_tune_type": "dora", "lora_parameters": lora, "peft_type": "LORA", "r": 4}
    (tmp_path / "adapter_config.json").write_text(json.dumps(values))
    config = TrainingConfig.read(tmp_path)
    assert (config.fine_tune_type, config.rank, config.scale) == ("dora", 8, 2.0)
