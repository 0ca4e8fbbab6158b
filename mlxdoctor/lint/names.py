"""Dotted names that are the same thing: MLX and mlx-lm re-export what they define.

`mlx_lm.load` is `mlx_lm.utils.load`, `mlx.nn.value_and_grad` is `mlx.nn.utils.value_and_grad`: what
is defined further down is offered further up, and no two of one part are called the same.
"""

from __future__ import annotations

import re

#: `from .backend import mx`: nobody calls anything else so.
_OWN_MX = re.compile(r"^\.++(?:\w+\.)*mx(?=\.|$)")
_IMPORTS_MLX = re.compile(
    r"^\s*(?:from\s+mlx|import\s+(?:[\w. ,]+,\s*)?mlx|from\s+\.[\w.]*\s+import\s[^\n]*\bmx\b)", re.M
)
_IMPORTS_OWN = re.compile(r"^\s*from\s+(?:\.|\S+\s+import\s+\*)", re.M)
_IMPORTS_OTHER_ARRAYS = re.compile(
    r"^\s*(?:import|from)\s+(?:torch|tensorflow|jax|keras|tinygrad|paddle|numpy)\b", re.M
)


def uses_mlx(text: str) -> bool:
    """Whether a source imports MLX or a package made for it.

    A source that names MLX, imports from its own package and imports no other arrays may have MLX
    from there.
    """
    if _IMPORTS_MLX.search(text):
        return True
    names_mlx = "mlx" in text or "mx." in text
    return bool(names_mlx and _IMPORTS_OWN.search(text) and not _IMPORTS_OTHER_ARRAYS.search(text))


def imported_name(name: str) -> str:
    """The dotted name of an import as rules write it; a relative one begins with a dot."""
    return _OWN_MX.sub("mlx.core", name, count=1)


def canonical(name: str) -> str:
    """One name for a thing, wherever it is imported from: `mlx_lm.load` for `mlx_lm.utils.load`."""
    module, _, last = name.rpartition(".")
    parts = module.split(".")
    return ".".join([*parts[: 2 if parts[0] == "mlx" else 1], last]) if module else name
