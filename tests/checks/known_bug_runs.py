"""Runs to look for known bugs in: copies of fixture runs, changed as a bug would have."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from mlxdoctor.api import run_checks
from mlxdoctor.finding import Finding, Outcome, Status
from mlxdoctor.run import Run
from tests.checks.data_evidence import BASE, DATA
from tests.conftest import RUNS, check_called


def outcome(folder: Path, **options: Any) -> Outcome:
    if folder.parent != RUNS:
        options = {"base": BASE, "data": DATA / "geography", **options}
    run = Run.discover([folder], allow_model=False, **options)
    (found,) = run_checks([check_called("known-bugs")], run)
    assert found.status is not Status.CRASHED, found.reason
    return found


def findings(folder: Path, **options: Any) -> dict[str, Finding]:
    """The findings by the bug's name."""
    return {one.code.split(".")[1]: one for one in outcome(folder, **options).findings}


def change(folder: Path, **values: Any) -> None:
    """Change a run's configuration; a key with None is removed."""
    path = folder / "adapter_config.json"
    kept = {key: one for key, one in json.loads(path.read_text()).items() if key not in values}
    stated = {key: one for key, one in values.items() if one is not None}
    path.write_text(json.dumps(kept | stated))
