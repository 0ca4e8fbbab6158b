"""A user's own score that ends the program, or raises what nobody expects."""

from __future__ import annotations

from pathlib import Path

import pytest

from mlxdoctor.models.generations import Generation, Generations
from mlxdoctor.models.scoring import load_function, score
from mlxdoctor.safety.errors import InputError

ITEMS = Generations((), (Generation("p", "yes", "no", expected="no"),))


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("import sys; sys.exit(0)", "ends the program .SystemExit: 0, at voice.py:2"),
        ("import os; os._exit(0)", r"ends the program .os\._exit\(0\)"),
        ("raise BaseException('no more')", "ends the program .BaseException: “no more”"),
    ],
)
def test_a_score_that_ends_the_program(tmp_path: Path, body: str, said: str) -> None:
    path = tmp_path / "voice.py"
    path.write_text(f"def f(prompt, output):\n    {body}\n")
    function, _ = load_function(f"{path}:f")
    with pytest.raises(InputError, match=said):
        score(ITEMS, function, "voice.py:f")


def test_an_exception_whose_text_raises_is_counted_like_others(tmp_path: Path) -> None:
    path = tmp_path / "voice.py"
    path.write_text(
        "class Odd(Exception):\n    def __str__(self): raise ValueError\n"
        "def f(prompt, output):\n    raise Odd\n"
    )
    function, _ = load_function(f"{path}:f")
    with pytest.raises(InputError, match=r"could score no answer \(Odd\)"):
        score(ITEMS, function, "voice.py:f")
