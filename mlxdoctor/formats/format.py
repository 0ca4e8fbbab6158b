"""What a format of reports is; each module of this package that has a `FORMAT` adds one."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from mlxdoctor.gate_result import GateResult
from mlxdoctor.report import Report
from mlxdoctor.tables import modules_of


@dataclass(frozen=True)
class Format:
    """One way to show a report, a gate's result, or both: complete in itself, as text.

    Attributes:
        name: what `--format` and `--stdout` call it.
        suffix: of its file, without the first dot; "" where it is only printed.
        report, gate: what it makes of a report, and of a gate's result; None where it shows none.
        files: the files of a report, by their names, where they are more than the text alone.
    """

    name: str
    suffix: str = ""
    report: Callable[[Report], str] | None = None
    gate: Callable[[GateResult], str] | None = None
    files: Callable[[Report], Mapping[str, bytes]] | None = None


@cache
def formats() -> Mapping[str, Format]:
    """Every format, by its name."""
    modules = modules_of("mlxdoctor.formats")
    return {module.FORMAT.name: module.FORMAT for module in modules if hasattr(module, "FORMAT")}


def files_of(shown: Report | GateResult, *names: str) -> dict[str, bytes]:
    """The files of a report or a gate's result in these formats, by their names."""
    files: dict[str, bytes] = {}
    for name in names:
        chosen = formats()[name]
        stem = "report" if isinstance(shown, Report) else "gate"
        if isinstance(shown, Report) and chosen.files is not None:
            files |= chosen.files(shown)
        else:
            files[f"{stem}.{chosen.suffix}"] = text_of(shown, name).encode()
    return files


def text_of(shown: Report | GateResult, name: str) -> str:
    """A report or a gate's result in one format, with a line break at its end."""
    chosen = formats()[name]
    render: Any = chosen.report if isinstance(shown, Report) else chosen.gate
    if render is None:
        raise ValueError(f"the format {name} shows no {type(shown).__name__}")
    return str(render(shown))
