"""Readers on damaged, made-up and random input, and checks on runs of it: none crashes."""

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mlxdoctor.api import diagnose
from mlxdoctor.lint.linter import lint
from mlxdoctor.safety.errors import InputError
from tests.conftest import RUNS
from tests.fuzzing import strategies
from tests.fuzzing.readers import READERS, Reader, corpus, reader_called

#: The same inputs everywhere and each time; how fast a machine is does not matter.
QUICK = settings(
    max_examples=50,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)
JSON = (
    *("adapter-config", "peft-config", "json-log", "jsonl-log", "dataset", "tokenizer"),
    *("tokenizer-config", "metrics", "generations", "model-index", "model-config"),
)
by_name = pytest.mark.parametrize("reader", READERS, ids=lambda one: one.name)


@pytest.fixture
def feed(tmp_path: Path) -> Callable[[Reader, bytes], bool]:
    """Feeds bytes to a reader in a folder of its own."""
    prepared: set[str] = set()

    def call(reader: Reader, content: bytes) -> bool:
        folder = tmp_path / reader.name
        if reader.name not in prepared:
            reader.prepare(folder)
            prepared.add(reader.name)
        return reader.feed(content, folder)

    return call


@by_name
def test_sound_inputs_are_read(reader: Reader, feed: Callable[[Reader, bytes], bool]) -> None:
    seeds = reader.seeds()
    assert seeds
    assert all(feed(reader, seed) for seed in seeds)


@by_name
def test_the_corpus(reader: Reader, feed: Callable[[Reader, bytes], bool]) -> None:
    for path in corpus(reader):
        feed(reader, path.read_bytes())


def fed(inputs: st.SearchStrategy[bytes], feed: Callable[[bytes], bool]) -> None:
    """Feeds made-up inputs; anything that is raised but a refusal is a fault."""

    @QUICK
    @given(inputs)
    def holds(content: bytes) -> None:
        feed(content)

    holds()


@pytest.mark.slow
@by_name
def test_damaged_inputs(reader: Reader, feed: Callable[[Reader, bytes], bool]) -> None:
    fed(strategies.mutations(reader) | st.binary(max_size=200), partial(feed, reader))


@pytest.mark.slow
@pytest.mark.parametrize("name", JSON)
def test_json_of_any_shape(name: str, feed: Callable[[Reader, bytes], bool]) -> None:
    reader = reader_called(name)
    fed(strategies.json_like(reader), partial(feed, reader))


@pytest.mark.parametrize("name", ["safetensors", "peft-weights", "model-weights"])
def test_headers_that_lie(name: str, feed: Callable[[Reader, bytes], bool]) -> None:
    fed(strategies.tensor_files(), partial(feed, reader_called(name)))


def test_the_corpus_is_small_and_belongs_to_readers() -> None:
    folder = Path(__file__).parent / "corpus"
    assert {path.name for path in folder.iterdir()} <= {one.name for one in READERS}
    assert sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) < 1_000_000


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "piece", "limit"),
    [
        ("yaml-config", b"a: 1\n", "yaml_bytes"),
        ("source", b"a,", "source_nodes"),
        ("chat-template", b"{{ a }}", "template_bytes"),
    ],
)
def test_what_would_take_long_is_refused_by_name(
    name: str, piece: bytes, limit: str, tmp_path: Path
) -> None:
    reader = reader_called(name)
    reader.prepare(tmp_path)
    (tmp_path / reader.file).write_bytes(piece * (400_000 // len(piece)))
    if name == "source":
        (hit,) = lint([tmp_path / reader.file])
        assert (hit.code, limit in hit.message) == ("unreadable", True)
        return
    with pytest.raises(InputError, match=f"limit {limit} of"):
        reader.read(tmp_path)


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
