from __future__ import annotations

import json

import pytest

from mlxdoctor.check import discover
from mlxdoctor.cli import main


def test_json_lists_every_code_of_every_check(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["checks", "--format", "json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    expected = {code: meaning for one in discover() for code, meaning in one.codes.items()}
    assert {row["code"]: row["meaning"] for row in listed} == expected
    assert {row["cost"] for row in listed} == {"instant", "forward"}


def test_the_table_has_a_row_for_every_code_and_fits_the_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    assert main(["checks"]) == 0
    printed = capsys.readouterr().out
    assert all(code in printed for check in discover() for code in check.codes)
    assert max(map(len, printed.splitlines())) <= 100
