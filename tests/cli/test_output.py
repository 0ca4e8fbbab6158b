import os
import sys
from pathlib import Path

import pytest

from mlxdoctor.cli import output
from mlxdoctor.safety.errors import InputError
from tests.conftest import Call, Copy, digest


@pytest.mark.parametrize("inside", ["run", "run/reports", "run/a/b", "link", "link/x"])
@pytest.mark.parametrize("beside", ["reports", "", "run-2"])
def test_nothing_is_written_inside_an_inspected_folder(
    tmp_path: Path, inside: str, beside: str
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "train.log").write_text("x")
    (tmp_path / "link").symlink_to(run)
    with pytest.raises(InputError, match="inside the inspected folder"):
        output.refuse_inside(tmp_path / inside, [run])
    output.refuse_inside(tmp_path / beside, [run, run / "train.log"])


@pytest.mark.parametrize(
    "command",
    [
        "diagnose .",
        "gate RUN --format json -o RUN/out",
        "gate RUN --baseline RUN/known.json --write-baseline",
        "gate RUN --init --policy RUN/policy.toml",
        "convert RUN -o RUN",
        "convert RUN -o RUN/peft",
        "reproduce RUN -o RUN/reports",
    ],
)
def test_no_command_writes_into_what_it_reads(
    command: str, copied: Copy, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = copied("collapse-frequent-token")
    monkeypatch.chdir(run)
    before = digest(run)
    code, _, err = call(*command.replace("RUN", str(run)).split())
    assert (code, " inside the inspected folder" in err) == (2, True)
    assert digest(run) == before


def test_files_are_replaced_whole(tmp_path: Path) -> None:
    output.write_files(tmp_path / "a", {"report.md": b"old"})
    written = output.write_files(tmp_path / "a", {"report.md": b"new"})
    assert written == [tmp_path / "a" / "report.md"]
    found = sorted(path.name for path in (tmp_path / "a").rglob("*") if path.is_file())
    assert found == ["report.md"]
    assert (tmp_path / "a" / "report.md").read_bytes() == b"new"


def test_a_link_is_replaced_and_what_it_led_to_is_left_alone(tmp_path: Path) -> None:
    evidence = tmp_path / "evidence.md"
    evidence.write_text("evidence")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "report.md").symlink_to(evidence)
    output.write_files(tmp_path / "out", {"report.md": b"new"})
    assert evidence.read_text() == "evidence"
    assert (tmp_path / "out" / "report.md").read_text() == "new"


def test_a_report_can_be_read_by_those_the_umask_allows(tmp_path: Path) -> None:
    (path,) = output.write_files(tmp_path, {"report.md": b"x"})
    plain = tmp_path / "plain"
    plain.write_text("x")
    assert path.stat().st_mode == plain.stat().st_mode


@pytest.mark.parametrize(
    ("tty", "environment", "expected"),
    [
        (True, {}, True),
        (False, {}, False),
        (True, {"NO_COLOR": "1"}, False),
        (True, {"NO_COLOR": ""}, True),
        (True, {"TERM": "dumb"}, False),
    ],
)
def test_colour_is_for_terminals_that_want_it(
    monkeypatch: pytest.MonkeyPatch, tty: bool, environment: dict[str, str], expected: bool
) -> None:
    for name in ("NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setitem(os.environ, name, value)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: tty)
    assert output.is_coloured() is expected
    assert ("\x1b" in output.style("x", "red", True)) is expected
