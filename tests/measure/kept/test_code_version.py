"""What measures decides what is measured: its words do not."""

from __future__ import annotations

from pathlib import Path

import pytest

from mlxdoctor.measure.kept import code_version as versions
from mlxdoctor.measure.kept.code_version import code_version
from mlxdoctor.models.general_text import GeneralText
from mlxdoctor.models.losses import TokenLosses

CODE = """\"\"\"How many rows.\"\"\"
from mlxdoctor.models.forward import predict

ROWS = 16


def measure():
    \"\"\"Measure.\"\"\"
    # All of them.
    return predict(ROWS)
"""


@pytest.fixture
def version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(tmp_path))

    def of(number: int, code: str) -> str:
        (tmp_path / f"measuring_{number}.py").write_text(code)
        text, imported = versions._module(f"measuring_{number}")
        assert imported == ("mlxdoctor.models.forward",)
        return text

    return of


def test_words_do_not_count_and_figures_do(version) -> None:
    first = version(1, CODE)
    assert version(2, CODE.replace("Measure.", "Measure\n\n    everything.")) == first
    assert version(3, CODE.replace("# All of them.", "# None.\n")) == first
    assert version(4, CODE.replace("16", "17")) != first
    assert version(5, CODE.replace("predict(ROWS)", "predict(-ROWS)")) != first


def test_each_kind_has_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    assert code_version(TokenLosses) != code_version(GeneralText)
    before = code_version(GeneralText)
    versions._version.cache_clear()
    whole = versions._module

    def changed(name: str):
        text, imported = whole(name)
        return (text + "changed" if name.endswith(".forward") else text), imported

    monkeypatch.setattr(versions, "_module", changed)
    assert code_version(GeneralText) != before
    versions._version.cache_clear()
