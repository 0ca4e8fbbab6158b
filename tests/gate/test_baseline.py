from pathlib import Path

import pytest

from mlxdoctor.gate.baseline import Known, baseline_text, figures_of, read_baseline

KNOWN = frozenset(
    {
        Known("b", "memory.slow", "f" * 16, "e" * 64, (("ratio", 2.5), ("rows", 3.0))),
        Known('a "x"', "memory.slow", "0" * 16),
    }
)


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
    ("file", "ratio", "said"),
    [
        ("e" * 64, 2.5, ""),
        ("e" * 64, 2.7, ""),
        ("e" * 64, 2.8, "where ratio is 2.5, and it is 2.8"),
        # Smaller may be worse: nothing says which way is.
        ("e" * 64, 0.1, "where ratio is 2.5, and it is 0.1"),
        ("d" * 64, 2.5, "of other files than those that are there"),
        # It grew beyond what a number can be.
        ("e" * 64, float("inf"), "by other figures: ratio"),
    ],
)
def test_it_accepts_a_file_and_a_size(file: str, ratio: float, said: str) -> None:
    accepted = Known("b", "weight-drift.exploded", "f" * 16, "e" * 64, (("ratio", 2.5),))
    found = Known("b", "weight-drift.exploded", "f" * 16, file, figures_of({"ratio": ratio}))
    reopened = accepted.reopened_by(found)
    assert said in reopened
    assert bool(said) == bool(reopened)


def test_its_figures_are_the_finite_numbers() -> None:
    measured = {"rows": 3, "ratio": float("nan"), "names": ("a",), "is_new": True, "at": 0.5}
    assert figures_of(measured) == (("at", 0.5), ("rows", 3.0))
