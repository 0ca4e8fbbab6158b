"""A file to write logs into."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.checks.log_evidence import LogWriter


@pytest.fixture
def logs(tmp_path: Path) -> LogWriter:
    return LogWriter(tmp_path)
