"""Which versions of packages are installed here."""

from functools import cache
from importlib.metadata import PackageNotFoundError, version

#: What a source tree says that was not installed, and so has no version.
UNKNOWN = "0+unknown"
_PACKAGES = ("mlxdoctor", "mlx", "mlx-lm", "numpy", "transformers")


@cache  # a gate asks for every report, and it can't change meanwhile
def version_here(package: str = "mlxdoctor") -> str:
    """The version of a package; `UNKNOWN` where nothing says it."""
    try:
        return version(package) or UNKNOWN
    except PackageNotFoundError:
        return UNKNOWN


def versions_here() -> dict[str, str]:
    """The versions here of the packages that matter, by name; none of them is imported."""
    return {name: number for name in _PACKAGES if (number := version_here(name)) != UNKNOWN}
