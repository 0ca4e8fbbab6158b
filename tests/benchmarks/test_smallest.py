"""Every benchmark runs to its end, as small as it can be; nothing is measured."""

import sys
from pathlib import Path

import pytest

from tests.benchmarks.__main__ import BENCHMARKS, machine
from tests.benchmarks.setup import Line, Measurement, Setup, at_most, lines_of, markdown, measure

SMALLEST = Setup(None, smallest=True)

SLOW = [pytest.param(one, marks=pytest.mark.slow) for one in ("startup", "gate", "trainer")]


@pytest.mark.parametrize("name", ["logs", "lint", "weights", "generation", *SLOW])
def test_a_benchmark_runs(name: str) -> None:
    assert len(BENCHMARKS) == 9  # real_base and tests have no smallest size
    lines = lines_of(BENCHMARKS[name][1], SMALLEST)
    assert lines
    assert all(line.found is not None or line.result for line in lines)
    assert f"| {lines[0].what} |" in markdown(lines)


def test_what_did_not_do_its_work_is_not_measured() -> None:
    def ends(code: int, says: str = "") -> Measurement:
        program = f"import sys; print('done'); sys.exit({code})"
        return measure([sys.executable, "-c", program], repeats=1, says=says)

    assert ends(3, says="done").seconds > 0
    with pytest.raises(RuntimeError, match="ended with 2"):
        ends(2)
    with pytest.raises(RuntimeError, match="ended with 0"):
        ends(0, says="verdict")


def test_a_ratio_is_held_against_its_aim() -> None:
    slow, fast = Measurement(2.0, 10.0), Measurement(1.0, 20.0)
    assert at_most("ours", fast, slow, "theirs", 0.5) == Line(
        "ours", fast, "0.50x theirs", "at most 0.5x", True
    )
    assert at_most("ours", slow, fast, "theirs", 1.5).met is False
    shown = markdown([Line("ours", fast, "0.50x theirs", "at most 0.5x", True)])
    assert shown.endswith("| ours | 1.000 s | 20 MiB | 0.50x theirs | at most 0.5x | yes |")
    assert "cores of" in machine()


def test_without_peers_nothing_is_installed(tmp_path: Path) -> None:
    assert SMALLEST.peer("runmedic") is None
    assert Setup(tmp_path).version("runmedic") is None
