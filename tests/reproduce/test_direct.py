"""Experiments without training, each on real runs with the fault and without it."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from mlxdoctor.evidence.training_log import TrainingLog
from mlxdoctor.reproduce.direct import (
    first_validation,
    fused_fully,
    judge_fusion,
    judge_same_shapes,
    measured,
)
from mlxdoctor.reproduce.recipe import recipe_of
from mlxdoctor.reproduce.rerun import Laboratory
from mlxdoctor.reproduce.rules import Ruling
from mlxdoctor.run import Run
from tests.conftest import RUNS
from tests.reproduce.real import BASE, DATA, settings, trained, with_validation_rows

Copied = Callable[[str], Path]


def tried(cause: str, folder: Path, work: Path, base: Path | None = None) -> Ruling:
    """What the experiment for a cause says of a run."""
    run = Run.discover([folder], base=base, data=None, allow_model=False)
    return measured(cause, Laboratory(recipe_of(run), work), run).ruling


def at_home(folder: Path) -> Path:
    """A copied run that finds base and data where they are."""
    path = folder / "adapter_config.json"
    values = json.loads(path.read_text())
    path.write_text(json.dumps({**values, "model": str(BASE), "data": str(DATA)}))
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cause", "name", "verdict", "said"),
    [
        ("adapter-not-loaded", "adapter-not-loaded", "confirmed", "renamed in a copy"),
        ("adapter-not-loaded", "collapse-frequent-token", "refuted", "already has the name"),
        ("adapter-not-loaded", "wrong-base-model", "undecided", "no renaming"),
        ("wrong-base-model", "wrong-base-model", "confirmed", "has other shapes"),
        ("wrong-base-model", "collapse-frequent-token", "refuted", "the same shapes"),
        ("wrong-base-model", "adapter-not-loaded", "undecided", "no module of the adapter"),
        ("resume-mismatch", "resume-nothing-loaded", "confirmed", "nothing of it was loaded"),
        ("resume-mismatch", "collapse-frequent-token", "refuted", "was not resumed"),
        ("evaluated-without-adapter", "evaluated-without-adapter", "confirmed", "the base has"),
        ("evaluated-without-adapter", "collapse-frequent-token", "undecided", "no reported loss"),
        ("no-validation-data", "collapse-frequent-token", "refuted", "the loss is"),
        ("fused-model-differs", "collapse-frequent-token", "undecided", "no fused model"),
    ],
)
def test_fixture_runs(tmp_path: Path, cause: str, name: str, verdict: str, said: str) -> None:
    found = tried(cause, RUNS / name, tmp_path / "work")
    assert found.verdict == verdict
    assert said in found.reason
    assert not list((tmp_path / "work").rglob("*.safetensors"))


@pytest.mark.slow
def test_an_adapter_that_was_not_named_when_the_model_was_asked(
    tmp_path: Path, copied: Copied
) -> None:
    run = at_home(copied("healthy-ordinary"))
    path = run / "generations.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps({**one, "tuned": one["base"]}) + "\n" for one in rows))
    found = tried("adapter-not-loaded", run, tmp_path / "first")
    assert found.verdict == "confirmed"
    assert f"all {len(rows)} answers" in found.reason
    path.write_text("".join(json.dumps(one) + "\n" for one in rows))
    assert tried("adapter-not-loaded", run, tmp_path / "second").verdict == "refuted"


@pytest.mark.slow
def test_a_figure_that_is_the_tuned_models_refutes(tmp_path: Path, copied: Copied) -> None:
    run = at_home(copied("evaluated-without-adapter"))
    reason = tried("evaluated-without-adapter", run, tmp_path / "first").reason
    tuned = float(reason.partition("with the adapter ")[2])
    (run / "evaluation.json").write_text(json.dumps({"loss": tuned, "split": "valid"}))
    assert tried("evaluated-without-adapter", run, tmp_path / "second").verdict == "refuted"
    (run / "evaluation.json").write_text(json.dumps({"loss": 3 * tuned, "split": "valid"}))
    found = tried("evaluated-without-adapter", run, tmp_path / "second")
    assert found.verdict == "undecided"
    assert "neither" in found.reason


@pytest.mark.slow
def test_of_a_file_resumed_from_what_is_lost_is_told_from_what_is_loaded(tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    before = tmp_path / "before.safetensors"
    tensors = load_file(RUNS / "healthy-ordinary" / "adapters.safetensors")
    save_file(tensors, before)
    run = trained(tmp_path / "run", iters=2, num_layers=4, resume_adapter_file=str(before))
    found = tried("resume-mismatch", run, tmp_path / "whole")
    assert found.verdict == "undecided"
    assert f"all {len(tensors)} tensors" in found.reason

    def renamed(count: int, prefix: str) -> Ruling:
        lost = sorted(tensors)[:count]
        changed = {f"{prefix}.{k}" if k in lost else k: v for k, v in tensors.items()}
        save_file(changed, before)
        return tried("resume-mismatch", run, tmp_path / f"{prefix}-{count}")

    partly = renamed(5, "language_model")
    assert partly.verdict == "confirmed"
    assert f"5 of {len(tensors)} tensors" in partly.reason
    assert "nothing of it was loaded" in renamed(len(tensors), "language_model").reason
    save_file({"elsewhere" if k == min(tensors) else k: v for k, v in tensors.items()}, before)
    foreign = tried("resume-mismatch", run, tmp_path / "foreign")
    assert foreign.verdict == "undecided"
    assert "no renaming" in foreign.reason


@pytest.mark.slow
def test_validation_on_no_batch_is_confirmed_and_on_one_refuted(tmp_path: Path) -> None:
    run = trained(tmp_path / "run", iters=2, val_batches=0)
    found = tried("no-validation-data", run, tmp_path / "work")
    assert found.verdict == "confirmed"
    assert "the loss is NaN; on " in found.reason
    few = with_validation_rows(tmp_path / "few", 3)
    path = run / "adapter_config.json"
    values = {**json.loads(path.read_text()), "val_batches": -1, "data": str(few)}
    path.write_text(json.dumps(values))
    found = tried("no-validation-data", run, tmp_path / "work")
    assert found.verdict == "confirmed"
    assert "on the training rows" in found.reason
    path.write_text(json.dumps({**values, "batch_size": 3}))
    assert tried("no-validation-data", run, tmp_path / "work").verdict == "refuted"
    assert len((few / "valid.jsonl").read_text().splitlines()) == 3


@pytest.mark.slow
def test_a_model_fused_at_two_bits_is_told_from_a_faithful_one(tmp_path: Path) -> None:
    from mlx_lm import load
    from mlx_lm.utils import save

    from fixtures.lab.faults.of_files import fuse_and_quantize

    run = trained(tmp_path / "run", iters=30)
    assert tried("fused-model-differs", run, tmp_path / "work").verdict == "undecided"
    fuse_and_quantize(run, settings(run), 2)
    found = tried("fused-model-differs", run, tmp_path / "work")
    assert found.verdict == "confirmed"
    assert "fused again at full precision" in found.reason
    shutil.rmtree(run / "fused")
    model, tokenizer, config = load(str(BASE), adapter_path=str(run), return_config=True)
    save(str(run / "fused"), str(BASE), fused_fully(model), tokenizer, config)
    assert tried("fused-model-differs", run, tmp_path / "work").verdict == "refuted"
    for path in run.glob("*adapters.safetensors"):
        path.unlink()
    found = tried("fused-model-differs", run, tmp_path / "work")
    assert found.verdict == "undecided"
    assert "no adapter beside" in found.reason


@pytest.mark.parametrize(
    ("tuned", "again", "saved", "verdict"),
    [
        (1.0, 1.0, 1.01, "refuted"),
        (1.0, 1.0, 1.09, "undecided"),
        (1.0, 1.0, 1.11, "confirmed"),
        (1.0, 1.0, math.nan, "confirmed"),
        (1.0, 1.03, 1.5, "undecided"),
    ],
)
def test_how_far_a_fused_model_may_be_off(
    tuned: float, again: float, saved: float, verdict: str
) -> None:
    assert judge_fusion(tuned, again, saved).verdict == verdict


@pytest.mark.parametrize(
    ("here", "named", "verdict", "said"),
    [
        (5.5030, None, "refuted", "as this base has (5.503)"),
        (5.5030, 5.5030, "refuted", "as this base has"),
        (5.5030, 6.1, "confirmed", "the base that the run names has 6.100"),
        (5.6, None, "undecided", "another base, or other rows, or another loss"),
        (None, None, "undecided", "bases of one kind have in common"),
    ],
)
def test_bases_of_the_same_shapes_are_told_by_the_first_validation(
    here: float | None, named: float | None, verdict: str, said: str
) -> None:
    logged = first_validation(
        Run.discover([RUNS / "overfitting"], allow_model=False).get(TrainingLog)
    )
    found = judge_same_shapes(logged, here, named)
    assert (found.verdict, said in found.reason) == (verdict, True)
    assert judge_same_shapes(None, here, named).verdict == "undecided"
