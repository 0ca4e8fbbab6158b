"""More than that nothing breaks: the same thing, written otherwise, is read as the same."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mlxdoctor.evidence.source
from mlxdoctor.api import diagnose
from mlxdoctor.convert.conversion import convert
from mlxdoctor.evidence.adapter import Adapter
from mlxdoctor.evidence.safetensors_file import read_safetensors
from mlxdoctor.evidence.training_log import TrainingLog
from tests.conftest import RUNS
from tests.fuzzing import seeds
from tests.fuzzing.test_readers import QUICK

FEW = settings(QUICK, max_examples=15)
LOGS = ("healthy-ordinary/train.log", "collapse-frequent-token/train.log")
RECORDS = "adapter-never-attached/train.jsonl"


def figures(log: TrainingLog) -> dict[str, Any]:
    """Everything a log says, without the numbers of its lines."""
    segments = [
        {
            name: (one.iterations.tolist(), list(map(str, one.values)))
            for name, one in seg.series.items()
        }
        for seg in log.segments
    ]
    saves = [(one.iteration, one.files) for one in log.saves]
    return {"segments": segments, "saves": saves, "trainable": log.trainable, "header": log.header}


def read(text: bytes, path: Path) -> dict[str, Any]:
    path.write_bytes(text)
    return figures(TrainingLog.read([path]))


arrays = st.tuples(
    st.sampled_from(["f4", "f2", "u2", "u4", "u1"]), st.lists(st.integers(0, 3), max_size=3)
).flatmap(
    lambda kind: st.binary(
        min_size=math.prod(kind[1]) * np.dtype(kind[0]).itemsize,
        max_size=math.prod(kind[1]) * np.dtype(kind[0]).itemsize,
    ).map(lambda raw: np.frombuffer(raw, kind[0]).reshape(kind[1]))
)


@pytest.mark.slow
def test_tensors_written_and_read_keep_every_byte(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"

    @QUICK
    @given(st.dictionaries(st.text(min_size=1, max_size=8), arrays, max_size=5))
    def holds(tensors: dict[str, Any]) -> None:
        tensors.pop("__metadata__", None)
        path.write_bytes(seeds.packed(tensors))
        found = read_safetensors(path).tensors
        assert set(found) == set(tensors)
        for name, values in tensors.items():
            assert found[name].shape == values.shape
            assert found[name].read(0, found[name].nbytes).tobytes() == values.tobytes()

    holds()


@pytest.mark.slow
def test_an_adapter_converted_there_and_back_keeps_every_bit(tmp_path: Path) -> None:
    name = "base_model.model.model.layers.{}.self_attn.q_proj.lora_{}.weight"

    @FEW
    @given(st.integers(1, 3), st.integers(1, 4), st.integers(1, 8), st.integers(0, 2**32 - 1))
    def holds(layers: int, rank: int, width: int, seed: int) -> None:
        # Any bit pattern, NaN payloads included.
        random = np.random.default_rng(seed)
        tensors = {
            name.format(layer, role): random.integers(0, 2**32, shape, "u4").view("f4")
            for layer in range(layers)
            for role, shape in (("A", (rank, width)), ("B", (width, rank)))
        }
        config = json.loads(seeds.peft_config()) | {"r": rank, "lora_alpha": 2 * rank}
        folders = [tmp_path / one for one in ("peft", "mlx", "back")]
        write(folders[0], seeds.packed(tensors), config)
        for source, target in pairwise(folders):
            target.mkdir(exist_ok=True)
            for file, content in convert(source).files.items():
                (target / file).write_bytes(content)
        back = Adapter.read(folders[2]).tensors
        stored = {key: one.read(0, one.nbytes).tobytes() for key, one in back.items()}
        assert stored == {key: values.tobytes() for key, values in tensors.items()}

    holds()


def write(folder: Path, weights: bytes, config: dict[str, Any]) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "adapter_model.safetensors").write_bytes(weights)
    (folder / "adapter_config.json").write_text(json.dumps(config))


@pytest.mark.parametrize("name", [*LOGS, RECORDS])
def test_a_logs_figures_do_not_depend_on_line_ends(name: str, tmp_path: Path) -> None:
    content = (RUNS / name).read_bytes()
    path = tmp_path / Path(name).name
    plain = read(content, path)
    assert plain["segments"]
    assert read(content.replace(b"\n", b"\r\n"), path) == plain
    assert read(b"\xef\xbb\xbf" + content, path) == plain
    assert read(content.decode().encode("utf-16"), path) == plain


@pytest.mark.parametrize("name", LOGS)
def test_a_logs_figures_do_not_depend_on_colours(name: str, tmp_path: Path) -> None:
    lines = (RUNS / name).read_text("utf-8").splitlines()[:60]
    path = tmp_path / "train.log"
    plain = read("\n".join(lines).encode(), path)
    codes = st.sampled_from(
        ["\x1b[0m", "\x1b[1;35m", "\x1b[38;5;200m", "\x1b[K", "\x1b]0;title\x07"]
    )
    places = st.lists(
        st.tuples(st.integers(0, len(lines) - 1), st.integers(0, 200), codes), max_size=30
    )

    @FEW
    @given(places)
    def holds(where: list[tuple[int, int, str]]) -> None:
        coloured = list(lines)
        for line, column, code in where:
            text = coloured[line]
            # Between words, where terminals change colour, and outside other sequences.
            at = text.rfind(" ", 0, column) if "\x1b" not in text else 0
            coloured[line] = text[: max(at, 0)] + code + text[max(at, 0) :]
        assert read("\n".join(coloured).encode(), path) == plain

    holds()


@pytest.mark.parametrize("size", [1, 7, 4096])
@pytest.mark.parametrize("name", LOGS)
def test_a_log_is_the_same_in_pieces_of_any_size(
    name: str, size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "train.log"
    content = (RUNS / name).read_bytes()[:4000]
    plain = read(content, path)
    # Pieces of one byte cut every character of several bytes, and every line end.
    monkeypatch.setattr(mlxdoctor.evidence.source, "CHUNK_BYTES", size)
    assert read(content, path) == plain


@pytest.fixture
def shuffled(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Makes folders list their entries in another order, as other file systems do."""
    iterdir, glob, rglob = Path.iterdir, Path.glob, Path.rglob

    def use(seed: int) -> None:
        def mixed(found: Iterator[Path]) -> Iterator[Path]:
            entries = sorted(found)
            np.random.default_rng(seed).shuffle(entries)  # type: ignore[arg-type]
            return iter(entries)

        monkeypatch.setattr(Path, "iterdir", lambda self: mixed(iterdir(self)))
        monkeypatch.setattr(Path, "glob", lambda self, pattern: mixed(glob(self, pattern)))
        monkeypatch.setattr(Path, "rglob", lambda self, pattern: mixed(rglob(self, pattern)))

    return use


@pytest.mark.slow
def test_a_report_does_not_depend_on_the_order_of_files(shuffled: Callable[[int], None]) -> None:
    reports = []
    for seed in range(3):
        shuffled(seed)
        report = diagnose([RUNS / "evaluated-without-adapter"], allow_model=False).to_dict()
        for outcome in report["outcomes"]:
            outcome.pop("seconds")
        reports.append(report)
    assert reports[0] == reports[1] == reports[2]
