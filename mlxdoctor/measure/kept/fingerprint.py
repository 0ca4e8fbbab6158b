"""A hash of what evidence says, whatever files it was read from and wherever they lie."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np


def fingerprint(evidence: Any) -> str:
    """The hash of a frozen dataclass, its sources left aside; empty where a part has none.

    Rows are made of files by code: with the same files, other code may make others.
    """
    digest = hashlib.sha256()
    try:
        for one in fields(evidence):
            if one.name != "sources":
                digest.update(f"{one.name}=".encode())
                _add(digest, getattr(evidence, one.name))
    except TypeError:
        return ""
    return digest.hexdigest()


def _add(digest: Any, value: Any) -> None:
    if isinstance(value, np.ndarray):
        digest.update(f"{value.dtype.str}{value.shape}".encode())
        digest.update(np.ascontiguousarray(value).tobytes())
    elif isinstance(value, str | int | float | bool | None):
        digest.update(f"{type(value).__name__}:{value!r};".encode())
    elif isinstance(value, tuple | list):
        digest.update(f"{len(value)}[".encode())
        for one in value:
            _add(digest, one)
    elif isinstance(value, Mapping):
        _add(digest, list(value.items()))
    elif is_dataclass(value) and not isinstance(value, type):
        _add(digest, [getattr(value, one.name) for one in fields(value)])
    else:
        raise TypeError(f"a {type(value).__name__} may hold anything")
