"""Which versions of packages are installed here."""

import re
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution

#: What a source tree says that was not installed, and so has no version.
UNKNOWN = "0+unknown"
_PACKAGES = ("mlxdoctor", "mlx", "mlx-lm", "numpy", "transformers")


@cache  # a gate asks for every report, and it can't change meanwhile
def version_here(package: str = "mlxdoctor") -> str:
    """The version of a package; `UNKNOWN` where nothing says it."""
    try:
        found = distribution(package)
    except PackageNotFoundError:
        return UNKNOWN
    # To have all of it parsed as an e-mail takes as long as the rest. Some installations have
    # PKG-INFO in its place.
    stated = found.read_text("METADATA") or found.read_text("PKG-INFO") or ""
    match = re.search(r"^Version: *(.+)$", stated, re.MULTILINE)
    return match[1].strip() if match else UNKNOWN


def versions_here() -> dict[str, str]:
    """The versions here of the packages that matter, by name; none of them is imported."""
    return {name: number for name in _PACKAGES if (number := version_here(name)) != UNKNOWN}
