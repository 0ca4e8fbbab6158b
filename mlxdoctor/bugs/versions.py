"""Versions of packages: their order, and what a run tells of those it was made with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from packaging.version import InvalidVersion, Version

from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.training_log import TrainingLog

#: Characters of a version; longer texts are none.
_LONGEST = 64
#: A key that `mlx_lm.lora` writes into every adapter_config.json -> the first version that
#: does: read in the released packages, in the order of the versions.
_WRITTEN_SINCE = (
    ("num_layers", "0.19.0"),
    ("optimizer_config", "0.22.0"),
    ("grad_accumulation_steps", "0.28.3"),
    ("clear_cache_threshold", "0.31.2"),
    ("trust_remote_code", "0.32.0"),
)
#: What `mlx_lm.lora` writes in every version, and hardly anyone else does.
_WRITTEN_ALWAYS = frozenset(
    {"adapter_path", "resume_adapter_file", "save_every", "test", "test_batches", "train"}
)
#: Keys of trainers that grew from it and write the same file.
_OTHER_TRAINERS = frozenset({"train_mode", "train_type", "beta"})
#: The first version that prints a table instead of "Iter 10: Train loss ...".
_TABLE_SINCE = "0.32.0"


def parse_version(text: str) -> Version | None:
    """A version as Python packages write it (PEP 440); None where the text is none."""
    try:
        return Version(text) if len(text) <= _LONGEST else None
    except InvalidVersion:
        return None


@dataclass(frozen=True)
class KnownVersion:
    """What is known of a package's version: the version itself, or bounds.

    Attributes:
        since: it is this or a later one; None where nothing is known.
        below: it is an earlier one; None where nothing is known.
        exact: the version; None where only the bounds are known.
        source: where that is from, as a clause.
    """

    since: Version | None
    below: Version | None
    exact: Version | None
    source: str

    def __str__(self) -> str:
        if self.exact is not None:
            return str(self.exact)
        bounds = [f"{self.since} or later"] if self.since is not None else []
        bounds += [f"earlier than {self.below}"] if self.below is not None else []
        return ", ".join(bounds)


@dataclass(frozen=True)
class Affected:
    """The versions of a package that have a bug.

    Attributes:
        package: the package's name.
        since: the first that has it; None for the first of all.
        fixed: the first that no longer has it; None while there is none.
    """

    package: str
    since: Version | None
    fixed: Version | None

    def __str__(self) -> str:
        bounds = [f"since {self.since}"] if self.since is not None else []
        bounds.append(f"fixed in {self.fixed}" if self.fixed is not None else "not fixed yet")
        return f"{self.package}, {', '.join(bounds)}"

    def holds(self, known: KnownVersion | None) -> bool | None:
        """Whether a version has the bug; None where that cannot be told.

        A pre-release comes before its release: it has what the release fixes.
        """
        if known is None:
            return None
        if known.exact is not None:
            is_since = self.since is None or known.exact >= self.since
            return is_since and (self.fixed is None or known.exact < self.fixed)
        since, below = known.since, known.below
        if self.fixed is not None and since is not None and since >= self.fixed:
            return False
        if self.since is not None and below is not None and below <= self.since:
            return False
        begun = self.since is None or (since is not None and since >= self.since)
        left = self.fixed is None or (below is not None and below <= self.fixed)
        return True if begun and left else None


def known_versions(
    config: TrainingConfig | None, log: TrainingLog | None
) -> Mapping[str, KnownVersion]:
    """What is known of the versions of mlx and mlx-lm that a run was made with.

    A version that the log names comes first, then the bounds that the keys of an
    adapter_config.json by `mlx_lm.lora` and the form of the log give.
    """
    known: dict[str, KnownVersion] = {}
    for package in ("mlx", "mlx-lm"):
        text = log.versions.get(package) if log is not None else None
        version = parse_version(text) if text is not None else None
        if version is not None:
            known[package] = KnownVersion(None, None, version, "named in the log")
        elif package == "mlx-lm" and (bounds := _bounds(config, log)) is not None:
            known[package] = bounds
    return known


def _bounds(config: TrainingConfig | None, log: TrainingLog | None) -> KnownVersion | None:
    if config is None or not config.values.keys() >= _WRITTEN_ALWAYS:
        return None
    if config.values.keys() & _OTHER_TRAINERS:
        return None
    since = below = None
    marks: list[str] = []
    for key, first in _WRITTEN_SINCE:
        if key not in config.values:
            # A later key that is there all the same was written by the user.
            below, marks = first, [*marks, f"does not write {key}"]
            break
        since, marks = first, [f"writes {key}"]
    if log is not None and log.format.startswith("table"):
        since, below, marks = _TABLE_SINCE, None, ["prints a table"]
    bounds = [Version(one) if one is not None else None for one in (since, below)]
    return KnownVersion(bounds[0], bounds[1], None, f"mlx_lm.lora {' and '.join(marks)}")
