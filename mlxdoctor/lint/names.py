"""Dotted names that are the same thing: MLX and mlx-lm re-export what they define.

`mlx_lm.load` is `mlx_lm.utils.load`, `mlx.nn.value_and_grad` is `mlx.nn.utils.value_and_grad`:
what is defined further down is offered further up. mlx-lm's scripts are imported from as well, so
that in it the last part alone decides.
"""

from __future__ import annotations

import re

#: Packages whose names are told apart by their last part: no two public ones are alike.
_FLAT = ("mlx_lm",)
#: `from .backend import mx`: nobody calls anything else so.
_OWN_MX = re.compile(r"^\.++(?:\w+\.)*mx(?=\.|$)")
_MADE_FOR_MLX = re.compile(r"mlx(?:[._].*)?")


def imported_name(name: str) -> str:
    """The dotted name of an import as rules write it; relative ones begin with a dot."""
    return _OWN_MX.sub("mlx.core", name, count=1) if name.startswith(".") else name


def is_mlx(name: str) -> bool:
    """Whether a dotted name is MLX's, or of a package made for it: `mlx_lm`, `mlx_vlm`."""
    return _MADE_FOR_MLX.fullmatch(name) is not None


def is_same(name: str, wanted: str) -> bool:
    """Whether two dotted names are the same thing.

    Args:
        wanted: a full name; `*.name` for one of that last part from anywhere, copies included.
    """
    if name == wanted:
        return True
    where, _, last = name.rpartition(".")
    wanted_where, _, wanted_last = wanted.rpartition(".")
    if last != wanted_last:
        return False
    if wanted_where == "*":
        return True
    top = where.partition(".")[0]
    if not top or top != wanted_where.partition(".")[0]:
        return False
    within, wanted_within = f"{where}.", f"{wanted_where}."
    return top in _FLAT or within.startswith(wanted_within) or wanted_within.startswith(within)
