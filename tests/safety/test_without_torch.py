"""mlx-lm is imported without PyTorch, which can be imported still."""

from pathlib import Path

from tests.processes import python

CODE = """
import importlib.metadata, sys
listing = importlib.metadata.packages_distributions
if sys.argv[1] == "out":
    from mlxdoctor.safety.without_torch import leave_torch_out
    leave_torch_out()
import mlx_lm
print("imported" if hasattr(sys, "torch_was_imported") else "left out")
import torch
assert importlib.metadata.packages_distributions is listing
print(torch.__name__)
"""


def said(folder: Path, what: str) -> str:
    package = folder / "torch"
    package.mkdir()
    (package / "__init__.py").write_text(
        "import sys\n"
        "if not hasattr(sys, 'torch_was_imported') and 'mlx_lm.tokenizer_utils' in sys.modules:\n"
        "    sys.torch_was_imported = True\n"
        "class Tensor: pass\n"
    )
    (folder / "torch-2.11.0.dist-info").mkdir()
    (folder / "torch-2.11.0.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: torch\nVersion: 2.11.0\n"
    )
    done = python("-c", CODE, what, environment={"PYTHONPATH": str(folder)})
    return done.stdout + done.stderr


def test_torch_is_left_out_and_can_be_imported(tmp_path: Path) -> None:
    assert said(tmp_path, "out").split() == ["left", "out", "torch"]


def test_without_that_it_is_imported(tmp_path: Path) -> None:
    """So that the other test would fail without it; what comes of the false one is no matter."""
    assert "left out" not in said(tmp_path, "in")
