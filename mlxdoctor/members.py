"""The modules of a package: how everything that one file adds is found."""

import importlib
import pkgutil
from types import ModuleType


def modules_of(package: str) -> list[ModuleType]:
    """Every module that lies in the package itself, imported, by name; packages in it are not."""
    return [
        importlib.import_module(f"{package}.{info.name}")
        for info in pkgutil.iter_modules(importlib.import_module(package).__path__)
        if not info.ispkg
    ]
