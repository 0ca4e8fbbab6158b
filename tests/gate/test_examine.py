"""What a worker makes of one item."""

from __future__ import annotations

import pytest

from mlxdoctor.gate.examine import Task, examine
from tests.conftest import RUNS


@pytest.mark.parametrize("with_text", [True, False])
def test_our_own_failure_is_told_and_quotes_no_text_where_none_is_wanted(
    monkeypatch: pytest.MonkeyPatch, with_text: bool
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise ValueError("cannot encode 'the narwhal'")

    monkeypatch.setattr("mlxdoctor.api.diagnose", fails)
    task = Task(str(RUNS / "rate-too-low"), {}, generate=False, seconds=60.0, with_text=with_text)
    examined = examine(task)
    assert examined.report is None
    assert "rate-too-low: mlxdoctor itself failed on it (ValueError: " in examined.problem
    assert ("narwhal" in examined.problem) is with_text
