"""The report as Markdown, root cause first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from mlxdoctor.formats import escape, summary
from mlxdoctor.formats.model import findings

if TYPE_CHECKING:
    from markupsafe import Markup

#: Findings named in the first paragraph.
FIRST_REASONS = 4
#: Codes listed in a cell of the differential diagnosis before "and n more".
CODES_IN_A_CELL = 4
#: What a picture is called where it can't be seen; its caption says what it shows.
FIGURE_TITLES: Mapping[str, str] = MappingProxyType(
    {
        "loss": "The loss over the run",
        "drift": "The size of the update by layer and module",
        "checkpoints": "The size of the update at each checkpoint",
        "tokens": "The most frequent tokens in the outputs",
        "labels": "One training row and its labels",
    }
)


def render(data: Mapping[str, Any], figures: Mapping[str, str] | None = None) -> str:
    """The report as Markdown.

    Every expression of the template is escaped unless a filter of this module
    made it, so that text from an artifact can't become markup by an oversight.

    Args:
        data: as `model.ReportData` describes it.
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
        # The knowledge base is part of the program, and may use Markdown.
        "prose": lambda text: trusted(text.strip()),
        "plain": summary.plain,
        "sentence": sentence,
    }
    text = environment.get_template("report.md.j2").render(_view(data, figures or {}))
    return _tidied(text)


def prior(entry: Mapping[str, Any]) -> float:
    """The log-odds of a diagnosed cause before anything was seen: the score less its terms."""
    return float(entry["score"] - sum(term["weight"] for term in entry["arithmetic"]))


def _view(data: Mapping[str, Any], figures: Mapping[str, str]) -> dict[str, Any]:
    found = findings(data)
    cause = summary.root_cause(data)
    files = examined(data)
    by_status: dict[str, int] = {}
    for outcome in data["outcomes"]:
        by_status[outcome["status"]] = by_status.get(outcome["status"], 0) + 1
    return {
        **data,
        "headline": summary.headline(data),
        "root": cause,
        "runner_up": data["diagnosis"][1] if len(data["diagnosis"]) > 1 else None,
        "is_clear": cause is not None and summary.is_clear(data),
        "answers": summary.sample_sentence(data),
        "reasons": summary.reasons(data, FIRST_REASONS),
        "changes": summary.changes(data),
        "confirm": summary.confirm_commands(data),
        "symptoms": [one for one in found if one["severity"] != "info"],
        "notes": [one for one in found if one["severity"] == "info"],
        "messages": {one["code"]: one["message"] for one in reversed(found)},
        "by_status": by_status,
        "prior": prior,
        "captions": captions(data["figures"]),
        "figure_paths": figures,
        "confirm_iterations": summary.CONFIRM_ITERATIONS,
        "missing": summary.missing(data),
        "titles": FIGURE_TITLES,
        "files": files,
        "hashes": "\n".join(f"{one['sha256'] or 'not hashed'}  {one['source']}" for one in files),
    }


def examined(data: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The files that were read, each once, with all that they were read for."""
    files: dict[str, dict[str, Any]] = {}
    for item in data["run"]["evidence"]:
        one = files.setdefault(
            item["source"], {"source": item["source"], "kinds": [], "sha256": None, "note": ""}
        )
        if item["kind"] not in one["kinds"]:
            one["kinds"].append(item["kind"])
        one["sha256"] = one["sha256"] or item["sha256"]
        one["note"] = "" if one["sha256"] else item["note"]
    return list(files.values())


def captions(figures: Mapping[str, Any]) -> dict[str, str]:
    """What each figure shows, in words with its figures, for those that have data."""
    described: dict[str, str] = {}
    if figures["loss"] is not None:
        described["loss"] = _loss_caption(figures["loss"])
    if figures["drift"] is not None:
        described["drift"] = _drift_caption(figures["drift"])
    if figures["checkpoints"] is not None:
        described["checkpoints"] = _checkpoints_caption(figures["checkpoints"])
    if figures["tokens"] is not None:
        described["tokens"] = _tokens_caption(figures["tokens"])
    if figures["labels"] is not None:
        described["labels"] = _labels_caption(figures["labels"])
    return described


def _loss_caption(loss: Mapping[str, Any]) -> str:
    parts = []
    for name, key in (("training loss", "train"), ("validation loss", "val")):
        curve = loss[key]
        if curve is None or not len(curve["values"]):
            continue
        values, iterations = curve["values"], curve["iterations"]
        finite = [
            (value, at)
            for value, at in zip(values, iterations, strict=True)
            if summary.is_finite(value)
        ]
        text = f"{name} {summary.number(values[0])} at {loss['axis']} {iterations[0]:,}"
        if finite:
            lowest, at = min(finite)
            text += f", lowest {summary.number(lowest)} at {at:,}"
        text += f", last {summary.number(values[-1])} at {iterations[-1]:,}"
        parts.append(text)
    if loss["onset"] is not None:
        parts.append(f"it goes wrong at {loss['axis']} {loss['onset']:,}")
    parts += [f"{one['label']} {summary.number(one['value'])}" for one in loss["floors"]]
    return summary.sentence("Loss in nats a token: " + "; ".join(parts))


def _drift_caption(drift: Mapping[str, Any]) -> str:
    cells = [
        (value, row, column)
        for row, values in zip(drift["rows"], drift["values"], strict=True)
        for column, value in zip(drift["columns"], values, strict=True)
        if summary.is_finite(value)
    ]
    text = f"Size of the update ({drift['quantity']}) by layer and module"
    if cells:
        largest, row, column = max(cells)
        smallest = min(cells)[0]
        text += f": from {summary.number(smallest)} to {summary.number(largest)} ({row}, {column})"
    return summary.sentence(text)


def _checkpoints_caption(saved: Mapping[str, Any]) -> str:
    sizes = [value for row in saved["values"] for value in row if summary.is_finite(value)]
    text = f"Size of the update ({saved['quantity']}) at {len(saved['columns'])} checkpoints"
    if sizes:
        text += f", from {summary.number(min(sizes))} to {summary.number(max(sizes))}"
    condemned = zip(saved["columns"], saved["broken"], strict=True)
    broken = [column for column, is_broken in condemned if is_broken]
    text += f"; {len(broken)} are broken, the first {broken[0]}" if broken else "; none is broken"
    return summary.sentence(text)


def _tokens_caption(tokens: Mapping[str, Any]) -> str:
    if not tokens["tokens"]:
        return "No token was generated."
    text = (
        f"Share of each token in the outputs to {tokens['prompts']:,} prompts: "
        f"{tokens['tokens'][0]!r} makes up {tokens['tuned'][0]:.0%} of the tuned model's"
    )
    if tokens["base"] is not None:
        text += f" and {tokens['base'][0]:.0%} of the base model's"
    return summary.sentence(text)


def _labels_caption(labels: Mapping[str, Any]) -> str:
    tokens = labels["tokens"]
    targets = [one for one in tokens if one["target"]]
    regions = dict.fromkeys(one["region"] for one in targets)
    counts = {name: sum(one["region"] == name for one in targets) for name in regions}
    listed = ", ".join(f"{count:,} {name}" for name, count in counts.items()) or "none"
    return summary.sentence(
        f"Row {labels['row']:,} of {labels['split']} as the loss sees it: "
        f"{len(targets):,} of {len(tokens):,} tokens are targets ({listed})"
    )


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
