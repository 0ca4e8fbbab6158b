"""A source tree that was not installed has no version, and works."""

from __future__ import annotations

import importlib.metadata

import pytest

from mlxdoctor.installed import UNKNOWN, version_here


def test_versions() -> None:
    assert version_here() == importlib.metadata.version("mlxdoctor")
    assert version_here("numpy") == importlib.metadata.version("numpy")
    assert version_here("no-such-package") == UNKNOWN


def test_a_report_of_a_source_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    from mlxdoctor.api import diagnose
    from tests.conftest import LOGS

    def missing(package: str) -> str:
        raise importlib.metadata.PackageNotFoundError(package)

    monkeypatch.setattr("mlxdoctor.installed.version", missing)
    version_here.cache_clear()
    report = diagnose([LOGS / "mlx-vlm-795-orpo.log"], allow_model=False)
    version_here.cache_clear()
    assert report.version == UNKNOWN
