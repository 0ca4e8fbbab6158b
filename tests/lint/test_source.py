"""What names mean: aliases, re-exports, attributes of `self`, unpacked tuples, helpers."""

import ast
import time
from pathlib import Path

import pytest

from mlxdoctor.lint.source import SourceFile, canonical
from mlxdoctor.safety.errors import InputError


def parse(text: str) -> SourceFile:
    return SourceFile.parse(text, Path("x.py"))


def last_argument(source: SourceFile) -> ast.expr:
    """What is handed to the last call of `use`."""
    return list(source.calls("use"))[-1].args[0]


@pytest.mark.parametrize(
    "text",
    [
        "import mlx_lm\nmlx_lm.load('m')",
        "from mlx_lm import load\nload('m')",
        "from mlx_lm import load as read\nread('m')",
        "from mlx_lm.utils import load\nload('m')",
        "from mlx_lm.lora import load\nload('m')",
        "import mlx_lm.utils as u\nu.load('m')",
        "from mlx_lm import utils\nutils.load('m')",
        "def f():\n    from mlx_lm import load\n    return load('m')",
        "try:\n    from mlx_lm import load\nexcept ImportError:\n    load = None\nload('m')",
    ],
)
def test_one_function_under_many_names(text: str) -> None:
    assert len(list(parse(text).calls("mlx_lm.load"))) == 1
    assert len(list(parse(text).calls("mlx_lm.utils.load"))) == 1


@pytest.mark.parametrize(
    "text",
    [
        "def load(path): ...\nload('m')",
        "from mlx_lm import load\ndef f(load):\n    load('m')",
        "from json import load\nload('m')",
        "import mlx.core as mx\nmx.load('m')",
        "from mlx_vlm import load\nload('m')",
    ],
)
def test_another_function_of_that_name(text: str) -> None:
    assert not list(parse(text).calls("mlx_lm.load"))


def test_names_that_are_the_same() -> None:
    assert canonical("mlx.nn.utils.value_and_grad") == "mlx.nn.value_and_grad"
    assert canonical("mlx.optimizers.optimizers.Adam") == canonical("mlx.optimizers.Adam")
    assert canonical("mlx_lm.tuner.utils.linear_to_lora_layers") == "mlx_lm.linear_to_lora_layers"
    assert canonical("mlx.core.value_and_grad") != canonical("mlx.nn.value_and_grad")
    assert canonical("load") == "load"
    assert list(parse("from .tuner.utils import train as t\nt()").calls("*.train"))


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("x = 1\nuse(x)", ["1"]),
        ("x = a\ny = x\nuse(y)", ["a"]),
        ("x = 1\nx = 2\nuse(x)", ["2"]),
        ("x = 1\nif c:\n    x = 2\nuse(x)", ["2", "1"]),
        ("if c:\n    x = 1\nelse:\n    use(x)", ["1"]),
        ("if c:\n    x = 1\nelse:\n    x = 2\n    use(x)", ["2"]),
        ("x = x0\nx = x[1:]\nuse(x)", ["x[1:]"]),
        ("with a:\n    x = 1\nuse(x)", ["1"]),
        ("x = 1 if c else 2\nuse(x)", ["1", "2"]),
        ("a, b = f(x)\nuse(b)", ["f(x)[1]"]),
        ("a, b = 1, 2\nuse(b)", ["2"]),
        ("(a, b), c = f(x), 2\nuse(a)", ["f(x)[0]"]),
        ("a, *b = f(x)\nuse(a)", ["a"]),
        ("p = (1, 2)\nuse(p[1])", ["2"]),
        ("def f(x):\n    use(x)", ["x"]),
        ("def f(x):\n    x = g(x)\n    use(x)", ["g(x)"]),
        ("def f(x=None):\n    if x is None:\n        x = 1\n    use(x)", ["1", "x"]),
        ("for x in y:\n    use(x)", ["x"]),
        ("n = 0\nn += 1\nuse(n)", ["n"]),
        ("if (n := f()):\n    use(n)", ["f()"]),
        (
            "class A:\n    def a(self):\n        self.x = 1\n    def b(self):\n        use(self.x)",
            ["1"],
        ),
        ("x = 1\ndef f():\n    use(x)\nx = 2", ["1", "2"]),
    ],
)
def test_values(text: str, values: list[str]) -> None:
    source = parse(text)
    assert [ast.unparse(one) for one in source.values(last_argument(source))] == values


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("def f(): ...\nuse(f)", "f"),
        ("def f(): ...\ng = f\nuse(g)", "f"),
        ("from functools import partial\ndef f(a, b): ...\nuse(partial(f, b=1))", None),
        ("import mlx.core as mx\ndef f(): ...\ng = mx.compile(f)\nuse(g)", "f"),
        ("class A:\n    def f(self): ...\n    def g(self):\n        use(self.f)", "f"),
        ("class A:\n    def f(self): ...\na = A()\nuse(a.f)", "f"),
        ("def f(): ...\nif c:\n    def f(): ...\nuse(f)", None),
        ("import numpy as np\nclass A:\n    def f(self): ...\nuse(np.f)", None),
        ("def f(f):\n    use(f)", None),
    ],
)
def test_functions(text: str, name: str | None) -> None:
    source = parse(text)
    function = source.function(last_argument(source))
    assert getattr(function, "name", None) == name


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("import mlx\nprint 'a'\n", ": Missing parentheses in call to 'print'"),
        ("import mlx\ndef f(:\n", ": invalid syntax (line 2)"),
        ("x = 1\n" + "(" * 300 + ")" * 300, ": too many nested parentheses (line 2)"),
        ("x = " + "-" * 20_000 + "1", ""),
        ("\0", ""),
    ],
)
def test_what_cannot_be_read_is_said(text: str, problem: str) -> None:
    with pytest.raises(InputError) as raised:
        parse(text)
    assert raised.value.problem.startswith("is not valid Python 3.")
    assert problem in raised.value.problem


@pytest.mark.parametrize(
    "line", ["if c:\n    x = y\n", "x = y\ny = x\n", "x = x[0] if c else y\ny = x\n", "x = x[0]\n"]
)
def test_names_that_lead_to_each_other_come_to_an_end(line: str) -> None:
    for times in (60, 3_000):
        source = parse("from m import y\n" + line * times + "use(x)\n")
        begun = time.process_time()
        source.values(last_argument(source))
        list(source.parts(last_argument(source)))
        source.function(last_argument(source))
        assert list(source.calls("m.y")) == []
        assert time.process_time() - begun < 2
