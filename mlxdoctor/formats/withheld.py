"""The report without training rows and model output (`--no-text`); figures and counts stay.

Samples are left out, quotations by the marks of `mlxdoctor.safety.quoting`. What an oversight of
some check left is compared with the rows and outputs themselves, and a stretch of `PIECE`
characters that occurs in one of them is taken out, now and then with words of our own.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain, groupby
from typing import TypeVar

from mlxdoctor.report import Report
from mlxdoctor.safety.quoting import WITHHELD, without_quotations
from mlxdoctor.safety.texts import OWN, mapped
from mlxdoctor.verdict import Rerun

T = TypeVar("T")
R = TypeVar("R", bound=Report)

#: A stretch of a row or an output that may not occur in the report (characters).
PIECE = 12
#: Fields that can't hold text of a row: names, figures, and what we wrote ourselves.
_OWN_FIELDS = OWN | {
    *("commands", "diagnosis", "name", "version", "versions"),
    *("check", "code", "evidence", "experiment", "fingerprint"),
}
#: Nor is what to do compared with the rows: it is in our words, around quotations, which are cut.
_OWN_WORDS = _OWN_FIELDS | {"fix"}
_BLANKS = str.maketrans("\n\r\t", "   ")


def without_text(report: R, texts: Iterable[str]) -> R:
    """The report without text of training rows and outputs, which are `texts`."""
    samples = [sample for rerun in report.reruns for sample in rerun.samples]
    samples += [report.sample] if report.sample is not None else []
    shown = [text for one in samples for text in (one.prompt, one.base, one.tuned) if text]
    emptied = replace(
        report,
        withheld=True,
        outcomes=tuple(
            replace(outcome, exhibits=tuple(one for one in outcome.exhibits if not one.holds_text))
            for outcome in report.outcomes
        ),
        experiments=tuple(
            replace(tried, samples=()) if isinstance(tried, Rerun) else tried
            for tried in report.experiments
        ),
    )
    return taken_out(emptied, chain(shown, texts))


def taken_out(value: T, texts: Iterable[str]) -> T:
    """`value`, as `mapped` takes it, with quotations and stretches of `texts` taken out."""
    marked = mapped(value, without_quotations, _OWN_FIELDS)
    left: list[str] = []

    def noted(text: str) -> str:
        left.append(text)
        return text

    # Collects what is left; nothing is changed.
    mapped(marked, noted, _OWN_WORDS)
    found = _pieces_in(left, texts)
    return mapped(marked, lambda one: _without(one, found), _OWN_WORDS) if found else marked


def _pieces_in(shown: Iterable[str], texts: Iterable[str]) -> frozenset[str]:
    """The stretches of `PIECE` characters that the report shares with one of the texts."""
    pieces = frozenset(piece for text in shown for piece in _pieces_of(text.translate(_BLANKS)))
    found: set[str] = set()
    for text in texts:
        # As it is, and as it reads once somebody has joined its lines.
        for read in {text.translate(_BLANKS), " ".join(text.split())}:
            found.update(pieces.intersection(_pieces_of(read)))
    return frozenset(found)


def _pieces_of(text: str) -> Iterator[str]:
    return (text[at : at + PIECE] for at in range(len(text) - PIECE + 1))


def _without(text: str, pieces: frozenset[str]) -> str:
    covered: set[int] = set()
    for at, piece in enumerate(_pieces_of(text.translate(_BLANKS))):
        if piece in pieces:
            covered.update(range(at, at + PIECE))
    runs = groupby(range(len(text)), covered.__contains__)
    return "".join(
        WITHHELD if is_covered else "".join(text[at] for at in run) for is_covered, run in runs
    )
