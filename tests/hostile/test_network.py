"""No command opens a connection unless it is asked to."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import FIXTURES, ROOT, RUNS

BLOCKED = """
import socket, sys
class Refused(BaseException): pass
def refuse(*arguments, **named):
    print("CONNECTS", arguments[1:2], file=sys.stderr)
    raise OSError("no network here")
for name in ("connect", "connect_ex", "sendto"):
    setattr(socket.socket, name, refuse)
socket.getaddrinfo = lambda *a, **k: refuse(None, a)
from mlxdoctor.cli import main
sys.exit(main(sys.argv[1:]))
"""

RUN = str(RUNS / "healthy-ordinary")
BASE = str(FIXTURES / "base")
DATA = str(FIXTURES / "data")
COMMANDS = (
    ("diagnose", RUN, "--base", BASE, "--no-generate", "--stdout", "json"),
    ("diagnose", RUN, "--base", BASE, "--stdout", "json"),
    ("diagnose", RUN, "--stdout", "json"),
    ("inspect", RUN),
    ("lint", str(ROOT / "mlxdoctor" / "measure" / "loading.py")),
    ("bisect", RUN, "--base", BASE, "-o", "{out}"),
    ("labels", "{rows}", "--base", BASE),
    ("convert", RUN, "--base", BASE, "-o", "{out}"),
)


@pytest.mark.sweep(2)
@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS, ids=lambda one: " ".join(one)[:24])
def test_without_a_network(command: tuple[str, ...], tmp_path: Path) -> None:
    rows = next(Path(DATA).rglob("train.jsonl"))
    arguments = [one.format(rows=rows, out=tmp_path / "out") for one in command]
    environment = {
        key: value for key, value in os.environ.items() if not key.startswith(("HF_", "TRANSF"))
    }
    done = subprocess.run(
        [sys.executable, "-c", BLOCKED, *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**environment, "HF_HOME": str(tmp_path / "cache")},
        timeout=600,
        check=False,
    )
    assert "CONNECTS" not in done.stderr
    assert "Traceback" not in done.stderr
    assert done.returncode in {0, 1, 2, 3}
