"""One report in the formats of code hosts."""

from __future__ import annotations

import json

import pytest

from mlxdoctor.api import diagnose
from mlxdoctor.formats import sarif
from mlxdoctor.gate.weigh import alone
from tests.conftest import RUNS


@pytest.mark.parametrize(("fail_on", "failing"), [("error", {"error"}), ("never", set())])
def test_what_fails_is_an_error_there(fail_on: str, failing: set[str]) -> None:
    report = diagnose([RUNS / "collapse-frequent-token"], allow_model=False)
    severities = [one.severity.value for one in report.findings]
    assert {"error", "info"} <= set(severities)
    (run,) = json.loads(sarif.render(alone(report, fail_on)))["runs"]
    levels = [one["level"] for one in run["results"]]
    assert levels.count("error") == sum(one in failing for one in severities)
