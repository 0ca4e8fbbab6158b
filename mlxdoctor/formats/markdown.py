"""Pages in Markdown: a report, root cause first; and a gate's result, what failed first.

Every expression of a template is escaped unless a filter of this module made it, so that text from
an artifact can't become markup by an oversight.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from mlxdoctor.finding import Severity, some_of
from mlxdoctor.formats import escape, figures, gated, summary
from mlxdoctor.formats.format import Format
from mlxdoctor.report import FileRead, Report

if TYPE_CHECKING:
    from jinja2 import Environment

#: Codes listed in a cell of a table before "and n more".
CODES_IN_A_CELL = 4


def render(report: Report, paths: Mapping[str, str] | None = None) -> str:
    """The report as Markdown.

    Args:
        paths: name of a figure -> relative path of its picture; without it
            the figures are described in words only.
    """
    files = examined(report)
    view = {
        "report": report,
        "is_poor": summary.is_poor(report),
        "figure_paths": paths or {},
        "captions": figures.captions(report),
        "titles": {name: figure.title for name, figure in figures.FIGURES.items()},
        "files": files,
        "symptoms": [one for one in report.findings if one.severity is not Severity.INFO],
        "has_nats": any("nats" in f"{one.message} {one.expected}" for one in report.findings),
        "notes": [one for one in report.findings if one.severity is Severity.INFO],
    }
    return _rendered("report.md.j2", view)


def files(report: Report) -> dict[str, bytes]:
    """The page, and the pictures that it shows."""
    pictures = figures.draw(report)
    paths = {name: figures.path_of(name) for name in pictures}
    page = {"report.md": render(report, paths).encode()}
    return {paths[name]: picture for name, picture in pictures.items()} | page


def examined(report: Report) -> list[FileRead]:
    """The files that were read, each once, with all that they were read for as its kind."""
    by_source: dict[str, list[FileRead]] = {}
    for file in report.evidence:
        by_source.setdefault(file.source, []).append(file)
    merged = []
    for source, readings in by_source.items():
        kinds = ", ".join(dict.fromkeys(file.kind for file in readings))
        sha256 = next((file.sha256 for file in readings if file.sha256), None)
        # What was not read whole for one purpose may have been for another.
        notes = [file.note for file in readings if file.note and (file.sha256 or not sha256)]
        merged.append(FileRead(kinds, source, sha256, "; ".join(dict.fromkeys(notes))))
    return merged


def templates(finalize: Callable[[Any], Any] | None = None) -> Environment:
    """The templates of this package; `finalize` is called with what each expression gives."""
    import jinja2

    return jinja2.Environment(
        loader=jinja2.PackageLoader("mlxdoctor.formats"),
        autoescape=True,
        finalize=finalize,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


@cache
def _environment() -> Environment:
    from markupsafe import Markup

    def trusted(text: str) -> Markup:
        return Markup(text)  # the only place that declares text safe

    def sentence(text: str) -> str:
        # What was safe stays safe: only a capital and a stop are added.
        shown = summary.sentence(str(text))
        return trusted(shown) if isinstance(text, Markup) else shown

    def prose(text: str) -> Markup:
        # The knowledge base is part of the program, and may use Markdown.
        return trusted(text.strip())

    environment = templates(
        lambda value: value if isinstance(value, Markup) else trusted(escape.markdown(str(value)))
    )
    del environment.filters["safe"]
    environment.filters |= {
        "code": lambda text: trusted(escape.code(str(text))),
        "codes": lambda names: trusted(
            some_of([escape.code(name) for name in names], CODES_IN_A_CELL) or "–"
        ),
        "fenced": lambda *text: trusted(escape.fenced(*text)),
        "lowered": summary.lowered,
        "number": summary.number,
        "plain": summary.plain,
        "prose": prose,
        "sentence": sentence,
    }
    environment.globals |= {"summary": summary, "gated": gated, "prose": prose}
    return environment


def _rendered(template: str, view: Mapping[str, Any]) -> str:
    """A page with single blank lines outside code, and one line break at its end."""
    lines: list[str] = []
    fence = ""
    for line in _environment().get_template(template).render(view).split("\n"):
        marker = line[: len(line) - len(line.lstrip("`"))]
        if fence:
            fence = "" if line == fence else fence
        elif len(marker) >= 3:
            fence = marker
        elif not line.strip() and (not lines or not lines[-1].strip()):
            continue
        lines.append(line.rstrip() if not fence else line)
    return "\n".join(lines).strip("\n") + "\n"


FORMAT = Format(
    "markdown",
    "md",
    report=render,
    gate=lambda result: _rendered("gate.md.j2", {"result": result}),
    files=files,
)
