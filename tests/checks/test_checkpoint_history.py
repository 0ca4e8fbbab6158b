import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlxdoctor.evidence.checkpoints import CheckpointHistory
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.training_log import TrainingLog
from mlxdoctor.finding import Outcome
from tests.bisect.states import MODULES, history, state
from tests.conftest import HEALTHY, check_called
from tests.given import outcome, severities
from tests.weight_files import lora, save

checkpoint_history = check_called("checkpoint-history")


def examine(
    folder: Path, states: Sequence[dict[str, Any]], final: dict[str, Any] | None = None
) -> Outcome:
    saves = history(folder, states, final)
    return outcome(checkpoint_history, saves, TrainingConfig.read(folder))


def of_another_seed(size: float) -> dict[str, Any]:
    """A state whose A was drawn anew."""
    drawn = lora(MODULES, seed=7)
    return state(size) | {name: drawn[name] for name in drawn if name.endswith("lora_a")}


BROKEN = state(0.3)
BROKEN["model.layers.0.self_attn.q_proj.lora_a"][0, 0] = np.nan
GROWING = [state(0.1), state(0.15), state(0.2)]


@pytest.mark.parametrize(
    ("states", "final", "code"),
    [
        (GROWING, GROWING[-1], None),
        (GROWING, state(0.3), None),
        ([state(0.1)] * 3, None, "never-changed"),
        # Two that are the same beside a change.
        ([state(0.1), state(0.1), state(0.2)], None, None),
        ([state(0.1), state(0.2), state(0.2)], None, None),
        ([lora(MODULES, b=0.0, seed=seed) for seed in (1, 2)], None, "zero-b-throughout"),
        ([state(0.1), state(0.2), BROKEN], BROKEN, "non-finite"),
        (GROWING, of_another_seed(0.12), "final-of-another-run"),
        # At a rate that leaves nothing of the start a strange final file tells nothing.
        ([of_another_seed(0.1), state(0.15)], of_another_seed(0.2), None),
    ],
)
def test_a_course(
    tmp_path: Path,
    states: Sequence[dict[str, Any]],
    final: dict[str, Any] | None,
    code: str | None,
) -> None:
    assert severities(examine(tmp_path, states, final)) == ({code: "error"} if code else {})


def test_when_it_began_and_what_is_left(tmp_path: Path) -> None:
    (finding,) = examine(tmp_path / "a", [state(0.1), state(0.2), BROKEN], BROKEN).findings
    assert (finding.onset, finding.measured["last_finite"]) == (300, 200)
    assert finding.fix == "use 0000200_adapters.safetensors"
    (finding,) = examine(tmp_path / "b", [state(0.1)] * 3).findings
    assert (finding.onset, finding.measured["identical"]) == (100, 3)
    (finding,) = examine(tmp_path / "c", GROWING, of_another_seed(0.12)).findings
    assert abs(float(finding.measured["cosine"])) < 0.2
    assert float(finding.measured["own_cosine"]) > 0.999


def test_a_truncated_checkpoint_does_not_hide_the_others(tmp_path: Path) -> None:
    path = save(tmp_path / "0000050_adapters.safetensors", state(0.1))
    path.write_bytes(path.read_bytes()[:-9])
    found = severities(examine(tmp_path, [state(0.2), state(0.2)]))
    assert found == {"unreadable": "warning", "never-changed": "error"}


def test_checkpoints_that_were_sorted_by_name(tmp_path: Path) -> None:
    """step_9 comes after step_40: the run of a trainer with file names of its own."""
    saves = sorted(HEALTHY.glob("0*_adapters.safetensors"))
    for step, file in zip((9, 40), (saves[0], saves[-1]), strict=True):
        shutil.copy(file, tmp_path / f"step_{step}.safetensors")
    log = "".join(f"Iter {step}: Train loss {3.1 / step:.3f}\n" for step in range(1, 41))

    def said(kept: int, validations: str = "") -> dict[str, str]:
        (tmp_path / "train.log").write_text(log + validations)
        shutil.copy(tmp_path / f"step_{kept}.safetensors", tmp_path / "adapters.safetensors")
        history = CheckpointHistory.read(tmp_path)
        training_log = TrainingLog.read([tmp_path / "train.log"])
        return severities(outcome(checkpoint_history, history, training_log))

    early = {"final-is-early": "error"}
    assert said(9) == early
    assert said(40) == {}
    # The best one by its validation was kept; or the worst.
    assert said(9, "Iter 9: Val loss 0.9\nIter 40: Val loss 1.4\n") == {}
    assert said(9, "Iter 9: Val loss 0.9\nIter 40: Val loss 0.4\n") == early
