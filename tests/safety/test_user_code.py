"""Functions of the user's own: what they may import, and what is left behind."""

import sys
from pathlib import Path

import pytest

from mlxdoctor.safety.errors import InputError
from mlxdoctor.safety.user_code import load_named

USES = "def answer():\n    from {module} import VALUE\n    return VALUE\n"


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
    function, sources = load_named(f"{there / 'mine.py'}:answer", "a function")
    assert function() == 7
    assert sys.path == path
    assert sources == (there / "mine.py",)
    assert not list(tmp_path.rglob("*.pyc"))


def test_a_failing_import_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("import not_there_at_all\n")
    path = list(sys.path)
    with pytest.raises(InputError, match="fails when imported"):
        load_named(f"{tmp_path / 'mine.py'}:answer", "a function")
    assert sys.path == path


def test_what_the_code_prints_stays_out_of_the_report(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "trainer.py"
    file.write_text(
        "import os, sys\nprint('imported')\nout = sys.__stdout__\n"
        "def f():\n    print('called')\n    os.write(1, b'written\\n')\n    return 1\n"
    )
    function, _ = load_named(f"{file}:f", "a function")
    assert function() == 1
    print("the report")
    told = capfd.readouterr()
    assert told.out == "the report\n"
    assert told.err.split() == ["imported", "called", "written"]


def test_closed_outputs_are_there_again(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "trainer.py"
    file.write_text("import os, sys\nos.close(1)\nsys.stdout = None\ndef f():\n    return 1\n")
    function, _ = load_named(f"{file}:f", "a function")
    assert function() == 1
    print("the report", flush=True)
    assert capfd.readouterr().out == "the report\n"
