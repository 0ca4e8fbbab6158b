from __future__ import annotations

from pathlib import Path

import pytest

from mlxdoctor.gate.baseline import Known, baseline_text, read_baseline
from mlxdoctor.safety.errors import InputError

KNOWN = frozenset({Known("b", "memory.slow", "f" * 16), Known('a "x"', "memory.slow", "0" * 16)})


@pytest.mark.parametrize("known", [KNOWN, frozenset()])
def test_what_is_written_is_read(tmp_path: Path, known: frozenset[Known]) -> None:
    path = tmp_path / "known.json"
    path.write_text(baseline_text(known))
    assert read_baseline(path) == known


def test_a_finding_is_a_line_and_lines_are_in_order() -> None:
    lines = [line for line in baseline_text(KNOWN).splitlines() if "fingerprint" in line]
    assert len(lines) == 2
    assert '"b"' in lines[1]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "there is no such baseline; make it: --write-baseline"),
        ("{", "is not a baseline"),
        ("[]", "is not a baseline"),
        ('{"schema_version": 2, "known": []}', "is not a baseline"),
        ('{"schema_version": 1}', "is not a baseline"),
        ('{"schema_version": 1, "known": [{"path": "a"}]}', "is not a baseline"),
    ],
)
def test_anything_else_is_refused(tmp_path: Path, text: str | None, said: str) -> None:
    path = tmp_path / "known.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(InputError) as refused:
        read_baseline(path)
    assert said in str(refused.value)
