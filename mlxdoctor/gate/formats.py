"""The formats of a gate's result, by their names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from mlxdoctor.formats.gate_result import GateResult

#: Format -> its file.
PATHS: Mapping[str, str] = MappingProxyType(
    {
        "markdown": "gate.md",
        "json": "gate.json",
        "sarif": "gate.sarif",
        "junit": "gate.junit.xml",
    }
)
#: What can be printed: `github` is read from the log of a job, and never from a file.
PRINTED = ("terminal", *PATHS, "github")


def render(result: GateResult, name: str) -> str:
    """The result in one format, with a line break at its end."""
    if name == "terminal":
        from mlxdoctor.gate import terminal

        return terminal.render(result)
    if name == "markdown":
        from mlxdoctor.gate import markdown

        return markdown.render(result)
    if name == "json":
        from mlxdoctor.gate import json_format

        return json_format.render(result)
    if name == "sarif":
        from mlxdoctor.formats import sarif

        return sarif.render(result)
    if name == "junit":
        from mlxdoctor.formats import junit

        return junit.render(result)
    from mlxdoctor.formats import annotations

    return annotations.render(result)


def files(result: GateResult, names: Iterable[str]) -> dict[str, bytes]:
    """Relative path -> content."""
    return {PATHS[name]: render(result, name).encode() for name in dict.fromkeys(names)}
