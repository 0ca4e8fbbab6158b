import operator
from pathlib import Path

import pytest

from mlxdoctor.models.generations import Generation, Generations
from mlxdoctor.models.scoring import load_function, score
from mlxdoctor.safety.errors import InputError

ITEMS = Generations(
    (), (Generation("p", "yes sir", "no", expected="no"), Generation("q", "yes", "", expected="x"))
)


def user_file(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "voice.py"
    path.write_text(text)
    return path


def test_two_and_three_arguments(tmp_path: Path) -> None:
    path = user_file(
        tmp_path,
        "def length(prompt, output):\n    return len(output)\n"
        "def right(prompt, output, expected=None):\n    return output == expected\n",
    )
    function, sources = load_function(f"{path}:length")
    assert sources[0].path == path
    scores = score(ITEMS, function, "length", sources)
    assert [(item.base, item.tuned) for item in scores.items] == [(7.0, 2.0), (3.0, 0.0)]
    right, _ = load_function(f"{path}:right")
    assert [one.tuned for one in score(ITEMS, right, "right").items] == [1.0, 0.0]


def test_failures_are_counted(tmp_path: Path) -> None:
    path = user_file(tmp_path, "def f(prompt, output):\n    return 1 / len(output)\n")
    scores = score(ITEMS, load_function(f"{path}:f")[0], "f")
    assert (len(scores.items), scores.unscored[0]) == (1, 1)
    assert "ZeroDivisionError" in scores.unscored[1]


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("return float('inf')", "could score no answer"),
        ("raise Odd", r"could score no answer \(Odd\)"),
        ("import sys; sys.exit(0)", "ends the program .SystemExit: 0, at voice.py:4"),
        ("raise BaseException('no more')", "ends the program .BaseException: “no more”"),
    ],
)
def test_a_score_that_gives_nothing(tmp_path: Path, body: str, problem: str) -> None:
    odd = "class Odd(Exception):\n    def __str__(self): raise ValueError\n"
    path = user_file(tmp_path, f"{odd}def f(prompt, output):\n    {body}\n")
    with pytest.raises(InputError, match=problem):
        score(ITEMS, load_function(f"{path}:f")[0], "f")


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("voice", "does not name a scoring function"),
        ("nowhere.py:f", "no such file"),
        (f"{operator.__file__}:nothing", "has no function"),
        (f"{operator.__file__}:neg", "takes 1 arguments"),
    ],
)
def test_names_that_cannot_be_used(name: str, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        load_function(name)
