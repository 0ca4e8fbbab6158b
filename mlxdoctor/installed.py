"""Which versions of packages are installed here."""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, version

#: What a source tree says that was not installed, and so has no version.
UNKNOWN = "0+unknown"


@cache  # a gate asks for every report, and it can't change meanwhile
def version_here(package: str = "mlxdoctor") -> str:
    """The version of a package; `UNKNOWN` where nothing says it."""
    try:
        return version(package)
    except PackageNotFoundError:
        return UNKNOWN
