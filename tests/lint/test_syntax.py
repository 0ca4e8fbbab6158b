"""Files of other Pythons: newer ones are read, Python 2 is said to be that."""

import ast
from pathlib import Path

import pytest

from mlxdoctor.lint.linter import lint_source
from mlxdoctor.lint.python_file import SourceFile
from mlxdoctor.lint.rule import rules
from mlxdoctor.lint.syntax import syntax_tree
from mlxdoctor.safety.errors import InputError

FAULT = """\
import mlx.core as mx
def loss(losses, mask):
    return (losses * mask).sum() / mask.sum()
"""
#: Syntax that the oldest supported Python does not have.
NEWER = {
    "type alias": "type Pair[T] = tuple[\n    T, T\n]\n",
    "type parameters": "def first[T: (int, str), *Ts](x: list[T]) -> T:\n    return x[0]\n",
    "type parameters over lines": "class Box[\n    T = int,\n](dict):\n    pass\n",
    "quotes in an f-string": 'x = f"{d["a"]} and {", ".join(d)!r:>10}"\n',
    "a break in an f-string": 'x = f"{\n    d  # which\n}" "more"\n',
    "a backslash in an f-string": "x = f\"{'\\n'.join(d)}\"\n",
    "f-strings in each other": 'x = f"{f"{f"{d["a"]}"}"}"\n',
    "template string": 'x = t"hello {d}"\n',
    "except without brackets": "try:\n    pass\nexcept ValueError, TypeError:\n    pass\n",
    "lazy import": "lazy import json\nlazy from os import path\n",
}


@pytest.mark.parametrize("name", NEWER)
def test_newer_syntax_is_read_and_the_rest_keeps_its_place(name: str) -> None:
    text = NEWER[name] + FAULT
    (hit,) = lint_source(SourceFile.parse(text, Path("x.py")), rules())
    assert (hit.code, hit.line, hit.column) == ("unguarded-mean", text.count("\n"), 12)


def test_what_is_put_into_a_newer_string_is_seen() -> None:
    tree = syntax_tree('x = f"{d["a"]} and {load("b")}" "c"\n', Path("x.py"))
    assert isinstance(tree.body[0], ast.Assign)
    assert ast.unparse(tree.body[0].value) in {
        "(d['a'], load('b'))",
        """f"{d["a"]} and {load("b")}c\"""",
        """f'{d["a"]} and {load("b")}c'""",
    }


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import mlx\nprint 'a'\n", "is written for Python 2, which MLX never ran on (line 2)"),
        ("import mlx\ndef f(:\n", "is not valid Python (line 2)"),
        ("x = 1\n" + "(" * 300 + ")" * 300, "is not valid Python"),
        ("\0", "is not valid Python"),
    ],
)
def test_what_cannot_be_read_is_said(text: str, said: str) -> None:
    with pytest.raises(InputError) as raised:
        syntax_tree(text, Path("x.py"))
    assert raised.value.problem.startswith(said)
