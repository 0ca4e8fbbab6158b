"""What a step before the training left in rows by mistake: `leftovers.toml` lists it."""

import html
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from mlxdoctor.engines.text import CONTROL, ends
from mlxdoctor.evidence.dataset import Pair, Split
from mlxdoctor.finding import Severity
from mlxdoctor.tables import record, shipped

_FILE = "leftovers.toml"
#: Prompts that match what is meant, of the texts with a leftover, from which the task asks for it.
_MEANT = 0.2
#: Names of control tokens in an answer that a template does not write: of one turn it writes three.
_MARKUP = 4
#: Characters before a match that are shown with it.
_BEFORE = 30
#: What ends a sentence, and the blanks behind it.
_SENTENCE_ENDS = re.compile(r"[.!\n]\s*")


@dataclass(frozen=True)
class Leftover:
    """One entry of the table, which explains the attributes."""

    code: str
    of: str
    pattern: re.Pattern[str]
    what: str
    fix: str
    meant: re.Pattern[str] | None = None
    alike: bool = False
    varied: bool = False
    note: float | None = None
    warning: float | None = None
    error: float | None = None
    dense: float = 0.0
    mend: str = ""

    def text(self, pair: Pair) -> str:
        """The text that is searched; a plain text has no prompt."""
        if self.of == "rows":
            return pair.text
        return pair.prompt if self.of == "prompts" else pair.answer

    def search(self, pair: Pair) -> re.Match[str] | None:
        return self.pattern.search(self.text(pair))

    def is_meant(self, pair: Pair) -> bool:
        """Whether the prompt shows that it belongs there."""
        return self.meant is not None and self.meant.search(pair.prompt) is not None

    def mended(self, text: str) -> str:
        """A text without it, where it is known what belongs there; else the text as it is."""
        if self.mend == "unescape":
            return html.unescape(text).replace("\xa0", " ")
        return self.pattern.sub("", text) if self.mend else text

    def severity(self, share: float, share_of_dense: float) -> Severity | None:
        """How bad it is in such a share of the rows."""
        if self.error is not None and share_of_dense >= self.error:
            return Severity.ERROR
        if self.warning is not None and share >= self.warning:
            return Severity.WARNING
        return Severity.INFO if self.note is not None and share >= self.note else None


@dataclass(frozen=True)
class Spoilt:
    """Rows with a leftover.

    Attributes:
        rows: the places of the rows that have it.
        example: the text of the first of them, from just before the match.
    """

    leftover: Leftover
    rows: tuple[int, ...]
    severity: Severity
    example: str


@cache
def leftovers() -> tuple[Leftover, ...]:
    """All entries of the table, in its order."""
    entries = []
    for name, table in shipped(__package__, _FILE).items():
        patterns = {
            key: re.compile(table[key].replace("{CONTROL}", f"(?:{CONTROL.pattern})"))
            for key in ("pattern", "meant")
            if key in table
        }
        entries.append(record(Leftover, _FILE, name, table, code=name, **patterns))
    return tuple(entries)


def left_in(split: Split, rows: Sequence[int]) -> Iterator[Spoilt]:
    """What was left in some rows of a split."""
    whole = {row: split.pair(split.rows[row]) for row in rows}
    # Of long texts the ends: some patterns take time by the square of their length.
    pairs = {row: Pair(ends(pair.prompt), ends(pair.answer)) for row, pair in whole.items()}
    has_prompts = any(pair.prompt for pair in pairs.values())
    for leftover in leftovers():
        if leftover.of in ("answers", "prompts") and split.format == "text" and not has_prompts:
            # A text alone has neither prompt nor answer.
            continue
        matches = {row: match for row, pair in pairs.items() if (match := leftover.search(pair))}
        if leftover.alike and matches:
            ((text, _),) = Counter(match[0] for match in matches.values()).most_common(1)
            matches = {row: match for row, match in matches.items() if match[0] == text}
        if leftover.varied:
            # What several of them close with is a phrase, and no question of their own.
            closing = {row: _SENTENCE_ENDS.split(pairs[row].answer.strip())[-1] for row in matches}
            (phrase, _), *_ = Counter(closing.values()).most_common(1) or [("", 0)]
            matches = {row: matches[row] for row, last in closing.items() if last != phrase}
        asking = sum(map(leftover.is_meant, pairs.values()))
        # Tokens of so many names are the markup of an answer.
        asking += sum(len(set(CONTROL.findall(pairs[row].answer))) >= _MARKUP for row in matches)
        # Several that are a whole answer each are labels.
        alone = [text for row in matches if CONTROL.fullmatch(text := pairs[row].answer.strip())]
        asking += len(alone) if len(set(alone)) > 1 else 0
        if not matches or asking > _MEANT * len(matches):
            continue
        answers = (pairs[row].answer for row in matches)
        found = ((len(leftover.pattern.findall(text)), len(text)) for text in answers)
        dense = sum(count >= leftover.dense * length for count, length in found)
        severity = leftover.severity(len(matches) / len(pairs), dense / len(pairs))
        if severity is not None:
            row, match = next(iter(matches.items()))
            example = leftover.text(pairs[row])[max(0, match.start() - _BEFORE) :]
            yield Spoilt(leftover, tuple(matches), severity, example)
