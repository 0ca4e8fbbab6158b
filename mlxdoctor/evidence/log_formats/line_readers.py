"""Every reader of single lines, in the order in which they are asked."""

from __future__ import annotations

from collections.abc import Sequence

from mlxdoctor.evidence.log_formats.blocks import BlockReader, ProgressReader
from mlxdoctor.evidence.log_formats.events import EventReader
from mlxdoctor.evidence.log_formats.json_lines import RecordReader
from mlxdoctor.evidence.log_formats.named_numbers import PairReader
from mlxdoctor.evidence.log_formats.rich_table import RichTableReader
from mlxdoctor.evidence.log_formats.segments import Rows
from mlxdoctor.evidence.log_formats.series import Notes
from mlxdoctor.evidence.log_formats.tables import MarkdownReader
from mlxdoctor.safety.reading_limits import current


class LineReaders:
    """Reads lines into `rows` and `notes`, whichever format each of them has."""

    def __init__(self, rows: Rows, notes: Notes) -> None:
        self._notes = notes
        self._width = current().line_characters
        self._pairs, self._table = PairReader(rows, notes), RichTableReader(rows, notes)
        self._records, self._markdown = RecordReader(rows), MarkdownReader(rows)
        self._blocks, self._progress = BlockReader(rows), ProgressReader(rows, notes)
        self._events = EventReader(notes)
        self._counts = dict.fromkeys(("iter lines", "table"), 0)

    def read(self, numbered: Sequence[tuple[int, str]]) -> None:
        """Read cleaned lines with their numbers (see `text.lines`)."""
        if self._pairs.read_alike(numbered):
            self._counts["iter lines"] += len(numbered)
            return
        records, markdown, events = self._records, self._markdown, self._events
        blocks, progress, counts = self._blocks, self._progress, self._counts
        read_like, read_pairs = self._pairs.read_like, self._pairs.read
        read_table, width = self._table.read, self._width
        for number, whole in numbered:
            # Most lines of most logs are like the ones before.
            if read_like(number, whole):
                counts["iter lines"] += 1
                continue
            line = whole
            # An object that a kill cut off is left out: its last number may be half of one.
            if line.startswith('{"') and (records.read(number, line) or "}" not in line):
                continue
            if len(line) > width:
                line = line[:width]
            if ("▼" in line or "▲" in line) and read_table(number, line):
                counts["table"] += 1
            elif read_pairs(number, line):
                counts["iter lines"] += 1
            elif read_table(number, line):
                counts["table"] += 1
            elif (
                not line
                or markdown.read(number, line)
                or blocks.read(number, line)
                or ("=" in line and progress.read(number, line))
            ):
                continue
            else:
                events.read(number, line)

    def catch_up(self) -> None:
        """Read what was collected to be read together; what is begun stays open."""
        self._records.flush()

    def finish(self) -> None:
        """Read the rest, and note how many lines of each format there were."""
        self._records.finish()
        self._blocks.flush()
        self._progress.flush()
        self._events.flush()
        counts = {
            "iter lines": self._counts["iter lines"],
            "table": self._counts["table"],
            "JSON lines": self._records.read_rows,
            "blocks": self._blocks.read_rows,
            "Markdown": self._markdown.read_rows,
            "progress bar": self._progress.read_rows,
        }
        self._notes.formats.update({name: count for name, count in counts.items() if count})
