"""The training log: every report in it, whatever the trainer and the format.

Nothing is invented: a row that names no iteration is numbered as a row, and says so.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from mlxdoctor.evidence.kind import Missing, RunView
from mlxdoctor.evidence.log_formats.notebook import Notebook
from mlxdoctor.evidence.logs.accounted import ReadFile, accounted, judged
from mlxdoctor.evidence.logs.json_records import DATA_KEYS
from mlxdoctor.evidence.logs.log_format import LogFormat, LogSoFar, WholeFormat, formats
from mlxdoctor.evidence.logs.reader import read_lines, read_log, read_rows
from mlxdoctor.evidence.logs.series import (
    Axis,
    LogFailure,
    Notes,
    Save,
    Segment,
    Series,
    Trainable,
)
from mlxdoctor.evidence.logs.text_stream import LogStream, log_encoding, without_holes
from mlxdoctor.evidence.source import Source, open_file, read_text, unreadable
from mlxdoctor.safety.errors import InputError

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

#: What a training log may be called.
_LOG_NAME = re.compile(
    r"^(?:(?:train|finetun|fine[_-]tun|lora|sft|loss|metrics|history|nohup|output|stdout|console)"
    r".{0,60}\.(?:log|out|txt|jsonl|csv|tsv)|log\.txt|stdout|nohup)$",
    re.IGNORECASE,
)
_LOG_SUFFIXES = frozenset((".log", ".out", ".err", ".txt", ".csv", ".tsv", ".jsonl"))
#: A loss or a figure that is none, under any name.
_LIKE_REPORT = re.compile(
    r"^.{0,400}?(?:(?:loss|perplexity|\bppl\b)\W{0,6}[-+]?(?:\d|nan\b|inf\b)"
    r"|\w[\w ./()]{0,30}[=:~]\s{0,3}[-+]?(?:nan|inf)\b)",
    re.IGNORECASE | re.MULTILINE,
)
#: Such lines that make a file a log.
MIN_LIKE_REPORTS = 3
#: How a notebook's name ends.
NOTEBOOK = ".ipynb"
#: Bytes at either end of a file that decide whether it is a log.
SNIFFED_BYTES = 64 << 10


@dataclass(frozen=True)
class TrainingLog:
    """What one run printed or recorded while it trained.

    Attributes:
        sources: the files, in the order given.
        format: the families of lines found, the most frequent first ("named values, table").
        segments: the runs in it, in order; a restart begins another.
        trainable: the line on trainable parameters.
        header: what the trainer said about itself: model, type, dataset, optimizer, ...
        saves: saves it reported.
        truncations: (longest row, limit) in tokens, from the trainer's warning.
        test_loss: of a test run, in nats a token.
        test_perplexity: of a test run.
        failures: lines that say the run broke off.
        targetless: numbers of the lines that say a batch had nothing to learn.
        unvalidated: numbers of the lines that say that there is nothing to validate on.
        versions: package -> version, where the log names them.
        problems: the limits at which reading ended, where a log goes beyond them.
        parameters_millions: of the whole model, where the log counts them.
        unread: numbers of lines that look like reports and could not be read, at most 1,000.
        remarks: what of the log was not judged, or not as it stands there, a clause each.
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
    targetless: tuple[int, ...] = ()
    unvalidated: tuple[int, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    problems: tuple[InputError, ...] = ()
    parameters_millions: float | None = None
    unread: tuple[int, ...] = ()
    remarks: tuple[str, ...] = ()

    @property
    def reports(self) -> int:
        """How many reports the log holds, each counted once."""
        return sum(one.reports for one in self.segments)

    @property
    def main(self) -> Segment:
        """The segment to judge: the last with training losses, else the last."""
        return judged(self.segments)

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
    def find(cls, run: RunView) -> TrainingLog:
        """The run's log; see `Evidence`."""
        if not run.files.logs:
            empty = next(filter(_is_empty_log, run.files.unrecognised), None)
            one = f"{empty.name} is empty, and no other" if empty is not None else "no"
            raise Missing(f"{one} training log was found; name it with --log")
        return cls.read(run.files.logs)

    @classmethod
    def read(cls, paths: Sequence[Path]) -> TrainingLog:
        """Read the files of one run's log.

        Raises:
            InputError: a file can't be read, or none holds a report on training.
        """
        notes = Notes()
        files: list[ReadFile] = []
        for path in paths:
            stream = LogStream(path)
            unread = len(notes.unread)
            found = read_log(stream, path, notes)
            files.append(ReadFile(stream.source, found, notes.unread[unread:]))
        files, remarks = accounted(files)
        segments = [segment for file in files for segment in file.segments]
        trainable = notes.trainable
        told = notes.failures or notes.test_loss is not None or trainable is not None
        if not paths or (not segments and not told):
            *most, last = (one.understood for one in formats(LogFormat) if one.understood)
            remedy = f"understood are {', '.join(most)}, and {last}"
            raise InputError(paths[0] if paths else None, "holds no report on training", remedy)
        names = sorted(notes.formats, key=lambda name: -notes.formats[name])
        return cls(
            sources=tuple(file.source for file in files),
            format=", ".join(names) or "messages only",
            segments=tuple(segments),
            trainable=trainable,
            header=dict(notes.header),
            # A log's end that is printed twice saves nothing twice.
            saves=tuple(dict.fromkeys(notes.saves)),
            truncations=tuple(notes.truncations),
            test_loss=notes.test_loss,
            test_perplexity=notes.test_perplexity,
            failures=tuple(notes.failures),
            targetless=tuple(notes.targetless),
            unvalidated=tuple(notes.unvalidated),
            versions=dict(notes.versions),
            problems=tuple(notes.problems),
            parameters_millions=notes.total_line if trainable is None else trainable.total_millions,
            unread=tuple(notes.unread),
            remarks=remarks,
        )


def looks_like_log(path: Path) -> bool:
    """Whether a file is a training log, from its first and last 64 KiB.

    Data rows, generations and configurations are not logs. Never raises for a
    readable file.

    Raises:
        InputError: the file can't be read, or is a device or a pipe.
    """
    if path.suffix == NOTEBOOK:
        return _notebook_shows_log(path)
    texts, is_whole = _ends(path)
    if texts and _holds_data(texts[0]):
        return False
    return any(_shows_log(text, path, is_whole=is_whole) for text in texts)


def looks_like_unread_log(path: Path) -> bool:
    """Whether a file that no reader claims is a training log by its name and what is in it.

    Raises:
        InputError: as `looks_like_log`.
    """
    if not (path.suffix in _LOG_SUFFIXES or _LOG_NAME.search(path.name)):
        return False
    texts, _ = _ends(path)
    if not "".join(texts).strip() or (texts and _holds_data(texts[0])):
        return False
    if _LOG_NAME.search(path.name) and path.suffix in (".log", ".out"):
        return True
    return sum(len(_LIKE_REPORT.findall(text)) for text in texts) >= MIN_LIKE_REPORTS


def _is_empty_log(path: Path) -> bool:
    try:
        return _LOG_NAME.search(path.name) is not None and path.stat().st_size == 0
    except OSError:
        return False


def _ends(path: Path) -> tuple[list[str], bool]:
    """How a file begins and ends, as text; and whether that is all of it. None for a binary."""
    try:
        with open_file(path) as stream:
            head = stream.read(SNIFFED_BYTES)
            size = stream.seek(0, 2)
            stream.seek(max(size - SNIFFED_BYTES, len(head)))
            tail = stream.read(SNIFFED_BYTES)
    except OSError as error:
        raise unreadable(path, error) from None
    try:
        encoding = log_encoding(path, head.lstrip(b"\0") or tail)
    except InputError:
        return [], False
    if encoding == "utf-16":
        tail = head[:2] + tail[len(tail) % 2 :] if tail else tail
    else:
        head, tail = without_holes(head), without_holes(tail)
    texts = [part.decode(encoding, errors="replace") for part in (head, tail) if part]
    return texts, size <= SNIFFED_BYTES


def _notebook_shows_log(path: Path) -> bool:
    # Pictures stand between the outputs: its beginning and its end tell nothing.
    try:
        text, _ = read_text(path, "json_bytes")
    except InputError:
        return False
    return _shows_log(text, path, is_whole=True)


def _shows_log(text: str, path: Path, *, is_whole: bool) -> bool:
    """Whether the text, or a part of it, speaks of training."""
    if any(mark in text for one in formats(WholeFormat) for mark in one.marks):
        return True
    # The beginning of a document can't be read as one.
    if is_whole or not text.lstrip().startswith(("{", "[")):
        log = LogSoFar(path)
        read_rows([text], log)
        if _speaks_of_training(log.notes):
            return True
    if path.suffix == NOTEBOOK:
        return False
    log = LogSoFar(path)
    read_lines([text], log)
    return _speaks_of_training(log.notes)


def _speaks_of_training(notes: Notes) -> bool:
    return bool(
        notes.formats.keys() - {Notebook.name}
        or notes.failures
        or notes.test_loss is not None
        or notes.trainable
    )


def _holds_data(text: str) -> bool:
    first = text.lstrip().split("\n", 1)[0]
    if not first.startswith("{"):
        return False
    try:
        record = json.loads(first)
    except (ValueError, RecursionError):
        return any(f'"{key}":' in first[:2000] for key in DATA_KEYS)
    return isinstance(record, dict) and not DATA_KEYS.isdisjoint(record)
