"""What the trainable-ratio check counts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlxdoctor.evidence.adapter import Adapter
from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.training_log import TrainingLog
from mlxdoctor.finding import Outcome, Severity, Status
from mlxdoctor.measure.weights.lora_targets import configured_parameters
from tests.conftest import FIXTURES, RUNS, check_called
from tests.given import Given
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


def codes(outcome: Outcome) -> set[str]:
    assert outcome.status is not Status.CRASHED, outcome.reason
    return {finding.code.removeprefix("trainable-ratio.") for finding in outcome.findings}


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        (EXPECTED, set()),
        (round(1.4 * EXPECTED), set()),
        (round(2.0 * EXPECTED), {"unfrozen"}),
        (round(0.75 * EXPECTED), set()),
        (round(0.4 * EXPECTED), set()),
    ],
)
def test_log_against_configuration(tmp_path: Path, numbers: int, expected: set[str]) -> None:
    outcome = trainable_ratio.run(Given(log(tmp_path, numbers), config(tmp_path), BASE))
    assert codes(outcome) == expected
    assert all(finding.severity is Severity.WARNING for finding in outcome.findings)


QUERY = {f"model.layers.{i}.self_attn.q_proj": (96, 96) for i in range(4)}


def adapter(folder: Path, layers: int, weights: int = 0) -> Adapter:
    """The factors of that many layers, and as many numbers of the model itself."""
    tensors = lora(dict(list(QUERY.items())[:layers]), rank=8)
    if weights:
        tensors["model.embed_tokens.weight"] = np.ones((weights // 96, 96), np.float32)
    return Adapter.read(save(folder / "adapters.safetensors", tensors))


def test_more_than_the_factors_in_the_file(tmp_path: Path) -> None:
    evidence = log(tmp_path, 9_000), adapter(tmp_path, 1)
    (finding,) = trainable_ratio.run(Given(*evidence)).findings
    # A file that lacks most of what was trained would look the same.
    assert (finding.code, finding.severity) == ("trainable-ratio.unfrozen", Severity.WARNING)
    assert finding.measured["expected"] == 8 * 192
    with_base = Given(log(tmp_path, 20_000), adapter(tmp_path, 4), config(tmp_path), BASE)
    (finding,) = trainable_ratio.run(with_base).findings
    assert (finding.code, finding.severity) == ("trainable-ratio.unfrozen", Severity.ERROR)
    saved = Given(log(tmp_path, 20_000), adapter(tmp_path, 1, weights=19_000))
    (finding,) = trainable_ratio.run(saved).findings
    assert (finding.code, finding.severity) == ("trainable-ratio.unfrozen", Severity.ERROR)


@pytest.mark.parametrize(
    ("layers", "weights", "expected"),
    [(4, 0, set()), (3, 0, {"partly-saved"}), (1, 0, {"partly-saved"}), (3, 1600, set())],
)
def test_a_file_that_lacks_what_was_trained(
    tmp_path: Path, layers: int, weights: int, expected: set[str]
) -> None:
    evidence = log(tmp_path, EXPECTED), config(tmp_path), adapter(tmp_path, layers, weights), BASE
    outcome = trainable_ratio.run(Given(*evidence))
    assert codes(outcome) == expected
    for finding in outcome.findings:
        assert finding.severity is Severity.ERROR
        assert finding.measured["saved"] == layers * 8 * 192


def test_a_log_that_counts_other_modules_says_nothing_of_the_file(tmp_path: Path) -> None:
    few = log(tmp_path, 3 * 8 * 192), config(tmp_path), adapter(tmp_path, 2), BASE
    assert codes(trainable_ratio.run(Given(*few))) == set()


def test_the_magnitudes_of_dora_are_counted(tmp_path: Path) -> None:
    stated = config(tmp_path, fine_tune_type="dora")
    assert configured_parameters(stated, BASE) == EXPECTED + 4 * 96
    assert configured_parameters(config(tmp_path), BASE) == EXPECTED


def test_a_file_alone_is_not_held_to_the_configuration(tmp_path: Path) -> None:
    evidence = Given(adapter(tmp_path, 1), config(tmp_path), BASE)
    assert trainable_ratio.run(evidence).status is Status.PASSED


def test_the_whole_model_was_trainable(tmp_path: Path) -> None:
    outcome = trainable_ratio.run(Given(log(tmp_path, 480_000), config(tmp_path), BASE))
    (finding,) = outcome.findings
    assert (finding.code, finding.severity) == ("trainable-ratio.unfrozen", Severity.ERROR)
    alone = trainable_ratio.run(Given(log(tmp_path, 480_000), config(tmp_path)))
    assert codes(alone) == {"unfrozen"}


def test_nothing_was_trainable(tmp_path: Path) -> None:
    outcome = trainable_ratio.run(Given(log(tmp_path, 0), config(tmp_path), BASE))
    assert codes(outcome) == {"none-trainable"}
    assert outcome.findings[0].severity is Severity.ERROR


@pytest.mark.parametrize(("total", "hit"), [(0.470, False), (0.500, False), (0.600, True)])
def test_a_model_of_another_size(tmp_path: Path, total: float, hit: bool) -> None:
    outcome = trainable_ratio.run(Given(log(tmp_path, EXPECTED, total), config(tmp_path), BASE))
    assert codes(outcome) == ({"total-mismatch"} if hit else set())


def test_a_full_fine_tune_is_not_asked(tmp_path: Path) -> None:
    stated = config(tmp_path, fine_tune_type="full")
    assert trainable_ratio.run(Given(log(tmp_path, 480_000), stated)).status is Status.SKIPPED


def test_too_little_is_inconclusive(tmp_path: Path) -> None:
    assert trainable_ratio.run(Given()).status is Status.INCONCLUSIVE
    few = Given(log(tmp_path, EXPECTED), config(tmp_path))
    assert trainable_ratio.run(few).status is Status.INCONCLUSIVE


def test_a_real_run_agrees_to_the_last_digit() -> None:
    folder = RUNS / "healthy-ordinary"
    read = TrainingLog.read([folder / "train.log"])
    adapter = Adapter.read(folder)
    evidence = Given(read, TrainingConfig.read(folder), adapter, BASE)
    assert trainable_ratio.run(evidence).status is Status.PASSED
    assert read.trainable is not None
    assert read.trainable.trainable_millions == round(adapter.parameter_count / 1e6, 3)
    assert read.trainable.total_millions == round(BASE.parameter_count / 1e6, 3)
