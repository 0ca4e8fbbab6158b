from pathlib import Path

import pytest

from tests.evidence.log_tables import Write


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def _write(text: str, name: str = "train.log", encoding: str = "utf-8") -> Path:
        path = tmp_path / name
        path.write_bytes(text.encode(encoding))
        return path

    return _write
