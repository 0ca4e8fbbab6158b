"""Every reader on damaged, made-up and random input: it reads it, or refuses with its own error."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import mlxdoctor.evidence
from mlxdoctor.check import discover
from mlxdoctor.evidence.chat_template import TemplateFailure
from mlxdoctor.evidence.run_files import resolve
from mlxdoctor.evidence.tokenizer import Tokenizer
from mlxdoctor.lint.linter import lint
from mlxdoctor.safety.errors import InputError
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


def test_a_reader_that_raises_anything_else_is_noticed(tmp_path: Path) -> None:
    def read(folder: Path) -> None:
        raise ZeroDivisionError

    reader = Reader("broken", "file", read, lambda: [b"x"])
    reader.prepare(tmp_path / "broken")
    with pytest.raises(ZeroDivisionError):
        reader.feed(b"x", tmp_path / "broken")


def test_readers_refuse_with_input_errors_alone() -> None:
    for reader in READERS:
        assert set(reader.refusals) <= {InputError, TemplateFailure}, reader.name
        assert InputError in reader.refusals


def _readers_of(module: Any) -> Iterator[tuple[str, CodeType]]:
    """Functions and classes of a module that read a path, and their code."""
    for name, value in vars(module).items():
        if getattr(value, "__module__", None) != module.__name__:
            continue
        function = getattr(value, "read", None) if inspect.isclass(value) else value
        code = getattr(function, "__code__", None)
        if code is None or not (inspect.isclass(value) or name.startswith("read")):
            continue
        if {"path", "paths"} & set(code.co_varnames[: code.co_argcount]):
            yield f"{module.__name__}.{name}", code


@pytest.mark.slow
def test_no_reader_of_evidence_is_missing_from_the_list(
    feed: Callable[[Reader, bytes], bool],
) -> None:
    modules = [
        importlib.import_module(one.name)
        for one in pkgutil.walk_packages(mlxdoctor.evidence.__path__, "mlxdoctor.evidence.")
    ]
    wanted = dict(pair for module in modules for pair in _readers_of(module))
    for kind in {need.kind for check in discover() for need in check.requirements}:
        module = importlib.import_module(kind.__module__)
        wanted |= {name: code for name, code in _readers_of(module) if name.endswith(kind.__name__)}
    assert len(wanted) > 15
    called: set[CodeType] = set()

    def note(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            called.add(frame.f_code)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        for reader in READERS:
            for seed in reader.seeds():
                feed(reader, seed)
    finally:
        sys.setprofile(before)
    assert sorted(name for name, code in wanted.items() if code not in called) == []


def test_the_corpus_is_small_and_belongs_to_readers() -> None:
    folder = Path(__file__).parent / "corpus"
    assert {path.name for path in folder.iterdir()} <= {one.name for one in READERS}
    assert sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) < 1_000_000


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "piece", "limit"),
    [
        ("yaml-config", b"a: 1\n", "yaml_values"),
        ("yaml-config", b"- [1, 2, 3]\n", "yaml_values"),
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


def test_a_tokenizer_that_cannot_encode_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes(
        (Path(__file__).parent / "corpus/tokenizer/mended-no-unknown-token").read_bytes()
    )
    with pytest.raises(InputError, match="cannot encode a text"):
        Tokenizer.read(tmp_path).encode("Größe")


def test_a_model_of_an_unknown_user_is_not_found() -> None:
    assert resolve("~nobody-of-that-name/model", [], model=True) is None
