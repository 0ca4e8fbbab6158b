"""The report without training rows and model output (`--no-text`); figures and counts stay.

Text of a run gets into a report in three ways, and leaves it in as many:

1. Places made for it: the sample, the token histogram, the label strip. They are emptied.
2. Quotations in messages, which `mlxdoctor.safety.quoting` marks. They are taken out
   by their marks.
3. By an oversight of some check. Whatever is left is compared with the rows and outputs
   themselves, and a stretch of `PIECE` characters that occurs in one of them is taken out.
   Now and then that hits words of our own which a row happens to contain as well.

File names, configuration, log figures and token ids stay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from typing import Any, TypeVar, cast

from mlxdoctor.safety.quoting import WITHHELD, without_quotations

T = TypeVar("T")

#: A stretch of a row or an output that may not occur in the report (characters).
PIECE = 12
#: Every stretch of PIECE characters has one of SEED in it that starts at a multiple of STRIDE.
SEED, STRIDE = 6, 7
#: Sections that can't hold text of a row: names, figures, and what we wrote ourselves.
OWN_SECTIONS = frozenset(
    {"causes", "commands", "contributing", "diagnosis", "fix", "name", "schema_version", "tool"}
    | {"verdict", "versions", "withheld"}
)
#: Entries, wherever they are, that can't hold any either.
_OWN_KEYS = frozenset(
    {"cause", "check", "code", "evidence", "experiment", "fingerprint", "severity", "status"}
)
_BLANKS = str.maketrans("\n\r\t", "   ")


def without_text(data: Mapping[str, Any], texts: Iterable[str]) -> dict[str, Any]:
    """The report without text of training rows and outputs.

    Args:
        data: as `model.ReportData` describes it.
        texts: the rows and outputs, to compare what is left with.
    """
    trials = [one for one in data["experiments"] if "samples" in one]
    samples = [data["sample"], *(sample for one in trials for sample in one["samples"])]
    outputs = [text for one in samples if one for text in one.values() if text]
    emptied = {
        **data,
        "withheld": True,
        "sample": None,
        "figures": _figures(data["figures"]),
        "experiments": [
            {**one, "samples": []} if "samples" in one else one for one in data["experiments"]
        ],
    }
    foreign = {key: value for key, value in emptied.items() if key not in OWN_SECTIONS}
    return {**emptied, **taken_out(foreign, chain(outputs, texts))}


def taken_out(value: T, texts: Iterable[str]) -> T:
    """`value`, of mappings and lists, with quotations and stretches of `texts` taken out."""
    marked = _changed(value, without_quotations)
    left: list[str] = []
    _collect(marked, left)
    found = _pieces_in(left, texts)
    return cast("T", _changed(marked, lambda one: _without(one, found)) if found else marked)


def _figures(figures: Mapping[str, Any]) -> dict[str, Any]:
    tokens, labels = figures["tokens"], figures["labels"]
    if tokens is not None:
        names = [f"token {place}" for place in range(1, len(tokens["tokens"]) + 1)]
        tokens = {**tokens, "tokens": names}
    if labels is not None:
        labels = {**labels, "tokens": [{**one, "text": "–"} for one in labels["tokens"]]}
    return {**figures, "tokens": tokens, "labels": labels}


def _changed(value: Any, change: Callable[[str], str], own: frozenset[str] = _OWN_KEYS) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        # A check names what it measured as it likes: none of those names is ours.
        below = {key: frozenset() if key == "measured" else own for key in value}
        return {
            key: item if key in own else _changed(item, change, below[key])
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [_changed(one, change, own) for one in value]
    return value


def _collect(value: Any, texts: list[str]) -> None:
    def noted(text: str) -> str:
        texts.append(text)
        return text

    _changed(value, noted)


def _pieces_in(report: Iterable[str], texts: Iterable[str]) -> frozenset[str]:
    """The stretches of `PIECE` characters that the report shares with one of the texts."""
    pieces: set[str] = set()
    seeds: set[str] = set()
    for one in map(_spaced, report):
        pieces.update(one[at : at + PIECE] for at in range(len(one) - PIECE + 1))
        seeds.update(one[at : at + SEED] for at in range(len(one) - SEED + 1))
    found: set[str] = set()
    for text in chain.from_iterable(map(_spellings, texts)):
        for at in range(0, len(text) - SEED + 1, STRIDE):
            if text[at : at + SEED] in seeds:
                starts = range(max(0, at - STRIDE + 1), at + 1)
                found.update({text[start : start + PIECE] for start in starts} & pieces)
    return frozenset(found)


def _spellings(text: str) -> Iterator[str]:
    """`text` as it is, and as it reads once somebody has joined its lines."""
    spaced = _spaced(text)
    yield spaced
    joined = " ".join(text.split())
    if joined != spaced:
        yield joined


def _spaced(text: str) -> str:
    return text.translate(_BLANKS)


def _without(text: str, pieces: frozenset[str]) -> str:
    covered = [False] * len(text)
    spaced = _spaced(text)
    for at in range(len(text) - PIECE + 1):
        if spaced[at : at + PIECE] in pieces:
            covered[at : at + PIECE] = [True] * PIECE
    shown: list[str] = []
    for one, is_covered in zip(text, covered, strict=True):
        if not is_covered:
            shown.append(one)
        elif not shown or shown[-1] != WITHHELD:
            shown.append(WITHHELD)
    return "".join(shown)
