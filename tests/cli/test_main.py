import importlib
import pkgutil
from functools import partial
from importlib.metadata import version
from typing import Any

import click
import pytest

from mlxdoctor import cli
from mlxdoctor.safety.errors import InputError
from tests import processes
from tests.conftest import BASE, HEALTHY, RUNS, Call, digest

HEAVY = ("numpy", "scipy", "matplotlib", "mlx", "jinja2", "tabulate", "yaml")

python = partial(processes.python, environment={"PYTHONUTF8": "1"})


def test_every_module_with_a_command_is_listed_by_its_name() -> None:
    names = [info.name for info in pkgutil.iter_modules(cli.__path__)]
    modules = {name: importlib.import_module(f"mlxdoctor.cli.{name}") for name in names}
    commands = {
        name: module.command for name, module in modules.items() if hasattr(module, "command")
    }
    assert {command.name for command in commands.values()} == commands.keys() == cli.COMMANDS.keys()


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_command_teaches_with_an_example(name: str, call: Call) -> None:
    code, out, _ = call(name, "--help")
    assert (code, f"  mlxdoctor {name}" in out) == (0, True)


def test_help_lists_the_commands_without_loading_any() -> None:
    code = (
        "import sys; from mlxdoctor.cli import main; main(['--help']); "
        f"print([name for name in {HEAVY} if name in sys.modules])"
    )
    printed = python("-c", code).stdout
    for name, text in cli.COMMANDS.items():
        assert f"  {name}" in printed
        assert text in printed
    assert printed.endswith("[]\n")


def test_version_is_the_installed_one() -> None:
    result = python("-m", "mlxdoctor", "--version")
    assert (result.returncode, result.stdout) == (0, f"mlxdoctor {version('mlxdoctor')}\n")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("diagnos", "Did you mean 'diagnose'?"),
        ("xyzzy", "No such command 'xyzzy'."),
        ("diagnose", "Missing argument 'PATH...'"),
        ("diagnose x --formt json", "No such option"),
        ("diagnose x --fail-on note", "is not one of"),
        (f"diagnose {HEALTHY} --budget 0", "--budget"),
        ("diagnose nowhere/at/all", "nowhere/at/all: there is no such file or folder"),
        ("explain learning-rate-to-high", "did you mean learning-rate-too-high"),
        ("explain load-adapter-unchecked", "did you mean load-adapters-unchecked"),
        ("explain zzzzzzzz", "`mlxdoctor checks` lists the codes"),
        (f"gate {HEALTHY} --jobs 2 --cluster x", "--cluster"),
        (f"gate {HEALTHY} --jobs 0", "--jobs"),
        (f"gate {HEALTHY} --time-limit 0", "--time-limit"),
        (f"gate {HEALTHY} --write-baseline", "--write-baseline has no file to write"),
        (f"inspect {BASE}", "holds no adapter weights"),
        ("lint", "FILE"),
        ("lint absent.py", "there is no such file"),
        (f"lint {BASE}", "has no Python file in it"),
        ("preflight", "there is nothing to examine"),
        (f"reproduce {HEALTHY} --seeds 1", "--seeds"),
        (f"reproduce {HEALTHY} --budget -1", "--budget"),
        (f"reproduce {RUNS / 'collapse-frequent-token'} --cause bad-luck", "bad-luck"),
        ("watch absent.log --no-follow", "no such file"),
    ],
)
def test_wrong_usage_exits_with_2(arguments: str, said: str, call: Call) -> None:
    before = digest(HEALTHY)
    code, out, err = call(*arguments.split())
    assert (code, out) == (cli.EXIT_UNUSABLE, "")
    assert said in err
    assert digest(HEALTHY) == before


def raising(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def fail(**_: Any) -> None:
        raise error

    monkeypatch.setattr(cli.group, "main", fail)


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (
            InputError("a\x1b[31m.log", "is empty", "name another"),
            cli.EXIT_UNUSABLE,
            "mlxdoctor: a\\x1b[31m.log: is empty; name another\n",
        ),
        (MemoryError("Unable to allocate 1 TiB"), cli.EXIT_UNUSABLE, "mlxdoctor: "),
        (RuntimeError("cudaMallocAsync failed: out of memory"), cli.EXIT_UNUSABLE, "not enough"),
        # A bug shows its traceback, and never counts as a finding.
        (RuntimeError("boom"), cli.EXIT_INCONCLUSIVE, "RuntimeError: boom"),
        (RuntimeError("boom"), cli.EXIT_INCONCLUSIVE, "this is a bug in mlxdoctor"),
    ],
)
def test_a_failure_is_one_sentence_and_a_bug_a_traceback(
    monkeypatch: pytest.MonkeyPatch, call: Call, error: Exception, code: int, said: str
) -> None:
    raising(monkeypatch, error)
    ended, _, printed = call()
    assert ended == code
    assert said in printed
    assert (printed.count("\n") == 1) is (code == cli.EXIT_UNUSABLE)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), click.Abort()])
def test_an_interruption_is_a_word_and_130(
    monkeypatch: pytest.MonkeyPatch, call: Call, error: BaseException
) -> None:
    raising(monkeypatch, error)
    code, _, err = call()
    assert (code, err.strip()) == (cli.EXIT_INTERRUPTED, "interrupted")
