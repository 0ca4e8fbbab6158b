"""Functions of the user's own: what they may import, and what is left behind."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from mlxdoctor.safety.errors import InputError
from mlxdoctor.safety.user_code import load_named
from tests.processes import python

USES = "def answer():\n    from {module} import VALUE\n    return VALUE\n"


def loaded(folder: Path, text: str) -> Callable[[], Any]:
    """The function `f` of a file with this text."""
    (folder / "mine.py").write_text(text)
    function, _ = load_named(f"{folder / 'mine.py'}:f", "a function")
    return function


@pytest.mark.parametrize("beside", [True, False])
def test_what_lies_beside_the_file_or_here_can_be_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, beside: bool
) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    module = f"values_{'beside' if beside else 'here'}"
    ((there if beside else here) / f"{module}.py").write_text("VALUE = 7\n")
    (there / "mine.py").write_text(f"import {module}\n" + USES.format(module=module))
    monkeypatch.chdir(here)
    path = list(sys.path)
    function, file = load_named(f"{there / 'mine.py'}:answer", "a function")
    assert function() == 7
    assert sys.path == path
    assert file == there / "mine.py"
    assert not list(tmp_path.rglob("*.pyc"))


def test_a_failing_import_is_one_sentence(tmp_path: Path) -> None:
    path = list(sys.path)
    problem = r"fails when imported \(RuntimeError: “no model”, at mine\.py:1"
    with pytest.raises(InputError, match=problem):
        loaded(tmp_path, "raise RuntimeError('no model')\n")
    assert sys.path == path


def test_what_the_code_prints_stays_out_of_the_report(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    text = (
        "import os, sys\nprint('imported')\nout = sys.__stdout__\n"
        "def f():\n    print('called')\n    os.write(1, b'written\\n')\n    return 1\n"
    )
    assert loaded(tmp_path, text)() == 1
    print("the report")
    told = capfd.readouterr()
    assert told.out == "the report\n"
    assert told.err.split() == ["imported", "called", "written"]


def test_closed_outputs_are_there_again(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    text = "import os, sys\nos.close(1)\nsys.stdout = None\ndef f():\n    return 1\n"
    assert loaded(tmp_path, text)() == 1
    print("the report", flush=True)
    assert capfd.readouterr().out == "the report\n"


def test_threads_and_programs_that_it_starts_end_with_the_command(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import atexit, subprocess, sys, threading, time\n"
        "threading.Thread(target=time.sleep, args=(3600,)).start()\n"
        "atexit.register(time.sleep, 3600)\n"
        "program = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(3600)'])\n"
        "def answer():\n    return program.pid\n"
    )
    command = (
        "from mlxdoctor.__main__ import leave\n"
        "from mlxdoctor.safety.user_code import load_named\n"
        "print(load_named('mine.py:answer', 'a function')[0]())\n"
        "leave(3)\n"
    )
    ended = python("-c", command, cwd=tmp_path, timeout=120)
    assert ended.returncode == 3, ended.stderr
    left = int(ended.stdout)
    assert not psutil.pid_exists(left)
