"""Loading and applying a user's scoring function."""

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
    found = score(ITEMS, function, "length", sources)
    assert [(one.base, one.tuned) for one in found.items] == [(7.0, 2.0), (3.0, 0.0)]
    right, _ = load_function(f"{path}:right")
    assert [one.tuned for one in score(ITEMS, right, "right").items] == [1.0, 0.0]


def test_a_module_on_the_path() -> None:
    function, _ = load_function("operator:eq")
    assert [one.tuned for one in score(ITEMS, function, "eq").items] == [0.0, 0.0]


def test_failures_and_infinities_are_counted(tmp_path: Path) -> None:
    path = user_file(tmp_path, "def f(prompt, output):\n    return 1 / len(output)\n")
    function, _ = load_function(f"{path}:f")
    found = score(ITEMS, function, "f")
    assert len(found.items) == 1
    assert found.unscored[0] == 1
    assert "ZeroDivisionError" in found.unscored[1]
    path = user_file(tmp_path, "def f(prompt, output):\n    return float('inf')\n")
    function, _ = load_function(f"{path}:f")
    with pytest.raises(InputError, match="could score no answer"):
        score(ITEMS, function, "f")


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("voice", "does not name a scoring function"),
        ("nowhere.py:f", "no such file"),
        ("no_such_module_here:f", "cannot be imported"),
        ("operator:nothing", "has no function"),
        ("operator:neg", "takes 1 arguments"),
    ],
)
def test_names_that_cannot_be_used(name: str, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        load_function(name)


def test_a_file_that_fails(tmp_path: Path) -> None:
    path = user_file(tmp_path, "raise RuntimeError('no model')\n")
    with pytest.raises(InputError, match=r"RuntimeError: “no model”, at voice\.py:1"):
        load_function(f"{path}:f")
