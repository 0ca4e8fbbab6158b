"""Signatures of known bugs, in real runs and in runs changed as the bug would have."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from safetensors.numpy import load_file, save_file

from mlxdoctor.bugs.traces import BugLimits
from mlxdoctor.finding import Finding, Severity, Status
from tests.checks.data_evidence import DATA
from tests.checks.known_bug_runs import as_of_0_20, change, findings, outcome
from tests.conftest import RUNS, check_called, expected, run_names
from tests.given import Given

# --- all fixture runs


@pytest.mark.slow
@pytest.mark.parametrize("name", [one for one in run_names() if expected(one)["cause"] is None])
def test_a_healthy_run_shows_no_bug(name: str) -> None:
    assert outcome(RUNS / name).findings == ()


@pytest.mark.parametrize(
    ("name", "bug"),
    [
        ("adapter-not-loaded", "load-adapters-unchecked"),
        ("no-supervised-tokens", "empty-mask-nan"),
        ("resume-nothing-loaded", "resume-strict-false"),
    ],
)
def test_a_run_made_by_a_bug_shows_it(name: str, bug: str) -> None:
    assert findings(RUNS / name)[bug].severity is Severity.ERROR


@pytest.mark.slow
def test_no_other_fixture_shows_one() -> None:
    shown = {name for name in run_names() for _ in outcome(RUNS / name).findings}
    assert shown == {"adapter-not-loaded", "no-supervised-tokens", "resume-nothing-loaded"}


# --- layers


@pytest.fixture
def of_0_20(copied: Callable[[str], Path]) -> Path:
    """A run of all four layers whose configuration has the keys of mlx-lm 0.20."""
    return as_of_0_20(copied("healthy-noisy-batch1"))


def test_more_layers_than_num_layers(of_0_20: Path) -> None:
    found = findings(of_0_20)["num-layers-ignored"]
    assert found.severity is Severity.WARNING
    assert (found.measured["num_layers"], found.measured["adapted_layers"]) == (2, 4)
    assert found.where == "layer 0"
    assert "earlier than 0.22.0" in str(found.measured["version"])


@pytest.mark.parametrize("layers", [4, -1, None])
def test_as_many_layers_as_num_layers(of_0_20: Path, layers: int | None) -> None:
    change(of_0_20, num_layers=layers)
    assert "num-layers-ignored" not in findings(of_0_20)


def test_whole_names_as_keys_are_adapted_in_any_layer(of_0_20: Path) -> None:
    keys = [f"model.layers.{layer}.self_attn.q_proj" for layer in range(4)]
    change(of_0_20, lora_parameters={"rank": 8, "scale": 20.0, "keys": keys})
    assert "num-layers-ignored" not in findings(of_0_20)


def test_a_version_that_is_known_to_have_the_fix_is_not_blamed(
    copied: Callable[[str], Path],
) -> None:
    folder = copied("healthy-noisy-batch1")
    change(folder, num_layers=2)
    assert "num-layers-ignored" not in findings(folder)


def test_an_unknown_version_is_not_cleared(copied: Callable[[str], Path]) -> None:
    folder = copied("healthy-noisy-batch1")
    change(folder, num_layers=2, test_batches=None)
    assert findings(folder)["num-layers-ignored"].measured["version"] is None


def test_lora_layers_beside_the_num_layers_that_were_trained(copied: Callable[[str], Path]) -> None:
    folder = copied("healthy-ordinary")
    change(folder, lora_layers=2)
    found = findings(folder)["lora-layers-ignored"]
    assert (found.severity, found.measured["adapted_layers"]) == (Severity.WARNING, 4)


@pytest.mark.parametrize(("old", "new"), [(4, 4), (4, 2), (None, 4), (16, 4), (-1, 4)])
def test_lora_layers_that_agree_with_what_was_trained(
    copied: Callable[[str], Path], old: int | None, new: int
) -> None:
    folder = copied("healthy-ordinary")
    change(folder, lora_layers=old, num_layers=new)
    assert "lora-layers-ignored" not in findings(folder)


@pytest.mark.parametrize(("old", "found"), [(2, True), (16, False), (-1, False), (5, False)])
def test_without_the_base_only_fewer_lora_layers_tell(
    copied: Callable[[str], Path], old: int, found: bool
) -> None:
    """The model may have four layers, so that 16 would have been four as well."""
    folder = copied("healthy-ordinary")
    change(folder, lora_layers=old, num_layers=4, model="not-here")
    assert ("lora-layers-ignored" in findings(folder, base=None)) is found


# --- the configuration file


@pytest.fixture
def with_yaml(of_0_20: Path, tmp_path: Path) -> Callable[..., Path]:
    """That run, and the YAML file it was started with."""

    def make(**stated: Any) -> Path:
        path = tmp_path / "run.yaml"
        path.write_text(yaml.safe_dump({"learning_rate": 2e-4, "iters": 600, **stated}))
        change(of_0_20, config=str(path), num_layers=4)
        return of_0_20

    return make


def test_another_fine_tune_type_in_the_yaml_file(with_yaml: Callable[..., Path]) -> None:
    found = findings(with_yaml(fine_tune_type="dora"))["yaml-fine-tune-type-ignored"]
    assert found.severity is Severity.WARNING
    assert (found.measured["stated"], found.measured["used"]) == ("dora", "lora")


def test_a_mask_in_the_yaml_file_alone(with_yaml: Callable[..., Path]) -> None:
    folder = with_yaml(mask_prompt=True)
    change(folder, mask_prompt=False)
    found = findings(folder)["yaml-mask-prompt-ignored"]
    assert (found.where, found.measured["stated"]) == ("mask_prompt", "true")


def test_a_type_that_mlx_lm_does_not_know_is_not_one_it_ignored(
    with_yaml: Callable[..., Path],
) -> None:
    assert "yaml-fine-tune-type-ignored" not in findings(with_yaml(fine_tune_type=["dora"]))


def test_the_same_in_both_files(with_yaml: Callable[..., Path]) -> None:
    folder = with_yaml(fine_tune_type="lora", mask_prompt=False)
    change(folder, mask_prompt=False)
    assert not {one for one in findings(folder) if one.startswith("yaml-")}


def test_a_version_whose_command_line_has_no_default_means_the_user(
    with_yaml: Callable[..., Path],
) -> None:
    folder = with_yaml(fine_tune_type="dora")
    change(folder, optimizer_config={}, grad_accumulation_steps=1, mask_prompt=False)
    assert "yaml-fine-tune-type-ignored" not in findings(folder)


def test_a_yaml_file_that_is_not_here_is_no_evidence(with_yaml: Callable[..., Path]) -> None:
    folder = with_yaml(fine_tune_type="dora")
    change(folder, config="configs/elsewhere.yaml")
    assert "yaml-fine-tune-type-ignored" not in findings(folder)


# --- accumulation


@pytest.mark.parametrize(
    ("iters", "steps", "severity"),
    [(600, 4, None), (600, 1, None), (602, 4, None), (600, 450, "warning"), (609, 70, None)],
)
def test_batches_left_over(
    copied: Callable[[str], Path], iters: int, steps: int, severity: str | None
) -> None:
    folder = copied("healthy-ordinary")
    change(folder, iters=iters, grad_accumulation_steps=steps)
    seen = findings(folder).get("leftover-accumulation")
    assert (seen.severity.value if seen is not None else None) == severity


def test_an_adapter_that_was_trained_was_updated_after_all(copied: Callable[[str], Path]) -> None:
    folder = copied("healthy-ordinary")
    change(folder, iters=8, grad_accumulation_steps=16)
    assert "leftover-accumulation" not in findings(folder)


# --- resumed runs


@pytest.fixture
def resumed(copied: Callable[[str], Path], tmp_path: Path) -> Callable[..., Path]:
    def make(edit: Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]]) -> Path:
        folder = copied("healthy-ordinary")
        before = tmp_path / "before.safetensors"
        save_file(edit(load_file(folder / "adapters.safetensors")), before)
        change(folder, resume_adapter_file=str(before))
        return folder

    return make


def test_one_tensor_that_was_dropped(resumed: Callable[..., Path]) -> None:
    folder = resumed(lambda tensors: tensors | {"other.lora_a": np.zeros((2, 2), np.float32)})
    found = findings(folder)["resume-strict-false"]
    assert (found.where, found.measured["dropped"]) == ("other.lora_a", ("other.lora_a",))


def test_a_resumed_adapter_that_fits(resumed: Callable[..., Path]) -> None:
    assert "resume-strict-false" not in findings(resumed(lambda tensors: tensors))


def test_another_rank_that_the_resumed_adapter_does_not_have_either(
    resumed: Callable[..., Path],
) -> None:
    def narrower(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {
            name: np.ascontiguousarray(value[:, :4] if name.endswith("lora_a") else value[:4])
            for name, value in tensors.items()
        }

    folder = resumed(narrower)
    change(folder, lora_parameters={"rank": 2, "scale": 20.0, "dropout": 0.0})
    assert "resume-strict-false" not in findings(folder)


# --- adapters that were loaded as if they fitted


def test_answers_that_differ_show_that_it_was_loaded(copied: Callable[[str], Path]) -> None:
    folder = copied("adapter-not-loaded")
    path = folder / "generations.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    rows[0]["tuned"] += " And more."
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert "load-adapters-unchecked" not in findings(folder)


def test_equal_answers_of_an_adapter_that_fits_are_not_its_loaders_fault(
    copied: Callable[[str], Path],
) -> None:
    folder = copied("gradients-blocked")
    assert "load-adapters-unchecked" not in findings(folder)


def test_few_answers_show_nothing(copied: Callable[[str], Path]) -> None:
    folder = copied("adapter-not-loaded")
    path = folder / "generations.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[: BugLimits().answers - 1]))
    assert "load-adapters-unchecked" not in findings(folder)


# --- losses that are no numbers


def _nan(folder: Path, version: str, rows: list[str]) -> dict[str, Finding]:
    log = folder / "train.log"
    log.write_text("\n".join([f"mlx=={version}", *rows]) + "\n")
    return findings(folder)


FROM_THE_START = ["Iter 1: Val loss nan, Val took 1.0s", "Iter 10: Train loss nan, It/sec 1.0"]
LATER = ["Iter 1: Val loss 4.1, Val took 1.0s", "Iter 10: Train loss 3.9, It/sec 1.0"]


@pytest.mark.parametrize(
    ("version", "found"),
    [("0.24.0", True), ("0.23.3", True), ("0.24.1", False), ("0.23.2", False), ("0.32.4", False)],
)
def test_nan_from_the_start_with_the_mlx_of_that_week(
    copied: Callable[[str], Path], version: str, found: bool
) -> None:
    said = _nan(copied("healthy-noisy-batch1"), version, FROM_THE_START)
    assert ("nan-before-mlx-0-24-1" in said) is found
    if found:
        assert said["nan-before-mlx-0-24-1"].severity is Severity.ERROR


def test_all_training_losses_nan_with_a_sound_start(copied: Callable[[str], Path]) -> None:
    rows = [LATER[0], *(f"Iter {i}: Train loss nan, It/sec 1.0" for i in (10, 20))]
    assert "nan-before-mlx-0-24-1" in _nan(copied("healthy-noisy-batch1"), "0.24.0", rows)


def test_nan_later_on_is_something_else(copied: Callable[[str], Path]) -> None:
    rows = [*LATER, "Iter 20: Train loss nan, It/sec 1.0"]
    said = _nan(copied("healthy-noisy-batch1"), "0.24.0", rows)
    assert "nan-before-mlx-0-24-1" not in said


def test_nan_without_a_known_version_is_no_signature(copied: Callable[[str], Path]) -> None:
    folder = copied("healthy-noisy-batch1")
    (folder / "train.log").write_text("\n".join(FROM_THE_START) + "\n")
    assert "nan-before-mlx-0-24-1" not in findings(folder)


def test_an_empty_batch_with_finite_losses_was_guarded(copied: Callable[[str], Path]) -> None:
    folder = copied("no-supervised-tokens")
    log = folder / "train.log"
    data = DATA / "geography-long"
    assert "empty-mask-nan" in findings(folder, data=data)
    log.write_text("\n".join([*LATER, "Iter 20: Train loss 3.5, It/sec 1.0"]) + "\n")
    assert "empty-mask-nan" not in findings(folder, data=data)


@pytest.mark.parametrize(
    ("changed", "is_seen"),
    [
        ({"train_mode": "rlhf_reinforce"}, True),
        ({"train_mode": "rlhf_reinforce", "beta": 0.5}, True),
        ({"train_mode": "rlhf_reinforce", "beta": 0}, False),
        ({"train_mode": "grpo", "beta": 0.1}, False),
    ],
)
def test_reinforce_of_mlx_lm_lora_is_told_by_its_mode(
    copied: Callable[[str], Path], changed: dict[str, object], is_seen: bool
) -> None:
    run = copied("healthy-ordinary")
    change(run, **changed)
    found = findings(run).get("mlx-lm-lora-reinforce-advantage")
    assert (found is not None) is is_seen
    if found is not None:
        assert found.severity is Severity.WARNING
        assert found.measured["beta"] == changed.get("beta", 0.1)


def test_nothing_to_look_at_is_inconclusive() -> None:
    assert check_called("known-bugs").run(Given()).status is Status.INCONCLUSIVE
