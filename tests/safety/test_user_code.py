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
