"""Whether a resumed run begins where the earlier one was."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mlxdoctor.api import run_checks
from mlxdoctor.evidence.resumed import EarlierRun
from mlxdoctor.finding import Finding, Outcome, Severity, Status
from mlxdoctor.run import Run
from tests.conftest import RUNS, check_called

#: An earlier run: it fell from 4.0 to 1.0, at a rate that came down to 1e-5.
EARLIER = [
    "Iter 1: Val loss 4.000, Val took 1.0s",
    "Iter 50: Val loss 2.000, Val took 1.0s",
    "Iter 50: Train loss 2.1, Learning Rate 1.000e-04, It/sec 1.0, Tokens/sec 100.0",
    "Iter 100: Val loss 1.000, Val took 1.0s",
    "Iter 100: Train loss 1.1, Learning Rate 1.000e-05, It/sec 1.0, Tokens/sec 100.0",
]


def outcome(folder: Path) -> Outcome:
    run = Run.discover([folder], allow_model=False)
    (found,) = run_checks([check_called("resumed-start")], run)
    assert found.status is not Status.CRASHED, found.reason
    return found


def findings(folder: Path) -> dict[str, Finding]:
    return {one.code.split(".")[1]: one for one in outcome(folder).findings}


def later(start: float) -> list[str]:
    return [
        f"Iter 1: Val loss {start:.3f}, Val took 1.0s",
        "Iter 10: Train loss 1.0, Learning Rate 1.000e-05, It/sec 1.0, Tokens/sec 100.0",
    ]


def change(folder: Path, **values: Any) -> None:
    path = folder / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


@pytest.fixture
def pair(copied: Callable[[str], Path], tmp_path: Path) -> Callable[..., Path]:
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


def test_a_real_run_that_took_up_nothing() -> None:
    """Resumed from an adapter none of whose names fit."""
    found = findings(RUNS / "resume-nothing-loaded")
    assert list(found) == ["from-the-base"]
    assert found["from-the-base"].severity is Severity.ERROR
    assert float(found["from-the-base"].measured["lost"]) > 0.95  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("start", "code"),
    [
        (0.8, None),
        (1.44, None),
        (1.47, "from-the-base"),
        (4.2, "from-the-base"),
    ],
)
def test_the_level_it_begins_at(pair: Callable[..., Path], start: float, code: str | None) -> None:
    found = findings(pair(later(start)))
    assert list(found) == ([code] if code is not None else [])
    if code is not None:
        assert found[code].severity is Severity.ERROR
        assert found[code].measured["lost"] == pytest.approx((start - 1.0) / 3.0)


@pytest.mark.parametrize(("start", "codes"), [(2.1, []), (2.6, ["from-the-base"])])
def test_an_earlier_checkpoint_is_compared_with_what_it_had(
    pair: Callable[..., Path], start: float, codes: list[str]
) -> None:
    assert list(findings(pair(later(start), "0000050_adapters.safetensors"))) == codes


def test_what_cannot_be_compared(pair: Callable[..., Path]) -> None:
    folder = pair(later(1.2))
    log = folder.parent / "earlier" / "train.log"
    log.write_text(log.read_text().replace("4.000", "1.200"))
    assert outcome(folder).status is Status.INCONCLUSIVE
    (folder / "train.log").write_text("\n".join(later(4.0)[1:]) + "\n")
    assert outcome(folder).status is Status.INCONCLUSIVE
    log.unlink()
    assert "no log beside" in outcome(folder).reason
    assert outcome(RUNS / "healthy-ordinary").reason == "the run was not resumed"


@pytest.mark.parametrize("values", [{"mask_prompt": True}, {"data": "data/other"}])
def test_losses_on_other_targets_are_not_compared(
    pair: Callable[..., Path], values: dict[str, Any]
) -> None:
    folder = pair(later(4.0))
    change(folder, **values)
    said = outcome(folder)
    assert (said.status, said.findings) == (Status.INCONCLUSIVE, ())
    assert next(iter(values)) in said.reason


def test_a_run_resumed_in_its_own_folder_has_both_in_one_log(
    pair: Callable[..., Path],
) -> None:
    folder = pair([*EARLIER, *later(3.9)])
    change(folder, resume_adapter_file=str(folder / "adapters.safetensors"))
    assert list(findings(folder)) == ["from-the-base"]
    (folder / "train.log").write_text("\n".join([*EARLIER, *later(1.05)]) + "\n")
    assert outcome(folder).status is Status.PASSED
    (folder / "train.log").write_text("\n".join(later(3.9)) + "\n")
    assert outcome(folder).status is Status.SKIPPED


def test_what_is_read_of_the_earlier_run_is_listed(pair: Callable[..., Path]) -> None:
    run = Run.discover([pair(later(1.0), "0000050_adapters.safetensors")], allow_model=False)
    earlier = run.get(EarlierRun)
    assert earlier is not None
    assert earlier.iteration == 50
    assert {one.path.name for one in earlier.sources} == {"train.log", "adapter_config.json"}
