"""Pages in Markdown: a report, root cause first; and a gate's result, what failed first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mlxdoctor.confirmation import Experiment, Rerun
from mlxdoctor.diagnosis import Diagnosed
from mlxdoctor.finding import Severity
from mlxdoctor.formats import escape, gated, summary
from mlxdoctor.formats.format import Format
from mlxdoctor.gate_result import GateItem, GateResult, ItemStatus
from mlxdoctor.report import FileRead, Report

if TYPE_CHECKING:
    from markupsafe import Markup

#: Findings named in the first paragraph.
FIRST_REASONS = 4
#: Codes listed in a cell of the differential diagnosis before "and n more".
CODES_IN_A_CELL = 4
#: Items of a gate that are described, and findings of each. GitHub takes a summary of a megabyte.
DESCRIBED, FINDINGS = 40, 6
#: Rows of a table.
ROWS = 1_000


def render(report: Report, figures: Mapping[str, str] | None = None) -> str:
    """The report as Markdown.

    Every expression of the template is escaped unless a filter of this module
    made it, so that text from an artifact can't become markup by an oversight.

    Args:
        report: the report.
        figures: name of a figure -> relative path of its picture; without it
            the figures are described in words only.
    """
    import jinja2
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

    def fenced(text: str, language: str = "") -> Markup:
        return trusted(escape.fenced(text, language))

    def finalize(value: Any) -> Any:
        return value if isinstance(value, Markup) else trusted(escape.markdown(str(value)))

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("mlxdoctor.formats"),
        autoescape=True,
        finalize=finalize,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    del environment.filters["safe"]
    environment.filters |= {
        "code": lambda text: trusted(escape.code(str(text))),
        "fenced": fenced,
        "codes": lambda names: trusted(_codes(names)),
        "number": summary.number,
        "prose": prose,
        "plain": summary.plain,
        "sentence": sentence,
    }
    view = _view(report, figures or {}) | {"remedy": summary.remedy(report, prose)}
    text = environment.get_template("report.md.j2").render(view)
    return _tidied(text)


def files(report: Report) -> dict[str, bytes]:
    """The page, and the pictures that it shows."""
    if not report.figures and not report.experiments:
        return {"report.md": render(report).encode()}
    from mlxdoctor.formats.figures import draw

    pictures = draw.draw(report)
    paths = {name: draw.path_of(name) for name in pictures}
    content = {paths[name]: picture for name, picture in pictures.items()}
    return {**content, "report.md": render(report, paths).encode()}


def prior(one: Diagnosed) -> float:
    """The log-odds of a diagnosed cause before anything was seen: the score less its terms."""
    return one.score - sum(term.weight for term in one.arithmetic)


def _view(report: Report, figures: Mapping[str, str]) -> dict[str, Any]:
    from mlxdoctor.formats.figures import draw

    found = report.findings
    files = examined(report)
    by_kind: dict[str, list[Experiment]] = {}
    for one in report.experiments:
        kind = "rerun" if isinstance(one, Rerun) else one.experiment
        by_kind.setdefault(kind, []).append(one)
    return {
        "report": report,
        "verdict": report.verdict.value,
        "name": report.name,
        "outcomes": report.outcomes,
        "root": report.root,
        "withheld": report.withheld,
        "experiments": by_kind,
        "headline": summary.headline(report),
        "runner_up": report.diagnosis[1] if len(report.diagnosis) > 1 else None,
        "is_clear": report.root is not None and summary.is_clear(report),
        "answers": summary.sample_sentence(report),
        "reasons": summary.reasons(report, FIRST_REASONS),
        "seen": report.seen[: summary.SEEN],
        "learned": any(one.learned for one in report.seen),
        "coverage": summary.coverage(report),
        "useful": summary.most_useful(report) if report.planned is None else "",
        "advice": summary.advice(report),
        "know_more": summary.to_know_more(report),
        "ready": report.planned.readiness.value if report.planned is not None else "",
        "next_command": summary.next_command(report),
        "changes": summary.changes(report),
        "confirm": summary.confirm_commands(report),
        "symptoms": [one for one in found if one.severity is not Severity.INFO],
        "notes": [one for one in found if one.severity is Severity.INFO],
        "messages": {one.code: one.message for one in reversed(found)},
        "prior": prior,
        "captions": draw.captions(report),
        "titles": {name: one.title for name, one in draw.pictures().items()},
        "figure_paths": figures,
        "unit": summary.unit(report),
        "confirm_iterations": summary.CONFIRM_ITERATIONS,
        "missing": summary.missing(report),
        "left_out": summary.left_out(report),
        "files": files,
        "hashes": "\n".join(f"{one.sha256 or 'not hashed'}  {one.source}" for one in files),
    }


def examined(report: Report) -> list[FileRead]:
    """The files that were read, each once, with all that they were read for as its kind."""
    files: dict[str, list[FileRead]] = {}
    for item in report.evidence:
        files.setdefault(item.source, []).append(item)
    return [_once(source, items) for source, items in files.items()]


def _once(source: str, items: Sequence[FileRead]) -> FileRead:
    kinds = ", ".join(dict.fromkeys(one.kind for one in items))
    sha256 = next((one.sha256 for one in items if one.sha256), None)
    # What was not read whole for one purpose may have been for another.
    said = [one.note for one in items if one.note and (one.sha256 or not sha256)]
    return FileRead(kinds, source, sha256, "; ".join(dict.fromkeys(said)))


def _codes(names: Sequence[str]) -> str:
    if not names:
        return "–"
    shown = ", ".join(escape.code(name) for name in names[:CODES_IN_A_CELL])
    rest = len(names) - CODES_IN_A_CELL
    return f"{shown} and {rest} more" if rest > 0 else shown


def _tidied(text: str) -> str:
    """`text` with single blank lines outside code, and one line break at its end."""
    lines: list[str] = []
    fence = ""
    for line in text.split("\n"):
        marker = line[: len(line) - len(line.lstrip("`"))]
        if fence:
            fence = "" if line == fence else fence
        elif len(marker) >= 3:
            fence = marker
        elif not line.strip() and (not lines or not lines[-1].strip()):
            continue
        lines.append(line.rstrip() if not fence else line)
    return "\n".join(lines).strip("\n") + "\n"


def gate_page(result: GateResult) -> str:
    """The result as Markdown, with a line break at its end."""
    parts = [f"# Gate: {escape.markdown(gated.tally(result))}"]
    parts += _described(result)
    if result.items:
        parts += ["## All items", _items(result)]
    if rows := _suppressed(result):
        parts += ["## Suppressed findings", _table(["item", "finding", "by", "reason"], rows)]
    parts += _listed(
        "Let through by the policy",
        [
            f"{escape.code(one.path)}: {_codes(one.let_through)}"
            for one in result.items
            if one.let_through
        ],
    )
    parts += _listed("Not seen", [escape.markdown(one) for one in gated.unseen(result)])
    parts += _listed("The policy", [escape.markdown(one) for one in result.notices])
    parts += _listed("Not examined", [escape.code(one) for one in result.unfinished])
    source = f"the policy in {escape.code(result.policy)}" if result.policy else "the default rules"
    parts.append(
        f"Judged by {source}. `mlxdoctor diagnose` makes a report about one item, "
        "`mlxdoctor explain` says what a code means."
    )
    return "\n\n".join(parts) + "\n"


def _described(result: GateResult) -> list[str]:
    items = gated.not_passed(result)
    parts = []
    for item in items[:DESCRIBED]:
        known = gated.named_cause(item)
        about = f": {escape.markdown(summary.lowered(known))}" if known else ""
        parts.append(f"## {escape.code(item.path)} {_verb(item.status)}{about}")
        parts.append("\n".join(_findings(item) + _reasons(item)))
    if len(items) > DESCRIBED:
        parts.append(f"{len(items) - DESCRIBED:,} more did not pass; the table names them.")
    return [one for one in parts if one]


def _verb(status: ItemStatus) -> str:
    return status.value if status is ItemStatus.FAILED else f"is {status.value}"


def _findings(item: GateItem) -> list[str]:
    failing = [one.finding for one in item.findings if one.ruling == "fails"]
    lines = []
    for one in failing[:FINDINGS]:
        fix = f" {escape.markdown(summary.sentence(one.fix))}" if one.fix else ""
        message = escape.markdown(summary.sentence(one.message))
        lines.append(f"- {escape.code(one.code)}: {message}{fix}")
    if len(failing) > FINDINGS:
        lines.append(f"- and {len(failing) - FINDINGS} more")
    return lines


def _reasons(item: GateItem) -> list[str]:
    """The reasons that are no findings."""
    failing = sum(one.ruling == "fails" for one in item.findings)
    return [
        f"- {escape.markdown(one.removeprefix(f'{item.path}: '))}" for one in item.reasons[failing:]
    ]


def _items(result: GateResult) -> str:
    rows = []
    for item in gated.worst_first(result)[:ROWS]:
        noted = sum(one.ruling == "noted" for one in item.findings)
        failing = [one.finding.code for one in item.findings if one.ruling == "fails"]
        rows.append(
            [
                escape.code(item.path),
                item.status.value,
                ", ".join(escape.code(one) for one in dict.fromkeys(failing[:FINDINGS])),
                str(noted),
                f"{item.seconds:.1f} s",
            ]
        )
    table = _table(["item", "status", "failing", "notes", "time"], rows)
    left = len(result.items) - ROWS
    return f"{table}\n\nand {left:,} more" if left > 0 else table


def _suppressed(result: GateResult) -> list[list[str]]:
    rows = [
        [
            escape.code(item.path),
            escape.code(one.finding.code),
            one.suppressed_by,
            escape.markdown(one.reason),
        ]
        for item in result.items
        for one in item.findings
        if one.suppressed_by is not None
    ]
    left = len(rows) - ROWS
    return [*rows[:ROWS], [f"and {left:,} more", "", "", ""]] if left > 0 else rows


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    from tabulate import tabulate

    return tabulate(rows, header, tablefmt="pipe", disable_numparse=True)


def _listed(title: str, lines: Sequence[str]) -> list[str]:
    if not lines:
        return []
    shown = [f"- {one}" for one in lines[:ROWS]]
    if len(lines) > ROWS:
        shown.append(f"- and {len(lines) - ROWS:,} more")
    return [f"## {title}", "\n".join(shown)]


FORMAT = Format("markdown", "md", report=render, gate=gate_page, files=files)
