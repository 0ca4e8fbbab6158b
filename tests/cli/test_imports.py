"""Commands that read files alone load no library that they do not need."""

from pathlib import Path

import pytest

from tests.conftest import ROOT, RUNS
from tests.processes import python

HEALTHY = str(RUNS / "healthy-ordinary")
STATIC = ("--no-generate", "--stdout", "json")
LOADED = """
import sys
from mlxdoctor.cli import main
main(sys.argv[2:])
print(sorted(set(sys.argv[1].split()) & set(sys.modules)), file=sys.stderr)
"""
FRAMEWORKS = "mlx mlx_lm torch transformers"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "more"),
    [
        (("diagnose", f"{HEALTHY}/train.log", *STATIC), "matplotlib"),
        (("diagnose", f"{HEALTHY}/adapters.safetensors", *STATIC), "matplotlib"),
        (("diagnose", HEALTHY, *STATIC), "matplotlib"),
        (("bisect", HEALTHY, "--no-generate"), "scipy.stats matplotlib"),
        (("convert", HEALTHY, "-o", "OUT"), "peft scipy.stats matplotlib"),
        (("inspect", HEALTHY), "scipy matplotlib"),
        (("watch", f"{HEALTHY}/train.log", "--no-follow"), "scipy matplotlib"),
        # Nor does one item need processes of its own.
        (("gate", HEALTHY), "matplotlib distributed concurrent.futures.process"),
        (("train", "--help"), ""),
    ],
    ids=lambda one: Path(one[1]).name if isinstance(one, tuple) else None,
)
def test_a_static_command_loads_no_framework(
    arguments: tuple[str, ...], more: str, tmp_path: Path
) -> None:
    command = [one.replace("OUT", str(tmp_path / "out")) for one in arguments]
    done = python("-c", LOADED, f"{FRAMEWORKS} {more}", *command, cwd=ROOT, check=True)
    assert done.stderr.splitlines()[-1] == "[]"
