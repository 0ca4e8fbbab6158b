"""mlx-lm without PyTorch beside it.

mlx-lm imports transformers for its tokenizers, and transformers imports PyTorch where that is
installed, of which neither has any use here. It takes ten seconds on a slow machine. Some versions
of transformers also list the files of every package that is installed: four seconds there.
"""

import importlib.util
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


def leave_torch_out() -> None:
    """Let transformers, when it is first imported, find no PyTorch.

    Only for a process of our own: what else in it asked transformers for a model of PyTorch
    would get none. `import torch` itself works as before.
    """
    if "transformers" not in sys.modules and "torch" not in sys.modules:
        sys.meta_path.insert(0, _Finder())


class _OwnNames(dict[str, list[str]]):
    """Package -> the names of its distributions, taken for the package's own."""

    def __missing__(self, package: str) -> list[str]:
        return [package]


class _Finder:
    """Finds transformers as everybody does, once, and has it imported without PyTorch."""

    def find_spec(self, name: str, *_: object) -> ModuleSpec | None:
        if name != "transformers":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            _hide_torch_in(spec.loader)
        return spec


def _hide_torch_in(loader: Any) -> None:
    execute = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        if "torch" in sys.modules:
            execute(module)
            return
        from importlib import metadata

        listing, metadata.packages_distributions = metadata.packages_distributions, _OwnNames
        # What stands for a module as None can't be imported, and is not found either.
        sys.modules["torch"] = None  # type: ignore[assignment]
        try:
            execute(module)
            # What it says once, it says again.
            is_available = getattr(module, "is_torch_available", None)
            if is_available is not None:
                is_available()
        finally:
            del sys.modules["torch"]
            metadata.packages_distributions = listing

    loader.exec_module = exec_module
