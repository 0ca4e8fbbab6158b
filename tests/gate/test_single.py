"""One report in the formats of code hosts."""

from __future__ import annotations

import json

import pytest

from mlxdoctor.api import diagnose
from mlxdoctor.gate import single
from tests.conftest import RUNS


@pytest.mark.parametrize(("fail_on", "failing"), [("error", {"error"}), ("never", set())])
def test_what_fails_is_an_error_there(fail_on: str, failing: set[str]) -> None:
    report = diagnose([RUNS / "collapse-frequent-token"], allow_model=False).to_dict()
    severities = [one["severity"] for part in report["outcomes"] for one in part["findings"]]
    assert {"error", "info"} <= set(severities)
    (run,) = json.loads(single.render(report, "sarif", fail_on))["runs"]
    levels = [one["level"] for one in run["results"]]
    assert levels.count("error") == sum(one in failing for one in severities)


def test_the_file_names_are_those_of_the_report() -> None:
    assert set(single.PATHS) < set(single.PRINTED)
    assert all(name.startswith("report.") for name in single.PATHS.values())
