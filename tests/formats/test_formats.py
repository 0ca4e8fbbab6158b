from collections.abc import Iterator
from pathlib import Path

import pytest

import mlxdoctor.formats
from mlxdoctor.formats.format import files_of, formats, text_of
from mlxdoctor.gate_result import GateResult
from mlxdoctor.tables import modules_of
from tests.formats import sample

ADDED = '''
"""The verdict alone, for a badge."""

from mlxdoctor.formats.format import Format


def render(report):
    return report.verdict.value + "\\n"


FORMAT = Format("badge", "badge.txt", report=render)
'''


@pytest.fixture
def added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of formats beside the package's own, with one that nobody else knows of."""
    (tmp_path / "badge.py").write_text(ADDED)
    monkeypatch.setattr(mlxdoctor.formats, "__path__", [*mlxdoctor.formats.__path__, str(tmp_path)])
    formats.cache_clear()
    yield tmp_path
    formats.cache_clear()


def test_a_file_adds_a_format_and_nothing_else_is_touched(added: Path) -> None:
    report = sample.made(sample.unhealthy())
    assert "badge" in formats()
    assert text_of(report, "badge") == "unhealthy\n"
    assert files_of(report, "badge") == {"report.badge.txt": b"unhealthy\n"}
    with pytest.raises(ValueError, match="badge shows no GateResult"):
        text_of(GateResult((), None), "badge")


def test_no_two_formats_have_one_name() -> None:
    modules = [module for module in modules_of("mlxdoctor.formats") if hasattr(module, "FORMAT")]
    assert len(modules) == len(formats())


def test_every_format_shows_a_gate_or_a_report_and_files_have_names_of_their_own() -> None:
    every = list(formats().values())
    assert all(one.report or one.gate for one in every)
    suffixes = [one.suffix for one in every if one.suffix]
    assert len(set(suffixes)) == len(suffixes)
