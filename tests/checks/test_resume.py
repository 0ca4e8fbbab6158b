import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlxdoctor.evidence.other_runs import EarlierRun
from mlxdoctor.finding import Finding, Outcome, Severity, Status
from mlxdoctor.run import Run
from tests.conftest import RUNS, Copy, check_called
from tests.edits import Tensors, change_json, change_tensors

#: Makes a run of what it is given.
Make = Callable[..., Path]


def outcome(folder: Path) -> Outcome:
    return check_called("resume").run(Run.discover([folder], allow_model=False))


@pytest.fixture
def resumed(copied: Copy, tmp_path: Path) -> Make:
    """A healthy run that says it was resumed from the given tensors."""

    def make(alter: Callable[[Tensors], Tensors]) -> Path:
        folder = copied("healthy-ordinary")
        before = shutil.copy(folder / "adapters.safetensors", tmp_path / "before.safetensors")
        change_tensors(before, alter)
        change(folder, resume_adapter_file=str(before))
        return folder

    return make


def test_the_real_run_that_dropped_everything_is_found() -> None:
    found = outcome(RUNS / "resume-nothing-loaded")
    assert [one.code for one in found.findings] == ["resume.from-the-base", "resume.not-loaded"]
    assert float(found.findings[0].measured["lost"]) > 0.95  # type: ignore[arg-type]
    assert found.findings[1].measured["loaded"] == 0


@pytest.mark.parametrize("count", [4, None])
def test_the_same_tensors_pass_and_fewer_as_none_is_dropped(resumed: Make, count: int) -> None:
    folder = resumed(lambda tensors: dict(list(tensors.items())[:count]))
    assert outcome(folder).status is Status.PASSED


def test_one_foreign_tensor_is_partly_loaded(resumed: Make) -> None:
    folder = resumed(lambda tensors: tensors | {"other.lora_a": np.zeros((2, 2), np.float32)})
    found = outcome(folder)
    assert [one.code for one in found.findings] == ["resume.not-loaded"]
    assert found.findings[0].where == "other.lora_a"


def test_a_file_that_is_gone_is_missing_with_its_name(resumed: Make, tmp_path: Path) -> None:
    folder = resumed(lambda tensors: tensors)
    shutil.move(tmp_path / "before.safetensors", tmp_path / "elsewhere")
    found = outcome(folder)
    assert found.status is Status.SKIPPED
    assert "before.safetensors" in found.reason


@pytest.mark.parametrize(
    ("rank", "scale", "code", "said"),
    [
        (8, 20.0, None, ""),
        # mlx-lm trains the file's rank then, and saves it beside the other number.
        (4, 20.0, "resume.rank-differs", "has rank 8, but the configuration asks for rank 4"),
        (8, 10.0, "resume.scale-differs", "counts 0.5 times as much"),
    ],
)
def test_another_rank_or_scale_than_the_file_was_trained_at(
    *, resumed: Make, tmp_path: Path, rank: int, scale: float, code: str | None, said: str
) -> None:
    folder = resumed(lambda tensors: tensors)
    shutil.copy(folder / "adapter_config.json", tmp_path)
    change(folder, lora_parameters={"rank": rank, "scale": scale, "dropout": 0.0})
    found = outcome(folder).findings
    assert [one.code for one in found] == ([code] if code else [])
    assert all(said in one.message for one in found)


#: An earlier run: it fell from 4.0 to 1.0, at a rate that came down to 1e-5.
EARLIER = [
    "Iter 1: Val loss 4.000, Val took 1.0s",
    "Iter 50: Val loss 2.000, Val took 1.0s",
    "Iter 50: Train loss 2.1, Learning Rate 1.000e-04, It/sec 1.0, Tokens/sec 100.0",
    "Iter 100: Val loss 1.000, Val took 1.0s",
    "Iter 100: Train loss 1.1, Learning Rate 1.000e-05, It/sec 1.0, Tokens/sec 100.0",
]


def starts(folder: Path) -> list[Finding]:
    """What is told of where the run begins."""
    return [one for one in outcome(folder).findings if one.code == "resume.from-the-base"]


def why_not_compared(folder: Path) -> str:
    return outcome(folder).unsought["resume.from-the-base"]


def later(start: float) -> list[str]:
    return [
        f"Iter 1: Val loss {start:.3f}, Val took 1.0s",
        "Iter 10: Train loss 1.0, Learning Rate 1.000e-05, It/sec 1.0, Tokens/sec 100.0",
    ]


def change(folder: Path, **values: Any) -> None:
    change_json(folder / "adapter_config.json", **values)


@pytest.fixture
def pair(copied: Copy, tmp_path: Path) -> Make:
    """A run resumed from a checkpoint of another one, with these logs."""

    def make(log: list[str], file: str = "adapters.safetensors") -> Path:
        folder = copied("healthy-noisy-batch1")
        earlier = tmp_path / "earlier"
        shutil.copytree(RUNS / "healthy-noisy-batch1", earlier, dirs_exist_ok=True)
        shutil.copy(earlier / "adapters.safetensors", earlier / "0000050_adapters.safetensors")
        (earlier / "train.log").write_text("\n".join(EARLIER) + "\n")
        (folder / "train.log").write_text("\n".join(log) + "\n")
        change(folder, resume_adapter_file=str(earlier / file))
        return folder

    return make


@pytest.mark.parametrize(("start", "hit"), [(0.8, False), (1.44, False), (1.47, True), (4.2, True)])
def test_the_level_it_begins_at(pair: Make, start: float, hit: bool) -> None:
    folder = pair(later(start))
    found = starts(folder)
    assert [one.severity for one in found] == [Severity.ERROR] * hit
    for one in found:
        assert one.measured["lost"] == pytest.approx((start - 1.0) / 3.0)
    # The log of the earlier run may lie beside that of this one.
    (folder.parent / "earlier" / "train.log").rename(folder / "first.log")
    assert bool(starts(folder)) is hit


def test_an_earlier_checkpoint_is_compared_with_what_it_had(pair: Make) -> None:
    folder = pair(later(2.1), "0000050_adapters.safetensors")
    assert not starts(folder)
    (folder / "train.log").write_text("\n".join(later(2.6)) + "\n")
    assert starts(folder)


def test_what_cannot_be_compared(pair: Make) -> None:
    folder = pair(later(1.2))
    log = folder.parent / "earlier" / "train.log"
    log.write_text(log.read_text().replace("4.000", "1.200"))
    assert "fell by only" in why_not_compared(folder)
    (folder / "train.log").write_text("\n".join(later(4.0)[1:]) + "\n")
    assert "lacks a validation loss" in why_not_compared(folder)
    log.unlink()
    assert "is not here" in why_not_compared(folder)


@pytest.mark.parametrize("values", [{"mask_prompt": True}, {"data": "data/other"}])
def test_losses_on_other_targets_are_not_compared(pair: Make, values: dict[str, Any]) -> None:
    folder = pair(later(4.0))
    change(folder, **values)
    assert not starts(folder)
    assert next(iter(values)) in why_not_compared(folder)


def test_a_run_resumed_in_its_own_folder_has_both_in_one_log(pair: Make) -> None:
    folder = pair([*EARLIER, *later(3.9)])
    change(folder, resume_adapter_file=str(folder / "adapters.safetensors"))
    assert starts(folder)
    (folder / "train.log").write_text("\n".join([*EARLIER, *later(1.05)]) + "\n")
    assert not outcome(folder).unsought
    assert not starts(folder)
    (folder / "train.log").write_text("\n".join(later(3.9)) + "\n")
    assert "is not here" in why_not_compared(folder)


def test_what_is_read_of_the_earlier_run_is_listed(pair: Make) -> None:
    run = Run.discover([pair(later(1.0), "0000050_adapters.safetensors")], allow_model=False)
    earlier = run.get(EarlierRun)
    assert earlier.iteration == 50
    assert {one.path.name for one in earlier.sources} == {"train.log", "adapter_config.json"}
