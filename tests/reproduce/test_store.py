"""Results on disk."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mlxdoctor.experiments.shared import store
from mlxdoctor.safety.errors import InputError


def test_a_result_comes_back(tmp_path: Path) -> None:
    store.write(tmp_path / "one", {"loss": float("nan"), "steps": 3})
    assert store.read(tmp_path / "one") == {"loss": "NaN", "steps": 3}
    assert [one.name for one in (tmp_path / "one").iterdir()] == [store.RESULT_FILE]


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[1, 2]", b"null", b"\xff\xfe\x00", b'{"a": 1} {"b": 2}', b"[" * 100000]
)
def test_what_is_no_result_counts_as_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / store.RESULT_FILE).write_bytes(content)
    assert store.read(tmp_path) is None


def test_no_folder_is_no_result(tmp_path: Path) -> None:
    assert store.read(tmp_path / "nothing") is None


def test_the_key_changes_with_every_fact() -> None:
    facts = {"settings": {"iters": 5}, "seed": 1}
    keys = {store.key_of(one) for one in (facts, {**facts, "seed": 2}, {**facts, "fault": "x"})}
    assert len(keys) == 3
    assert store.key_of(dict(reversed(facts.items()))) == store.key_of(facts)
    assert {len(key) for key in keys} == {store.KEY_LENGTH}


def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(InputError, match="cannot be written"):
        store.write(tmp_path / "file", {"a": 1})


def test_an_interrupted_write_leaves_the_old_result(tmp_path: Path) -> None:
    store.write(tmp_path, {"a": 1})
    with pytest.raises(TypeError):
        store.write(tmp_path, {"a": object()})
    assert json.loads((tmp_path / store.RESULT_FILE).read_text()) == {"a": 1}
