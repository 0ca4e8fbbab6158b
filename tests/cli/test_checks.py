import json

import pytest

from mlxdoctor.check import discover
from tests.conftest import Call


def test_json_lists_every_code_of_every_check(call: Call) -> None:
    code, out, _ = call("checks", "--format", "json")
    assert code == 0
    listed = json.loads(out)
    expected = {code: meaning for one in discover() for code, meaning in one.codes.items()}
    assert {row["code"]: row["meaning"] for row in listed} == expected
    assert {row["cost"] for row in listed} == {"instant", "forward"}


def test_the_table_has_a_row_for_every_code_and_fits_the_terminal(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    code, printed, _ = call("checks")
    assert code == 0
    assert all(code in printed for check in discover() for code in check.codes)
    assert max(map(len, printed.splitlines())) <= 100
