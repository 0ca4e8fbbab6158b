"""What a report says would have caught its run does catch it, said to the real commands."""

import shlex
from pathlib import Path

import pytest

from mlxdoctor.api import diagnose
from mlxdoctor.cli import main
from mlxdoctor.prevention import with_prevention
from tests.conftest import RUNS, expected, run_names

FAULTY = [name for name in run_names() if expected(name)["cause"]]


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTY)
def test_the_gate_stops_every_faulty_run(name: str, tmp_path: Path) -> None:
    report = with_prevention(diagnose([RUNS / name], allow_model=False))
    (gate,) = (one for one in report.prevention if one.by == "gate")
    arguments = shlex.split(gate.command)[1:]
    if gate.policy:
        (tmp_path / "mlxdoctor.toml").write_text(f"{gate.policy}\n")
        arguments += ["--policy", str(tmp_path / "mlxdoctor.toml")]
    assert main(arguments) == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTY)
def test_the_watch_stops_where_it_is_said_to(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    report = with_prevention(diagnose([RUNS / name], allow_model=False))
    said = [one for one in report.prevention if one.by == "watch"]
    logs = [*(RUNS / name).glob("*.log"), *(RUNS / name).glob("train.jsonl")]
    if not logs:
        assert not said
        return
    code = main(["watch", str(logs[0]), "--idle", "0.1"])
    shown = capsys.readouterr().out
    assert (code == 1 and "alarm" in said[0].outcome) if said else code == 0, shown


def test_a_healthy_run_needs_none() -> None:
    report = diagnose([RUNS / "healthy-ordinary"], allow_model=False)
    assert with_prevention(report).prevention == ()
