"""What is remembered of a rerun, and when it stops."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from mlxdoctor.reproduce.observe import Change, rerun
from mlxdoctor.reproduce.rules import Ruling
from mlxdoctor.run import Run
from mlxdoctor.safety.errors import InputError
from mlxdoctor.twin.rerun import (
    KEY_LENGTH,
    RESULT_FILE,
    BudgetSpent,
    Laboratory,
    key_of,
    read_result,
    recipe_of,
    write_json,
)
from tests.conftest import RUNS
from tests.reproduce.real import trained

FACTS = {"seed": 1}
MADE = Ruling("refuted", "for a reason")


@pytest.fixture
def lab(tmp_path: Path) -> Laboratory:
    """The laboratory of a real run."""
    run = Run.discover([RUNS / "collapse-frequent-token"], allow_model=False)
    return Laboratory(recipe_of(run), tmp_path / "experiments")


def counted(calls: list[Path]) -> Callable[[Path], Ruling]:
    """An experiment that counts how often it is made."""

    def make(folder: Path) -> Ruling:
        calls.append(folder)
        return MADE

    return make


def remembered(lab: Laboratory, calls: list[Path]) -> Ruling:
    """The experiment, made or recalled."""
    return lab.remembered("one", FACTS, "one", counted(calls), lambda values: Ruling(**values))


def test_an_experiment_is_made_once(lab: Laboratory) -> None:
    calls: list[Path] = []
    first, again = remembered(lab, calls), remembered(lab, calls)
    assert len(calls) == 1
    assert first == again
    assert replace(first, seconds=None) == MADE


@pytest.mark.parametrize(
    "content",
    [
        "",
        '{"seconds": 1}',
        '{"verdict": "maybe"}',
        '{"verdict": "maybe", "reason": "", "strength": 0, "seconds": 1}',
        '{"verdict": "refuted", "reason": "", "seconds": 1, "ruling": null}',
    ],
)
def test_a_damaged_or_foreign_result_is_made_again(lab: Laboratory, content: str) -> None:
    calls: list[Path] = []
    remembered(lab, calls)
    (calls[0] / RESULT_FILE).write_text(content)
    assert replace(remembered(lab, calls), seconds=None) == MADE
    assert len(calls) == 2


def test_what_a_stopped_experiment_left_is_cleared(lab: Laboratory) -> None:
    calls: list[Path] = []
    remembered(lab, calls)
    folder = calls[0]
    (folder / RESULT_FILE).unlink()
    (folder / "half.safetensors").write_text("half")
    beside = folder.with_name(f"{folder.name}-data")
    beside.mkdir()
    remembered(lab, calls)
    assert sorted(one.name for one in folder.iterdir()) == [RESULT_FILE]
    assert not beside.exists()


def test_without_time_nothing_new_is_made_and_what_is_known_is_recalled(lab: Laboratory) -> None:
    calls: list[Path] = []
    late = replace(lab, deadline=time.monotonic() - 1)
    with pytest.raises(BudgetSpent, match="one"):
        remembered(late, calls)
    assert not calls
    remembered(lab, calls)
    assert replace(remembered(late, calls), seconds=None) == MADE
    assert len(calls) == 1


def test_a_folder_that_cannot_be_made_is_one_sentence(lab: Laboratory, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(InputError, match="cannot be made"):
        remembered(replace(lab, folder=tmp_path / "file"), [])


@pytest.mark.slow
def test_a_rerun_that_runs_out_of_time_is_not_kept(lab: Laboratory) -> None:
    change = Change("as recorded", "rerun as recorded", 400)
    # Enough to load the model, not to train.
    hurried = replace(lab, deadline=time.monotonic() + 1.0)
    with pytest.raises(BudgetSpent, match="rerun as recorded, seed 42"):
        rerun(hurried, change, 42)
    assert not list(lab.folder.glob(f"*/{RESULT_FILE}"))


@pytest.mark.slow
def test_the_same_rerun_gives_the_same_observation(lab: Laboratory, tmp_path: Path) -> None:
    change = Change("as recorded", "rerun as recorded", 5)
    first = rerun(lab, change, 42)
    other = rerun(replace(lab, folder=tmp_path / "elsewhere"), change, 42)
    untimed = {"seconds": 0.0, "step_seconds": 0.0}
    assert replace(first, **untimed) == replace(other, **untimed)
    assert len(first.iterations) == 5
    assert not list(lab.folder.rglob("*.safetensors"))
    assert rerun(lab, change, 42) == first


@pytest.mark.slow
def test_a_full_fine_tune_is_judged_by_its_weights(tmp_path: Path) -> None:
    folder = trained(tmp_path / "run", iters=1, fine_tune_type="full", learning_rate=3e-2)
    run = Run.discover([folder], allow_model=False)
    change = Change("as recorded", "rerun as recorded", 20)
    seen = rerun(Laboratory(recipe_of(run), tmp_path / "work"), change, 0)
    assert "full-weights.exploded" in seen.errors


def test_a_result_comes_back(tmp_path: Path) -> None:
    write_json(tmp_path / "one" / RESULT_FILE, {"loss": float("nan"), "steps": 3})
    assert read_result(tmp_path / "one") == {"loss": "NaN", "steps": 3}
    assert [one.name for one in (tmp_path / "one").iterdir()] == [RESULT_FILE]


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[1, 2]", b"null", b"\xff\xfe\x00", b'{"a": 1} {"b": 2}', b"[" * 100000]
)
def test_what_is_no_result_counts_as_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / RESULT_FILE).write_bytes(content)
    assert read_result(tmp_path) is None


def test_the_key_changes_with_every_fact() -> None:
    facts = {"settings": {"iters": 5}, "seed": 1}
    keys = {key_of(one) for one in (facts, {**facts, "seed": 2}, {**facts, "fault": "x"})}
    assert len(keys) == 3
    assert key_of(dict(reversed(facts.items()))) == key_of(facts)
    assert {len(key) for key in keys} == {KEY_LENGTH}


def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(InputError, match="cannot be written"):
        write_json(tmp_path / "file" / RESULT_FILE, {"a": 1})


def test_an_interrupted_write_leaves_the_old_result(tmp_path: Path) -> None:
    write_json(tmp_path / RESULT_FILE, {"a": 1})
    with pytest.raises(TypeError):
        write_json(tmp_path / RESULT_FILE, {"a": object()})
    assert json.loads((tmp_path / RESULT_FILE).read_text()) == {"a": 1}
