"""Every check on runs whose files say odd things: an outcome each, and never a crash."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxdoctor.api import diagnose
from mlxdoctor.safety.errors import InputError
from tests.conftest import RUNS
from tests.fuzzing import strategies
from tests.fuzzing.readers import reader_called
from tests.fuzzing.test_readers import QUICK

FILES = {
    "adapter_config.json": "adapter-config",
    "train.log": "text-log",
    "evaluation.json": "metrics",
    "generations.jsonl": "generations",
}


def crashed(folder: Path) -> list[Any]:
    """The checks that crashed on a run, with the reasons."""
    try:
        report = diagnose([folder], data=folder / "data", allow_model=False).to_dict()
    except InputError:
        return []
    json.dumps(report)
    return [
        (one["check"], one["reason"]) for one in report["outcomes"] if one["status"] == "crashed"
    ]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with its data, to be damaged."""
    folder = tmp_path / "run"
    shutil.copytree(RUNS / "evaluated-without-adapter", folder)
    (folder / "data").mkdir()
    for name in ("train", "valid"):
        (folder / "data" / f"{name}.jsonl").write_bytes(b"")
    return folder


def hold(inputs: st.SearchStrategy[bytes], run: Path, *names: str) -> None:
    """No check crashes, whatever these files of the run say."""

    @settings(QUICK, max_examples=12)
    @given(inputs)
    def holds(content: bytes) -> None:
        for name in names:
            (run / name).write_bytes(content)
        assert crashed(run) == []

    holds()


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(FILES))
def test_a_run_with_one_damaged_file(name: str, run: Path) -> None:
    hold(strategies.mutations(reader_called(FILES[name])), run, name)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["adapter_config.json", "evaluation.json", "generations.jsonl"])
def test_a_run_with_values_of_any_kind(name: str, run: Path) -> None:
    hold(strategies.json_like(reader_called(FILES[name])), run, name)


@pytest.mark.slow
def test_data_of_any_kind(run: Path) -> None:
    reader = reader_called("dataset")
    inputs = strategies.mutations(reader) | strategies.json_like(reader)
    hold(inputs, run, "data/train.jsonl", "data/valid.jsonl")
