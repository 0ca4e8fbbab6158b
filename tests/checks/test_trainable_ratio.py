from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlxdoctor.evidence.adapter import Adapter
from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.training_log import TrainingLog
from mlxdoctor.finding import Status
from mlxdoctor.measure.weights.lora_targets import configured_parameters
from tests.conftest import FIXTURES, RUNS, check_called
from tests.given import outcome, severities
from tests.weight_files import lora, save, write_config

trainable_ratio = check_called("trainable-ratio")

BASE = BaseModel.read(FIXTURES / "base")
KEYS = {"rank": 8, "scale": 20.0, "keys": ["self_attn.q_proj"]}
#: 4 layers, rank 8, 96 + 96.
EXPECTED = 4 * 8 * 192


def log(folder: Path, numbers: int, total: float = 0.480) -> TrainingLog:
    millions = numbers / 1e6
    text = f"Trainable parameters: {millions / total * 100:.3f}% ({millions:.3f}M/{total:.3f}M)\n"
    reports = "".join(f"Iter {i}: Train loss 2.5, Learning Rate 1e-5\n" for i in range(1, 9))
    folder.mkdir(exist_ok=True)
    (folder / "train.log").write_text(text + reports)
    return TrainingLog.read([folder / "train.log"])


def config(folder: Path, **changes: Any) -> TrainingConfig:
    stated = {"num_layers": 4, "lora_parameters": KEYS, **changes}
    return TrainingConfig.read(write_config(folder, **stated))


QUERY = {f"model.layers.{i}.self_attn.q_proj": (96, 96) for i in range(4)}


def adapter(folder: Path, layers: int, weights: int = 0) -> Adapter:
    """The factors of that many layers, and as many numbers of the model itself."""
    tensors = lora(dict(list(QUERY.items())[:layers]), rank=8)
    if weights:
        tensors["model.embed_tokens.weight"] = np.ones((weights // 96, 96), np.float32)
    return Adapter.read(save(folder / "adapters.safetensors", tensors))


WARNED, UNFROZEN = {"unfrozen": "warning"}, {"unfrozen": "error"}


@pytest.mark.parametrize(
    ("trainable", "more", "saved", "expected"),
    [
        (EXPECTED, "config base", None, {}),
        (1.4 * EXPECTED, "config base", None, {}),
        (2.0 * EXPECTED, "config base", None, WARNED),
        (0.75 * EXPECTED, "config base", None, {}),
        (0.4 * EXPECTED, "config base", None, {}),
        # A file that lacks most of what was trained would look the same.
        (9_000, "", (1, 0), WARNED),
        (20_000, "config base", (4, 0), UNFROZEN),
        (20_000, "", (1, 19_000), UNFROZEN),
        # That a file lacks a part of what was trained is for `adapter-structure` to say.
        (EXPECTED, "config base", (4, 0), {}),
        (EXPECTED, "config base", (1, 0), {}),
        # The whole model.
        (480_000, "config base", None, UNFROZEN),
        (480_000, "config", None, UNFROZEN),
        (480_000, "", None, WARNED),
        (0, "config base", None, {"none-trainable": "error"}),
    ],
)
def test_counts(
    tmp_path: Path,
    trainable: float,
    more: str,
    saved: tuple[int, int] | None,
    expected: dict[str, str],
) -> None:
    """A log's counts beside the configuration, the base, and layers and numbers in the file."""
    evidence: list[object] = [log(tmp_path, round(trainable))]
    evidence += [config(tmp_path)] if "config" in more else []
    evidence += [BASE] if "base" in more else []
    evidence += [adapter(tmp_path, *saved)] if saved else []
    assert severities(outcome(trainable_ratio, *evidence)) == expected


@pytest.mark.parametrize(("rank", "expected"), [(16, {}), (15, {}), (15.5, WARNED)])
def test_a_file_that_was_brought_to_a_lower_rank(
    tmp_path: Path, rank: float, expected: dict[str, str]
) -> None:
    tensors = lora({f"model.layers.{i}.self_attn.q_proj": (960, 960) for i in range(4)}, rank=8)
    made = Adapter.read(save(tmp_path / "adapters.safetensors", tensors))
    trained = log(tmp_path, round(rank * made.parameter_count / 8))
    assert severities(outcome(trainable_ratio, trained, made)) == expected


def test_the_magnitudes_of_dora_are_counted(tmp_path: Path) -> None:
    stated = config(tmp_path, fine_tune_type="dora")
    assert configured_parameters(stated, BASE) == EXPECTED + 4 * 96
    assert configured_parameters(config(tmp_path), BASE) == EXPECTED


def test_what_is_not_counted(tmp_path: Path) -> None:
    full = log(tmp_path, 480_000), config(tmp_path, fine_tune_type="full")
    assert outcome(trainable_ratio, *full).status is Status.SKIPPED
    assert outcome(trainable_ratio, adapter(tmp_path, 1), config(tmp_path)).status is Status.SKIPPED
    uncounted = log(tmp_path, EXPECTED), config(tmp_path)
    assert outcome(trainable_ratio, *uncounted).status is Status.INCONCLUSIVE


def test_a_real_run_agrees_to_the_last_digit() -> None:
    folder = RUNS / "healthy-ordinary"
    read, saved = TrainingLog.read([folder / "train.log"]), Adapter.read(folder)
    evidence = read, TrainingConfig.read(folder), saved, BASE
    assert outcome(trainable_ratio, *evidence).status is Status.PASSED
    assert read.notes.trainable.trainable_millions == round(saved.parameter_count / 1e6, 3)
    assert read.notes.trainable.total_millions == round(BASE.parameter_count / 1e6, 3)


def test_of_a_run_that_broke_before_it_began_nothing_was_trained(tmp_path: Path) -> None:
    lines = "Trainable parameters: 480,000\nTotal parameters: 480,000\nValueError: no rows\n"
    (tmp_path / "train.log").write_text(lines)
    judged = outcome(trainable_ratio, TrainingLog.read([tmp_path / "train.log"]))
    assert (judged.findings, judged.status) == ((), Status.INCONCLUSIVE)
