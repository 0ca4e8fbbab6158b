"""Jupyter notebooks: what the cells printed is a log."""

import html
import json
import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from mlxdoctor.evidence.logs.log_format import DocumentFormat

#: What stands between two cells; `log_formats/messages.toml` knows it.
CELL_ENDS = "[the cell ends]\n"
#: A trainer of preferences or rewards, where a cell makes it; events.py knows what is said of it.
_TRAINER = re.compile(r"\b((?:[A-Z][A-Za-z]{0,9}PO|KTO|RLOO)Trainer)\s?\(")
_ROW = re.compile(r"<tr\b[^>]{0,200}>(.*?)</tr>", re.DOTALL | re.IGNORECASE)
_CELL = re.compile(r"<t[dh]\b[^>]{0,200}>([^<]{0,200})", re.IGNORECASE)
_FIRST_CELL = re.compile(r"\|\s([^|]+?)\s\|")
#: How far the training came, which transformers draws above its table.
_BAR = re.compile(r"</progress>\s{0,40}\[\s{0,9}(\d{1,9})/(\d{1,9}) \d")


class Notebook(DocumentFormat):
    """The outputs of its cells, in their order; line numbers are those of the file."""

    priority = 45
    understood = "Jupyter notebooks"
    example = (
        '{"nbformat": 4, "cells": [{"cell_type": "code", "outputs": ['
        r'{"output_type": "stream", "text": ["Iter 1: Train loss 2.5\n"]}, '
        r'{"output_type": "stream", "text": ["Iter 2: Train loss 2.25\n"]}]}]}'
    )

    def read(self, document: Any) -> str | None:
        if not isinstance(document, dict) or not isinstance(document.get("cells"), list):
            return None
        return "".join(_placed(_outputs(document["cells"]), document))


def _placed(pieces: Iterable[str], document: Any) -> Iterator[str]:
    """The pieces, with empty lines before what stands further down in the file.

    Notebooks are stored with a line of the file for each line that was printed.
    """
    places: dict[str, list[int]] = {}
    for place, line in enumerate(json.dumps(document, indent=1, ensure_ascii=False).split("\n")):
        # What is no text by itself is no line that was printed.
        with suppress(ValueError):
            if isinstance(text := json.loads(line.strip().removesuffix(",")), str):
                places.setdefault(text.strip(), []).append(place)
    written, after = 0, 0
    for line in re.findall(r"[^\n]*\n|[^\n]+", "".join(pieces)):
        said = line.strip()
        # Of a row of a table its first cell.
        cell = _FIRST_CELL.match(said)
        known = places.get(f"<td>{cell[1]}</td>" if cell else said, []) if said else []
        if (first := bisect_left(known, after)) < len(known):
            after = known[first] + 1
            # An empty line would end a table.
            yield ("|\n" if cell else "\n") * (known[first] - written)
            written = max(written, known[first])
        yield line
        written += line.count("\n")


def _outputs(cells: list[Any]) -> Iterator[str]:
    for cell in cells:
        outputs = cell.get("outputs") if isinstance(cell, dict) else None
        source = _joined(cell.get("source")) if isinstance(cell, dict) else ""
        for trainer in dict.fromkeys(_TRAINER.findall(source) if outputs else ()):
            yield f"{trainer} initialized\n"
        stream, is_ended, has_said = "", True, False
        for output in outputs if isinstance(outputs, list) else ():
            if not isinstance(output, dict):
                continue
            # One stream comes in pieces that end anywhere.
            name = str(output.get("name", "")) if output.get("output_type") == "stream" else ""
            text = _text(output)
            if not text:
                continue
            yield text if is_ended or (name and name == stream) else "\n" + text
            stream, is_ended, has_said = name, text.endswith("\n"), True
        if has_said:
            yield CELL_ENDS if is_ended else f"\n{CELL_ENDS}"


def _text(output: Mapping[str, Any]) -> str:
    match output.get("output_type"):
        case "stream":
            return _joined(output.get("text"))
        case "error":
            lines = output.get("traceback")
            said = f"{output.get('ename')}: {output.get('evalue')}"
            trace = "\n".join(map(str, lines)) if isinstance(lines, list) else ""
            # A notebook draws a line above, and may leave the beginning of it out.
            trace = "\n".join(f"  {line}" for line in trace.splitlines())
            return f"Traceback (most recent call last)\n{trace}\n{said}\n"
        case _:
            data = output.get("data")
            if not isinstance(data, dict):
                return ""
            markup = _joined(data.get("text/html"))
            if not (table := _table(markup)):
                return _joined(data.get("text/plain")) + "\n"
            bar = _BAR.search(markup)
            # As a terminal would have it.
            return table + (f"0%|| {bar[1]}/{bar[2]} [0\n" if bar else "")


def _joined(text: Any) -> str:
    if isinstance(text, list):
        return "".join(one for one in text if isinstance(one, str))
    return text if isinstance(text, str) else ""


def _table(markup: str) -> str:
    """The rows of a table as Markdown; trainers show their losses so."""
    rows = [
        [html.unescape(cell).strip().replace("|", "/") for cell in _CELL.findall(row)]
        for row in _ROW.findall(markup)
    ]
    # A data frame has NaN where it has nothing; a loss that is no number is written `nan`.
    lines = [
        f"| {' | '.join('' if cell == 'NaN' else cell for cell in cells)} |"
        for cells in rows
        if len(cells) > 1
    ]
    return "\n".join(("", *lines, "")) if lines else ""
