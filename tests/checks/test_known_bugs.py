"""Signatures of known bugs: in real runs, in runs changed as the bug would have, in messages."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from mlxdoctor.api import run_checks
from mlxdoctor.diagnosis import judge
from mlxdoctor.evidence.training_log import TrainingLog
from mlxdoctor.finding import Finding, Outcome, Severity, Status
from mlxdoctor.run import Run
from tests.checks.data_evidence import BASE, DATA
from tests.conftest import LOGS, RUNS, check_called, run_names
from tests.given import Given
from tests.given import outcome as of_evidence


def outcome(folder: Path, name: str = "known-bugs", **options: Any) -> Outcome:
    if folder.parent != RUNS:
        options = {"base": BASE, "data": DATA / "geography", **options}
    run = Run.discover([folder], allow_model=False, **options)
    (found,) = run_checks([check_called(name)], run)
    assert found.status is not Status.CRASHED, found.reason
    return found


def findings(folder: Path, **options: Any) -> dict[str, Finding]:
    """The findings by the bug's name."""
    return {one.code.split(".")[1]: one for one in outcome(folder, **options).findings}


def change(folder: Path, **values: Any) -> None:
    """Change a run's configuration; a key with None is removed."""
    path = folder / "adapter_config.json"
    kept = {key: one for key, one in json.loads(path.read_text()).items() if key not in values}
    stated = {key: one for key, one in values.items() if one is not None}
    path.write_text(json.dumps(kept | stated))


# --- all fixture runs


@pytest.mark.slow
def test_no_fixture_shows_one() -> None:
    assert [name for name in run_names() for _ in outcome(RUNS / name).findings] == []


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


def test_nothing_to_look_at_is_inconclusive() -> None:
    assert check_called("known-bugs").run(Given()).status is Status.INCONCLUSIVE


# --- messages at the end of a log

known_bugs = check_called("known-bugs")

BIASES = "ValueError: [dequantize] Biases must be provided for affine quantization."
NAME = "NameError: name 'dequantize' is not defined"
KEY = "KeyError: 'quant_method'"
RAISED = (
    "Traceback (most recent call last):",
    '  File "lib/mlx_lm/fuse.py", line 79, in main',
    "    model = dequantize(model)",
)


def judged(folder: Path, *lines: str) -> Outcome:
    path = folder / "train.log"
    path.write_text("\n".join(("Loading pretrained model", *lines)) + "\n")
    said = of_evidence(known_bugs, TrainingLog.read([path]))
    assert said.status != "crashed", said.reason
    return said


def bugs(said: Outcome) -> dict[str, Severity]:
    """Severity by the bug's name."""
    return {one.code.split(".")[1]: one.severity for one in said.findings}


@pytest.mark.parametrize(
    ("message", "bug"),
    [
        (BIASES, "fuse-block-formats"),
        (NAME, "fuse-dequantize-name"),
        (KEY, "fuse-leaves-quantization"),
    ],
)
def test_the_message_at_the_end(tmp_path: Path, message: str, bug: str) -> None:
    said = judged(tmp_path, *RAISED, message)
    assert bugs(said) == {bug: Severity.ERROR}
    (finding,) = [one for one in said.findings if one.code == f"known-bugs.{bug}"]
    assert finding.measured["text"] == f"“{message}”"
    assert finding.where == "line 2 of the log"
    assert [one.cause.id for one in judge([said]).diagnosis] == ["known-upstream-bug"]


@pytest.mark.parametrize(
    "lines",
    [
        (*RAISED, "KeyError: 'quant_config'"),
        (*RAISED, "NameError: name 'dequantize_rows' is not defined"),
        # No exception ended the command.
        ("Iter 10: Train loss 2.0, It/sec 1.0", f"A row of the data says {KEY}"),
        # The run went on, or was begun again.
        (*RAISED, KEY, "Iter 10: Train loss 2.0, It/sec 1.0", "Iter 20: Train loss 1.9"),
        ("Iter 10: Train loss 2.0, It/sec 1.0",),
    ],
)
def test_near_misses(tmp_path: Path, lines: tuple[str, ...]) -> None:
    assert bugs(judged(tmp_path, *lines)) == {}


def test_a_version_that_has_not_the_bug_has_another_reason(tmp_path: Path) -> None:
    assert bugs(judged(tmp_path, "mlx-lm 0.28.3", *RAISED, NAME)) == {}
    assert bugs(judged(tmp_path, "mlx-lm 0.28.4", *RAISED, NAME)) == {
        "fuse-dequantize-name": Severity.ERROR
    }


def test_no_reported_log_ends_with_such_a_message() -> None:
    logs = sorted(LOGS.glob("*.log"))
    assert logs
    for path in logs:
        said = of_evidence(known_bugs, TrainingLog.read([path]))
        assert not {one for one in bugs(said) if one.startswith("fuse-")}, path.name


# --- runs that mlx_lm.lora makes here


def train(folder: Path, **settings: Any) -> Path:
    """A run of a few iterations by `mlx_lm.lora`, with its log; it may fail."""
    config = {
        **{"model": str(BASE), "data": str(DATA / "geography"), "train": True, "seed": 1},
        **{"num_layers": 1, "batch_size": 2, "iters": 4, "val_batches": 1, "max_seq_length": 128},
        **{"learning_rate": 3e-4, "steps_per_report": 2, "adapter_path": str(folder)},
        **{"lora_parameters": {"rank": 8, "dropout": 0.0, "scale": 20.0}},
        **settings,
    }
    folder.mkdir()
    path = folder.parent / f"{folder.name}.yaml"
    path.write_text(yaml.safe_dump(config))
    command = [sys.executable, "-m", "mlx_lm", "lora", "--config", str(path)]
    with (folder / "train.log").open("w") as log:
        subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, check=False)
    return folder


@pytest.mark.slow
def test_fewer_iterations_than_accumulation_steps_train_nothing(tmp_path: Path) -> None:
    found = findings(train(tmp_path / "run", grad_accumulation_steps=8))["leftover-accumulation"]
    assert found.severity is Severity.ERROR
    assert (found.measured["updates"], found.measured["left_over"]) == (0, 4)


@pytest.mark.slow
def test_a_resumed_adapter_of_another_rank_takes_the_place_of_the_configured(
    tmp_path: Path,
) -> None:
    first = train(tmp_path / "first")
    narrower = {"rank": 4, "dropout": 0.0, "scale": 20.0}
    resume = str(first / "adapters.safetensors")
    second = train(tmp_path / "second", lora_parameters=narrower, resume_adapter_file=resume)
    (found,) = outcome(second, "resume").findings
    assert found.code == "resume.rank-differs"
    assert (found.measured["rank"], found.measured["resumed_rank"]) == (4, 8)
    third = train(tmp_path / "third", resume_adapter_file=resume)
    assert outcome(third, "resume").findings == ()


@pytest.mark.slow
def test_dora_on_a_base_of_six_bits_breaks_off(tmp_path: Path) -> None:
    from mlx_lm.convert import convert

    base = tmp_path / "six-bits"
    convert(str(BASE), str(base), quantize=True, q_bits=6, q_group_size=32)
    found = findings(train(tmp_path / "run", model=str(base), fine_tune_type="dora"), base=base)
    assert found["dora-odd-bits"].severity is Severity.ERROR
    assert found["dora-odd-bits"].measured["bits"] == (6,)
    assert "dora-odd-bits" not in findings(train(tmp_path / "lora", model=str(base)), base=base)


@pytest.mark.slow
def test_dora_on_eight_bits_that_breaks_off_has_another_reason(tmp_path: Path) -> None:
    from mlx_lm.convert import convert

    base = tmp_path / "eight-bits"
    convert(str(BASE), str(base), quantize=True, q_bits=8, q_group_size=32)
    folder = train(tmp_path / "run", model=str(base), fine_tune_type="dora")
    with (folder / "train.log").open("a") as log:
        log.write("Traceback (most recent call last):\nValueError: [matmul] shapes (4,8), (9,8)\n")
    assert "dora-odd-bits" not in findings(folder, base=base)
