"""Signatures of known bugs: in real runs, in runs changed as the bug would have, in messages."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from fixtures.lab.cases.workshop import SOUND, copied_run
from mlxdoctor.api import run_checks
from mlxdoctor.check import Check
from mlxdoctor.diagnosis import judge
from mlxdoctor.evidence.training_log import TrainingLog
from mlxdoctor.finding import Finding, Outcome, Severity, Status
from mlxdoctor.run import Run
from tests.checks.data_evidence import BASE, DATA
from tests.checks.log_evidence import LogWriter
from tests.conftest import LOGS, check_called
from tests.given import outcome as of_evidence

known_bugs = check_called("known-bugs")


def outcome(folder: Path, check: Check = known_bugs, **options: Any) -> Outcome:
    options = {"base": BASE, "data": DATA / "geography", **options}
    (result,) = run_checks([check], Run.discover([folder], allow_model=False, **options))
    assert result.status is not Status.CRASHED, result.reason
    return result


def bugs(result: Outcome) -> dict[str, Finding]:
    """The findings by the bug's name."""
    return {finding.code.split(".")[1]: finding for finding in result.findings}


@pytest.mark.parametrize(
    ("iters", "steps", "severity"),
    [(600, 4, None), (602, 4, None), (600, 450, "warning"), (609, 70, None), (8, 16, None)],
)
def test_batches_left_over(tmp_path: Path, iters: int, steps: int, severity: str | None) -> None:
    folder = copied_run(tmp_path, iters=iters, grad_accumulation_steps=steps)
    finding = bugs(outcome(folder)).get("leftover-accumulation")
    assert (finding.severity.value if finding is not None else None) == severity


BIASES = "ValueError: [dequantize] Biases must be provided for affine quantization."
NAME = "NameError: name 'dequantize' is not defined"
KEY = "KeyError: 'quant_method'"
RAISED = (
    "Traceback (most recent call last):",
    '  File "lib/mlx_lm/fuse.py", line 79, in main',
    "    model = dequantize(model)",
)


@pytest.mark.parametrize(
    ("lines", "bug"),
    [
        ((*RAISED, BIASES), "fuse-block-formats"),
        ((*RAISED, NAME), "fuse-dequantize-name"),
        ((*RAISED, KEY), "fuse-leaves-quantization"),
        ((*RAISED, "KeyError: 'quant_config'"), None),
        ((*RAISED, "NameError: name 'dequantize_rows' is not defined"), None),
        # No exception ended the command.
        (("Iter 10: Train loss 2.0, It/sec 1.0", f"A row of the data says {KEY}"), None),
        # The run went on, or was begun again.
        ((*RAISED, KEY, "Iter 10: Train loss 2.0, It/sec 1.0", "Iter 20: Train loss 1.9"), None),
        # The version that is named has not the bug.
        (("mlx-lm 0.28.4", *RAISED, NAME), "fuse-dequantize-name"),
        (("mlx-lm 0.28.3", *RAISED, NAME), None),
    ],
)
def test_the_message_at_the_end(logs: LogWriter, lines: tuple[str, ...], bug: str | None) -> None:
    result = of_evidence(known_bugs, logs.text("Loading pretrained model", *lines))
    assert list(bugs(result)) == ([bug] if bug else [])
    for finding in result.findings:
        assert finding.severity is Severity.ERROR
        assert finding.measured["text"] == f"“{lines[-1]}”"
        assert finding.where == f"line {len(lines) - 2} of the log"
        assert [cause.cause.id for cause in judge([result]).diagnosis] == ["known-upstream-bug"]


def test_no_reported_log_ends_with_such_a_message() -> None:
    logs = sorted(LOGS.glob("*.log"))
    assert logs
    for path in logs:
        names = bugs(of_evidence(known_bugs, TrainingLog.read([path])))
        assert not [name for name in names if name.startswith("fuse-")], path.name


def train(folder: Path, **settings: Any) -> Path:
    """A run of a few iterations by `mlx_lm.lora`, with its log; it may fail."""
    config = {**SOUND, "train": True, "num_layers": 1, "iters": 4, **settings}
    config["adapter_path"] = str(folder)
    folder.mkdir()
    path = folder.parent / f"{folder.name}.yaml"
    path.write_text(yaml.safe_dump(config))
    command = [sys.executable, "-m", "mlx_lm", "lora", "--config", str(path)]
    with (folder / "train.log").open("w") as log:
        subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, check=False)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("bits", [6, 8])
def test_dora_on_a_base_of_so_many_bits_that_breaks_off(tmp_path: Path, bits: int) -> None:
    from mlx_lm.convert import convert

    base = tmp_path / "base"
    convert(str(BASE), str(base), quantize=True, q_bits=bits, q_group_size=32)
    run = train(tmp_path / "run", model=str(base), fine_tune_type="dora")
    if bits == 8:
        with (run / "train.log").open("a") as log:
            log.write("Traceback (most recent call last):\nValueError: [matmul] shapes (4,8)\n")
    finding = bugs(outcome(run, base=base)).get("dora-odd-bits")
    assert (finding is not None) == (bits == 6)
    if finding is not None:
        assert finding.severity is Severity.ERROR
        assert finding.measured["bits"] == (6,)
        lora = train(tmp_path / "lora", model=str(base))
        assert "dora-odd-bits" not in bugs(outcome(lora, base=base))
