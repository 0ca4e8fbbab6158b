"""What is remembered of a rerun, and when it stops."""

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.dataset import Dataset
from mlxdoctor.exhibits import SampleAnswer
from mlxdoctor.finding import Severity
from mlxdoctor.reproduce import observe
from mlxdoctor.reproduce.observe import BudgetSpent, Change, Laboratory
from mlxdoctor.reproduce.rules import Observation, Signs
from mlxdoctor.run import Run
from mlxdoctor.twin.rerun import recorded_settings
from tests.conftest import RUNS
from tests.reproduce.real import trained

RUN = Run.discover([RUNS / "collapse-frequent-token"], allow_model=False)
AS_RECORDED = Change("as recorded", "rerun as recorded", 5)
SEEN = Observation(
    Signs({"loss-trend.diverged": Severity.ERROR}),
    5.0,
    float("inf"),
    (1,),
    (float("nan"),),
    (SampleAnswer("q", None, "a"),),
)


def laboratory(run: Run, folder: Path) -> Laboratory:
    """Where the experiments of a run are made."""
    return Laboratory(run.need(TrainingConfig), recorded_settings(run), folder)


@pytest.fixture
def lab(tmp_path: Path) -> Laboratory:
    return laboratory(RUN, tmp_path / "experiments")


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Callable[[Laboratory], Observation]:
    """A rerun that trains nothing; how often it was made is the first iteration."""
    count = 0

    def make(lab: Laboratory, *_: Any) -> Observation:
        nonlocal count
        count += 1
        work = lab.folder / observe.WORK / "run"
        work.mkdir(parents=True)
        (work / "adapters.safetensors").write_text("")
        return replace(SEEN, losses=(1.0,), iterations=(count,))

    monkeypatch.setattr(Laboratory, "_made", make)
    return lambda lab: lab.rerun(AS_RECORDED, 42)


def test_a_rerun_is_made_once_and_leaves_no_file(
    lab: Laboratory, made: Callable[[Laboratory], Observation]
) -> None:
    first = made(lab)
    assert made(lab) == first
    assert not list(lab.folder.iterdir())
    assert lab.rerun(AS_RECORDED, 43).iterations == (2,)
    assert lab.rerun(replace(AS_RECORDED, label="another"), 42).iterations == (3,)


def test_without_time_nothing_new_is_made_and_what_is_known_is_recalled(
    lab: Laboratory, made: Callable[[Laboratory], Observation]
) -> None:
    late = replace(lab, deadline=time.monotonic() - 1)
    with pytest.raises(BudgetSpent, match="rerun as recorded, seed 42"):
        made(late)
    first = made(lab)
    assert made(late) == first
    assert first.iterations == (1,)


def test_a_run_of_our_own_trainer_is_made_again_in_its_own_mode() -> None:
    assert recorded_settings(RUN).mode == "parity"
    config = RUN.need(TrainingConfig)
    own = {**config.values, "mlxdoctor": {"grad_clip": 1.0, "patience": 3}}
    settings = recorded_settings(RUN.having(replace(config, values=own)))
    assert (settings.mode, settings.grad_clip) == ("exact", 1.0)


def test_epochs_are_as_many_batches_as_the_rows_make() -> None:
    config = RUN.need(TrainingConfig)
    rows = len(RUN.need(Dataset).splits["train"].rows)
    values = {key: value for key, value in config.values.items() if key != "iters"}
    stated = replace(config, values=values | {"epochs": 3, "batch_size": 8})
    assert recorded_settings(RUN.having(stated)).iters == 3 * (rows // 8)
    assert recorded_settings(RUN).iters == config.iters
    for broken in (float("inf"), float("nan"), True, "three"):
        stated = replace(config, values={**config.values, "epochs": broken})
        assert recorded_settings(RUN.having(stated)).iters == config.iters


@pytest.mark.slow
def test_a_rerun_that_runs_out_of_time_is_not_kept(lab: Laboratory) -> None:
    # Enough to load the model, not to train.
    hurried = replace(lab, deadline=time.monotonic() + 1.0)
    with pytest.raises(BudgetSpent, match="rerun as recorded, seed 42"):
        hurried.rerun(replace(AS_RECORDED, iterations=400), 42)
    assert not list(lab.folder.iterdir())


@pytest.mark.slow
def test_the_same_rerun_gives_the_same_observation(lab: Laboratory, tmp_path: Path) -> None:
    first = lab.rerun(AS_RECORDED, 42)
    other = replace(lab, folder=tmp_path / "elsewhere", made={}).rerun(AS_RECORDED, 42)
    assert replace(first, seconds=0.0) == replace(other, seconds=0.0)
    assert len(first.iterations) == 5
    assert lab.rerun(AS_RECORDED, 42) == first


@pytest.mark.slow
def test_a_full_fine_tune_is_judged_by_its_weights(tmp_path: Path) -> None:
    folder = trained(tmp_path / "run", iters=1, fine_tune_type="full", learning_rate=3e-2)
    run = Run.discover([folder], allow_model=False)
    lab = laboratory(run, tmp_path / "work")
    assert "full-weights.exploded" in lab.rerun(replace(AS_RECORDED, iterations=20), 0).signs.codes
