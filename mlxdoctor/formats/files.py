"""The files of a report, by their names in its folder."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from mlxdoctor.formats import json_format, markdown

#: Figure -> its file, relative to the report.
FIGURE_PATHS: Mapping[str, str] = MappingProxyType(
    {
        name: f"figures/{name}.png"
        for name in ("loss", "drift", "checkpoints", "tokens", "labels", "experiments")
    }
)
#: Format -> its file.
REPORT_PATHS: Mapping[str, str] = MappingProxyType(
    {"markdown": "report.md", "html": "report.html", "json": "report.json"}
)


def render(data: Mapping[str, Any], report_format: str) -> str:
    """The report in one format, complete in itself: only HTML holds its pictures."""
    if report_format == "html":
        from mlxdoctor.formats import html_format

        return html_format.render(data)
    return json_format.render(data) if report_format == "json" else markdown.render(data)


def report_files(data: Mapping[str, Any], formats: Iterable[str]) -> dict[str, bytes]:
    """Relative path -> content; the pictures come with the Markdown that shows them."""
    files: dict[str, bytes] = {}
    for one in dict.fromkeys(formats):
        if one == "markdown" and (any(data["figures"].values()) or data["experiments"]):
            from mlxdoctor.formats.figures import draw as figures

            pictures = figures.draw(data["figures"], data["experiments"])
            files |= {FIGURE_PATHS[name]: picture for name, picture in pictures.items()}
            paths = {name: FIGURE_PATHS[name] for name in pictures}
            files[REPORT_PATHS[one]] = markdown.render(data, paths).encode()
        else:
            files[REPORT_PATHS[one]] = render(data, one).encode()
    return files
