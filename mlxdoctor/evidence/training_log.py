"""The training log: every report in it, whatever the trainer and the format.

Nothing is invented: a row that names no iteration is numbered as a row, and says so.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from mlxdoctor.errors import InputError
from mlxdoctor.evidence.log_formats.blocks import BlockReader, ProgressReader
from mlxdoctor.evidence.log_formats.documents import is_document, read_document
from mlxdoctor.evidence.log_formats.events import EventReader
from mlxdoctor.evidence.log_formats.pairs import PairReader
from mlxdoctor.evidence.log_formats.records import DATA_KEYS, RecordReader
from mlxdoctor.evidence.log_formats.rich_table import RichTableReader
from mlxdoctor.evidence.log_formats.rows import Rows
from mlxdoctor.evidence.log_formats.series import (
    Axis,
    LogFailure,
    Notes,
    Save,
    Segment,
    Series,
    Trainable,
)
from mlxdoctor.evidence.log_formats.tables import MarkdownReader, csv_header, read_csv
from mlxdoctor.evidence.log_formats.text import MAX_LINE, lines
from mlxdoctor.evidence.source import MAX_JSON_BYTES, Source, read_text

__all__ = [
    "Axis",
    "LogFailure",
    "Save",
    "Segment",
    "Series",
    "Trainable",
    "TrainingLog",
    "looks_like_log",
]

#: Bytes at either end of a file that decide whether it is a log.
SNIFFED_BYTES = 64 << 10

_UNDERSTOOD = (
    "understood are the output of mlx_lm.lora (both kinds), mlx-lm-lora, mlx-vlm and mlx-tune, "
    "JSON lines of metrics, trainer_state.json, CSV with a step and a loss, and Markdown tables"
)


@dataclass(frozen=True)
class TrainingLog:
    """What one run printed or recorded while it trained.

    Attributes:
        sources: the files, in the order given.
        format: the families of lines found, the most frequent first ("iter lines, table").
        segments: the runs in it, in order; a restart begins another.
        trainable: the line on trainable parameters.
        header: what the trainer said about itself: model, type, dataset, optimizer, ...
        saves: saves it reported.
        truncations: (longest row, limit) in tokens, from the trainer's warning.
        test_loss: of a test run, in nats a token.
        test_perplexity: of a test run.
        failures: lines that say the run broke off.
        versions: package -> version, where the log names them.
    """

    kind: ClassVar[str] = "training log"

    sources: tuple[Source, ...]
    format: str
    segments: tuple[Segment, ...]
    trainable: Trainable | None = None
    header: Mapping[str, str] = field(default_factory=dict)
    saves: tuple[Save, ...] = ()
    truncations: tuple[tuple[int, int], ...] = ()
    test_loss: float | None = None
    test_perplexity: float | None = None
    failures: tuple[LogFailure, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)

    @property
    def main(self) -> Segment:
        """The segment to judge: the last with training losses, else the last."""
        if not self.segments:
            return Segment({}, 0, 0)
        trained = [one for one in self.segments if one.get("train_loss") is not None]
        return (trained or list(self.segments))[-1]

    @property
    def is_preference(self) -> bool:
        """Whether a reward or preference was trained: its loss is no cross-entropy."""
        stated = self.header.get("training", "").upper()
        known = ("ORPO", "DPO", "CPO", "KTO", "SIMPO", "GRPO", "PPO", "XPO", "RLHF", "FTPO")
        return any(name in stated for name in known) or self.main.is_preference

    @property
    def resumed(self) -> bool | None:
        """Whether training began from an earlier adapter; None where the log can't tell."""
        if "resumed_from" in self.header:
            return True
        # The trainer names the adapter it resumes from before it counts parameters.
        return False if self.trainable is not None else None

    @classmethod
    def read(cls, paths: Sequence[Path]) -> TrainingLog:
        """Read the files of one run's log.

        Raises:
            InputError: a file can't be read, or none holds a report on training.
        """
        notes = Notes()
        sources: list[Source] = []
        segments: list[Segment] = []
        for path in paths:
            text, source = read_text(path)
            sources.append(source)
            segments.extend(_read(text, path, notes))
        told = notes.failures or notes.test_loss is not None or notes.trainable is not None
        if not paths or (not segments and not told):
            raise InputError(
                paths[0] if paths else None, "holds no report on training", _UNDERSTOOD
            )
        formats = sorted(notes.formats, key=lambda name: -notes.formats[name])
        return cls(
            sources=tuple(sources),
            format=", ".join(formats) or "messages only",
            segments=tuple(segments),
            trainable=notes.trainable,
            header=dict(notes.header),
            saves=tuple(notes.saves),
            truncations=tuple(notes.truncations),
            test_loss=notes.test_loss,
            test_perplexity=notes.test_perplexity,
            failures=tuple(notes.failures),
            versions=dict(notes.versions),
        )


def _read(text: str, path: Path, notes: Notes) -> list[Segment]:
    rows = Rows()
    local = Notes()
    name = _read_document(text, path, rows)
    if name:
        notes.formats[name] = notes.formats.get(name, 0) + len(rows)
    else:
        _read_lines(text, rows, local)
    segments = list(rows.segments(local.run_marks, local.announced))
    for family, count in local.formats.items():
        notes.formats[family] = notes.formats.get(family, 0) + count
    _merge(notes, local)
    return segments


def _read_document(text: str, path: Path, rows: Rows) -> str:
    """Read a file that is one document; the family's name, or "" where it is not."""
    start = text[:SNIFFED_BYTES].lstrip()
    if start[:1] in ("{", "[") and len(text) <= MAX_JSON_BYTES and not _many_objects(start):
        try:
            value: Any = json.loads(text)
        except (ValueError, RecursionError):
            value = None
        if is_document(value):
            read_document(value, rows)
            return "JSON history" if len(rows) else ""
    if csv_header(start.splitlines()[:20]) is not None:
        read_csv(text, path, rows)
        return "CSV" if len(rows) else ""
    return ""


def _many_objects(start: str) -> bool:
    first, _, rest = start.partition("\n")
    return first.rstrip().endswith("}") and rest.lstrip().startswith("{")


def _read_lines(text: str, rows: Rows, notes: Notes) -> None:
    pairs, table = PairReader(rows, notes), RichTableReader(rows, notes)
    records, markdown = RecordReader(rows), MarkdownReader(rows)
    blocks, progress, events = BlockReader(rows), ProgressReader(rows, notes), EventReader(notes)
    counts = dict.fromkeys(("iter lines", "table", "JSON lines", "blocks", "Markdown"), 0)
    read_pairs, read_table = pairs.read, table.read
    for number, whole in lines(text):
        line = whole
        if line.startswith('{"') and records.read(number, line):
            continue
        if len(line) > MAX_LINE:
            line = line[:MAX_LINE]
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
    records.finish()
    blocks.flush()
    progress.flush()
    events.flush()
    counts["JSON lines"] = records.read_rows
    counts["blocks"] = blocks.read_rows
    counts["Markdown"] = markdown.read_rows
    counts["progress bar"] = progress.read_rows
    notes.formats.update({name: count for name, count in counts.items() if count})


def _merge(notes: Notes, local: Notes) -> None:
    """Add one file's notes to those of the files before it."""
    notes.header.update(local.header)
    notes.versions.update(local.versions)
    notes.saves.extend(local.saves)
    notes.truncations.extend(local.truncations)
    notes.failures.extend(local.failures)
    notes.trainable = local.trainable or notes.trainable
    if local.test_loss is not None:
        notes.test_loss, notes.test_perplexity = local.test_loss, local.test_perplexity


def looks_like_log(path: Path) -> bool:
    """Whether a file is a training log, from its first and last 64 KiB.

    Data rows, generations and configurations are not logs. Never raises for a
    readable file.

    Raises:
        OSError: the file can't be read.
    """
    with path.open("rb") as stream:
        head = stream.read(SNIFFED_BYTES)
        size = stream.seek(0, 2)
        stream.seek(max(size - SNIFFED_BYTES, len(head)))
        tail = stream.read(SNIFFED_BYTES)
    wide = head[:2] in (b"\xff\xfe", b"\xfe\xff")
    if b"\0" in head and not wide:
        return False
    encoding = "utf-16" if wide else "utf-8"
    if wide and tail:
        tail = head[:2] + tail[len(tail) % 2 :]
    texts = [part.decode(encoding, errors="replace") for part in (head, tail) if part]
    if texts and _holds_data(texts[0]):
        return False
    for text in texts:
        rows, notes = Rows(), Notes()
        if size <= SNIFFED_BYTES or not text.lstrip().startswith(("{", "[")):
            _read(text, path, notes)
        _read_lines(text, rows, notes)
        if notes.formats or notes.failures or notes.test_loss is not None or notes.trainable:
            return True
        if "log_history" in text or "train_loss_history" in text:
            return True
    return False


def _holds_data(text: str) -> bool:
    first = text.lstrip().split("\n", 1)[0]
    if not first.startswith("{"):
        return False
    try:
        record = json.loads(first)
    except (ValueError, RecursionError):
        return any(f'"{key}":' in first[:2000] for key in DATA_KEYS)
    return isinstance(record, dict) and not DATA_KEYS.isdisjoint(record)
