"""Every check on runs whose files say odd things: an outcome each, and never a crash."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxdoctor.api import diagnose
from mlxdoctor.safety.errors import InputError
from tests.conftest import RUNS
from tests.fuzzing import strategies
from tests.fuzzing.readers import Reader, reader_called
from tests.fuzzing.test_readers import QUICK

#: A file of the run -> the reader of such a file.
FILES = {
    "adapter_config.json": "adapter-config",
    "train.log": "text-log",
    "evaluation.json": "metrics",
    "generations.jsonl": "generations",
    "data/train.jsonl": "dataset",
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


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("inputs", [strategies.mutations, strategies.json_like])
def test_no_check_crashes_whatever_a_file_of_the_run_says(
    name: str, inputs: Callable[[Reader], st.SearchStrategy[bytes]], run: Path
) -> None:
    @settings(QUICK, max_examples=12)
    @given(inputs(reader_called(FILES[name])))
    def holds(content: bytes) -> None:
        (run / name).write_bytes(content)
        if name == "data/train.jsonl":
            (run / "data/valid.jsonl").write_bytes(content)
        assert crashed(run) == []

    holds()
