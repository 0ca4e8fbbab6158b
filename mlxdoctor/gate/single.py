"""One report in the formats of code hosts, as the gate gives them for many."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from pathlib import Path, PurePath
from types import MappingProxyType
from typing import Any

from mlxdoctor.formats.gate_result import GateResult
from mlxdoctor.formats.gated import main_sources
from mlxdoctor.gate import formats
from mlxdoctor.gate.examine import Examined
from mlxdoctor.gate.policy import Policy, Rules
from mlxdoctor.gate.weigh import judge

#: Format -> its file.
PATHS: Mapping[str, str] = MappingProxyType({"sarif": "report.sarif", "junit": "report.junit.xml"})
#: What can be printed.
PRINTED = (*PATHS, "github")


def render(data: Mapping[str, Any], name: str, fail_on: str = "error") -> str:
    """A report in one of `PRINTED`.

    Args:
        fail_on: the least severity that fails it: "info", "warning", "error" or "never".
    """
    return formats.render(as_result(data, fail_on), name)


def as_result(data: Mapping[str, Any], fail_on: str = "error") -> GateResult:
    """The report as an item of the gate."""
    sources = main_sources(data)
    path = str(PurePath(sources[0]).parent) if sources else "."
    if path == ".":  # loose files in the current folder
        path = sources[0] if sources else data["name"]
    examined = Examined(data, "", sum(one["seconds"] for one in data["outcomes"]))
    policy = Policy(Path.cwd(), rules=Rules(fail_on=fail_on))
    judgement = judge(path, examined, policy, frozenset(), date.today())
    return GateResult((judgement.item,), policy=None)
