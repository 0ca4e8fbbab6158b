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


@pytest.mark.parametrize("table_format", ["text", "markdown"])
def test_tables_have_a_row_for_every_code(
    table_format: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["checks", "--format", table_format]) == 0
    printed = capsys.readouterr().out
    for one in discover():
        for code in one.codes:
            assert code in printed


def test_the_table_fits_the_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    main(["checks"])
    assert max(len(line) for line in capsys.readouterr().out.splitlines()) <= 100
