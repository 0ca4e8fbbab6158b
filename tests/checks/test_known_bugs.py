"""Signatures of known bugs, in real runs and in runs changed as the bug would have."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from mlxdoctor.bugs.traces import BugLimits
from mlxdoctor.finding import Severity, Status
from tests.checks.data_evidence import DATA
from tests.checks.known_bug_runs import change, findings, outcome
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


# --- accumulation


@pytest.mark.parametrize(
    ("iters", "steps", "severity"),
    [
        (600, 4, None),
        (600, 1, None),
        (602, 4, None),
        (600, 450, "warning"),
        (609, 70, None),
        (8, 16, None),
    ],
)
def test_batches_left_over(
    copied: Callable[[str], Path], iters: int, steps: int, severity: str | None
) -> None:
    folder = copied("healthy-ordinary")
    change(folder, iters=iters, grad_accumulation_steps=steps)
    seen = findings(folder).get("leftover-accumulation")
    assert (seen.severity.value if seen is not None else None) == severity


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


@pytest.mark.parametrize(
    "edit",
    [
        lambda rows: [{**rows[0], "tuned": f"{rows[0]['tuned']} And more."}, *rows[1:]],
        lambda rows: rows[: BugLimits().answers - 1],
    ],
    ids=["answers that differ", "few answers"],
)
def test_answers_that_do_not_show_it(
    copied: Callable[[str], Path], edit: Callable[[list[Any]], list[Any]]
) -> None:
    folder = copied("adapter-not-loaded")
    path = folder / "generations.jsonl"
    rows = edit([json.loads(line) for line in path.read_text().splitlines()])
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert "load-adapters-unchecked" not in findings(folder)


def test_equal_answers_of_an_adapter_that_fits_are_not_its_loaders_fault(
    copied: Callable[[str], Path],
) -> None:
    assert "load-adapters-unchecked" not in findings(copied("gradients-blocked"))


# --- losses that are no numbers


LATER = ["Iter 1: Val loss 4.1, Val took 1.0s", "Iter 10: Train loss 3.9, It/sec 1.0"]


def test_an_empty_batch_with_finite_losses_was_guarded(copied: Callable[[str], Path]) -> None:
    folder = copied("no-supervised-tokens")
    log = folder / "train.log"
    data = DATA / "geography-long"
    assert "empty-mask-nan" in findings(folder, data=data)
    log.write_text("\n".join([*LATER, "Iter 20: Train loss 3.5, It/sec 1.0"]) + "\n")
    assert "empty-mask-nan" not in findings(folder, data=data)


def test_nothing_to_look_at_is_inconclusive() -> None:
    assert check_called("known-bugs").run(Given()).status is Status.INCONCLUSIVE
