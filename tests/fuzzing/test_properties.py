"""More than that nothing breaks: the same thing, written otherwise, is read as the same."""

from pathlib import Path
from typing import Any

import pytest

import mlxdoctor.evidence.source
from mlxdoctor.api import diagnose
from mlxdoctor.evidence.training_log import TrainingLog
from tests.conftest import RUNS

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
    saves = [(one.iteration, one.files) for one in log.notes.saves]
    return {
        "segments": segments,
        "saves": saves,
        "trainable": log.notes.trainable,
        "header": log.notes.header,
    }


def read(text: bytes, path: Path) -> dict[str, Any]:
    path.write_bytes(text)
    return figures(TrainingLog.read([path]))


@pytest.mark.parametrize("name", [*LOGS, RECORDS])
def test_a_logs_figures_do_not_depend_on_line_ends(name: str, tmp_path: Path) -> None:
    content = (RUNS / name).read_bytes()
    path = tmp_path / Path(name).name
    plain = read(content, path)
    assert plain["segments"]
    assert read(content.replace(b"\n", b"\r\n"), path) == plain
    assert read(b"\xef\xbb\xbf" + content, path) == plain
    assert read(content.decode().encode("utf-16"), path) == plain


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


@pytest.mark.slow
def test_a_report_does_not_depend_on_the_order_of_files(monkeypatch: pytest.MonkeyPatch) -> None:
    def shown() -> dict[str, Any]:
        report = diagnose([RUNS / "evaluated-without-adapter"], allow_model=False).to_dict()
        for outcome in report["outcomes"]:
            outcome.pop("seconds")
        return report

    before = shown()
    for name in ("iterdir", "glob", "rglob"):
        listed = getattr(Path, name)
        monkeypatch.setattr(
            Path,
            name,
            lambda self, *pattern, listed=listed: iter(sorted(listed(self, *pattern))[::-1]),
        )
    assert shown() == before
