"""Known bugs that end a command, told by the message at the end of the log."""

from __future__ import annotations

from pathlib import Path

import pytest

from mlxdoctor.diagnosis import judge
from mlxdoctor.evidence.training_log import TrainingLog
from mlxdoctor.finding import Outcome, Severity
from tests.conftest import LOGS, check_called
from tests.given import outcome

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
    said = outcome(known_bugs, TrainingLog.read([path]))
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
        said = outcome(known_bugs, TrainingLog.read([path]))
        assert not {one for one in bugs(said) if one.startswith("fuse-")}, path.name
