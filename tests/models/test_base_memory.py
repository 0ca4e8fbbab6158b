"""What a base model said is asked for again only where the answer might be another."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.models import base_memory
from mlxdoctor.models.base_memory import as_before
from tests.conftest import FIXTURES


class Model:
    """Counts how often it is asked."""

    asked = 0

    def __call__(self) -> int:
        self.asked += 1
        return self.asked


def test_the_same_question_is_asked_once_of_the_same_files(tmp_path: Path) -> None:
    shutil.copytree(FIXTURES / "base", tmp_path / "base")
    base, model = BaseModel.read(tmp_path / "base"), Model()
    assert [as_before(base, ("what", 1), model) for _ in range(3)] == [1, 1, 1]
    assert as_before(base, ("what", 2), model) == 2
    assert as_before(BaseModel.read(tmp_path / "base"), ("what", 1), model) == 1
    # Trained on, or another model put in its place.
    weights = tmp_path / "base" / "model.safetensors"
    os.utime(weights, ns=(0, weights.stat().st_mtime_ns + 1))
    assert as_before(base, ("what", 1), model) == 3


def test_another_folder_is_another_base(tmp_path: Path) -> None:
    model = Model()
    for name in ("one", "two"):
        shutil.copytree(FIXTURES / "base", tmp_path / name)
        as_before(BaseModel.read(tmp_path / name), "what", model)
    assert model.asked == 2


def test_only_the_latest_answers_are_kept() -> None:
    base, model = BaseModel.read(FIXTURES / "base"), Model()
    for number in range(base_memory.KEPT + 1):
        as_before(base, ("kept", number), model)
    as_before(base, ("kept", 1), model)
    assert model.asked == base_memory.KEPT + 1
    as_before(base, ("kept", 0), model)
    assert model.asked == base_memory.KEPT + 2
