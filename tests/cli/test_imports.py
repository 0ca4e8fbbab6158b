"""Commands load no library that they do not need, and open no connection unless asked to."""

import os
from pathlib import Path

import pytest

from tests.conftest import BASE, FIXTURES, HEALTHY, ROOT
from tests.processes import python

STATIC = ("--no-generate", "--stdout", "json")
#: Runs a command without a network, and says which of some modules it loaded.
ALONE = """
import socket, sys
def refuse(*arguments, **named):
    print("CONNECTS", arguments[1:2], file=sys.stderr)
    raise OSError("no network here")
for name in ("connect", "connect_ex", "sendto"):
    setattr(socket.socket, name, refuse)
socket.getaddrinfo = lambda *a, **k: refuse(None, a)
from mlxdoctor.cli import main
code = main(sys.argv[2:])
print(sorted(set(sys.argv[1].split()) & set(sys.modules)), file=sys.stderr)
sys.exit(code)
"""
FRAMEWORKS = "mlx mlx_lm torch transformers"
#: A command, and modules that it does not load.
COMMANDS = (
    (("diagnose", HEALTHY / "train.log", *STATIC), f"{FRAMEWORKS} matplotlib"),
    (("diagnose", HEALTHY / "adapters.safetensors", *STATIC), f"{FRAMEWORKS} matplotlib"),
    (("diagnose", HEALTHY, *STATIC), f"{FRAMEWORKS} matplotlib"),
    pytest.param(("diagnose", HEALTHY, "--stdout", "json"), "", marks=pytest.mark.long),
    (("bisect", HEALTHY, "--no-generate"), f"{FRAMEWORKS} scipy.stats matplotlib"),
    (("bisect", HEALTHY, "--base", BASE, "-o", "{out}"), ""),
    (("convert", HEALTHY, "-o", "{out}"), f"{FRAMEWORKS} peft scipy.stats matplotlib"),
    (("inspect", HEALTHY), f"{FRAMEWORKS} scipy matplotlib"),
    (("labels", "{rows}", "--base", BASE), ""),
    (("lint", ROOT / "mlxdoctor" / "measure" / "loading.py"), ""),
    (("watch", HEALTHY / "train.log", "--no-follow"), f"{FRAMEWORKS} scipy matplotlib"),
    # Nor does one item need processes of its own.
    (("gate", HEALTHY), f"{FRAMEWORKS} matplotlib distributed concurrent.futures.process"),
    (("train", "--help"), FRAMEWORKS),
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "unneeded"), COMMANDS, ids=lambda one: None if isinstance(one, str) else one[0]
)
def test_a_command_alone(command: tuple[str | Path, ...], unneeded: str, tmp_path: Path) -> None:
    rows = next((FIXTURES / "data").rglob("train.jsonl"))
    arguments = [str(one).format(rows=rows, out=tmp_path / "out") for one in command]
    stated = dict.fromkeys(key for key in os.environ if key.startswith(("HF_", "TRANSF")))
    environment = {**stated, "HF_HOME": str(tmp_path / "cache")}
    command = ("-c", ALONE, unneeded, *arguments)
    done = python(*command, cwd=ROOT, environment=environment, timeout=600)
    assert "CONNECTS" not in done.stderr
    assert "Traceback" not in done.stderr
    assert done.returncode in {0, 1, 2, 3}
    assert done.stderr.splitlines()[-1] == "[]"
