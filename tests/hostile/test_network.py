"""No command opens a connection unless it is asked to."""

import os
from pathlib import Path

import pytest

from tests.conftest import BASE, FIXTURES, HEALTHY, ROOT
from tests.processes import python

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

COMMANDS = (
    ("diagnose", HEALTHY, "--base", BASE, "--no-generate", "--stdout", "json"),
    ("diagnose", HEALTHY, "--base", BASE, "--stdout", "json"),
    ("diagnose", HEALTHY, "--stdout", "json"),
    ("inspect", HEALTHY),
    ("lint", ROOT / "mlxdoctor" / "measure" / "loading.py"),
    ("bisect", HEALTHY, "--base", BASE, "-o", "{out}"),
    ("labels", "{rows}", "--base", BASE),
    ("convert", HEALTHY, "--base", BASE, "-o", "{out}"),
)


@pytest.mark.sweep(2)
@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS, ids=lambda one: " ".join(map(str, one))[:24])
def test_without_a_network(command: tuple[str | Path, ...], tmp_path: Path) -> None:
    rows = next((FIXTURES / "data").rglob("train.jsonl"))
    arguments = [str(one).format(rows=rows, out=tmp_path / "out") for one in command]
    stated = dict.fromkeys(key for key in os.environ if key.startswith(("HF_", "TRANSF")))
    environment = {**stated, "HF_HOME": str(tmp_path / "cache")}
    command = ("-c", BLOCKED, *arguments)
    done = python(*command, cwd=ROOT, environment=environment, timeout=600)
    assert "CONNECTS" not in done.stderr
    assert "Traceback" not in done.stderr
    assert done.returncode in {0, 1, 2, 3}
