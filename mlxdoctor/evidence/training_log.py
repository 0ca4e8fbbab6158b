"""The training log: every report in it, whatever the trainer and the format.

Nothing is invented: a row that names no iteration is numbered as a row, and says so.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, ClassVar

from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.kind import Missing, RunView
from mlxdoctor.evidence.logs.log_format import LogFormat, LogSoFar, formats
from mlxdoctor.evidence.logs.reader import read_log, read_rows
from mlxdoctor.evidence.logs.series import LogFailure, Notes, Segment, Series
from mlxdoctor.evidence.logs.text_stream import LogStream
from mlxdoctor.evidence.source import SNIFF_BYTES, Source, open_file, read_text, text_encoding
from mlxdoctor.safety.errors import InputError

__all__ = ["LogFailure", "Segment", "Series", "TrainingLog", "looks_like_log"]

#: What a training log may be called.
_LOG_NAME = re.compile(
    r"^(?:(?:train|finetun|fine[_-]tun|lora|sft|loss|metrics|history|nohup|output|stdout|console)"
    r".{0,60}\.(?:log|out|txt|jsonl|csv|tsv)|log\.txt|stdout|nohup)$",
    re.IGNORECASE,
)
_LOG_SUFFIXES = frozenset((".log", ".out", ".err", ".txt", ".csv", ".tsv", ".jsonl"))
#: Validations that are a course of their own.
COURSE = 3
#: A loss in a JSON document.
_LOSS_OF_A_TIME = re.compile(
    r'[{,]\s{0,40}"(?:(?:\w{0,20}_)?loss|train|val)"\s{0,4}:\s{0,4}-?(?:\d+\.|\d|N)'
)
#: And three and more of them, or of rewards, in a list.
_LOSSES = re.compile(
    r'"(?:(?:\w{0,20}_)?loss(?:es|_history)?|train|(?:\w{0,20}_)?rewards?(?:_\w{1,10})?)"'
    r"\s{0,4}:\s{0,4}\[(?:\s{0,40}-?\d[^,\]]{0,40},){2,}"
)
#: Such lines, or such losses, that make a file a log.
MIN_LIKE_REPORTS = 3
#: What a log says of its run -> the key of the configuration that states it.
_SAID = {"iters": "iters", "dataset": "data", "configuration": "config"}
#: How a notebook's name ends.
NOTEBOOK = ".ipynb"


@dataclass(frozen=True)
class TrainingLog:
    """What one run printed or recorded while it trained.

    Attributes:
        sources: the files, with what of each is not judged as it stands.
        format: the families of lines found, the most frequent first ("named values, table").
        segments: the runs in it, in order; a restart begins another.
    """

    kind: ClassVar[str] = "training log"

    sources: tuple[Source, ...]
    format: str
    segments: tuple[Segment, ...]
    notes: Notes = field(default_factory=Notes)

    @cached_property
    def main(self) -> Segment:
        """The segment to judge: the last with training losses, else the last."""
        return _judged(self.segments)

    @property
    def is_preference(self) -> bool:
        """Whether a reward or preference was trained: its loss is no cross-entropy."""
        stated = self.notes.header.get("training", "").upper()
        known = ("ORPO", "DPO", "CPO", "KTO", "SIMPO", "GRPO", "PPO", "XPO", "RLHF", "FTPO")
        return any(name in stated for name in known) or self.main.is_preference

    @property
    def resumed(self) -> bool | None:
        """Whether training began from an earlier adapter; None where the log can't tell."""
        if "resumed_from" in self.notes.header:
            return True
        # mlx-lm names the adapter it resumes from before it counts all parameters.
        trainable = self.notes.trainable
        return False if trainable and trainable.total_millions is not None else None

    @cached_property
    def names(self) -> list[str]:
        """What each run is called: a column's name, or the heading that no other run has."""
        ends = [0, *(run.last_line for run in self.segments)]
        above = [
            [text for line, text in self.notes.headings if end < line < run.first_line]
            for run, end in zip(self.segments, ends, strict=False)
        ]
        counted = Counter(text for texts in above for text in set(texts))
        return [
            run.name or next((text for text in reversed(texts) if counted[text] == 1), "")
            for run, texts in zip(self.segments, above, strict=True)
        ]

    @classmethod
    def find(cls, run: RunView) -> "TrainingLog":
        if not run.files.logs:
            named = (path for path in run.files.unrecognised if _LOG_NAME.search(path.name))
            empty = [path.name for path in named if path.is_file() and not path.stat().st_size]
            why = f"{empty[0]} is empty, and no other" if empty else "no"
            raise Missing(f"{why} training log was found; name it with --log")
        config = run.get(TrainingConfig) if len(run.files.logs) > 1 else None
        return cls.read(run.files.logs, config.values if config is not None else {})

    @classmethod
    def read(cls, paths: Sequence[Path], stated: Mapping[str, Any] = {}) -> "TrainingLog":
        """Read the files of one run's log.

        Args:
            stated: the configuration: a log that says otherwise of itself is another run's.

        Raises:
            InputError: a file can't be read, or none holds a report on training.
        """
        files: list[tuple[Source, list[Segment], Notes]] = []
        for path in paths:
            stream = LogStream(path)
            runs, own = read_log(stream, path)
            files.append((stream.source, runs, own))
        # A run that was resumed comes after the one that it goes on from.
        files.sort(key=lambda file: (-_unlike(file[2], stated), "resumed_from" in file[2].header))
        segments = tuple(chain.from_iterable(runs for _, runs, _ in files))
        notes, main, sources = Notes(), _judged(segments), []
        for source, runs, own in files:
            own.header |= _stated_of(main, runs, own)
            notes.add(own)
            clauses = _remarks(runs, own.unread, main, is_alone=len(files) == 1)
            sources.append(replace(source, note="; ".join(filter(None, (source.note, *clauses)))))
        if not segments and not notes.tell_of_a_run:
            if notes.problems:
                raise notes.problems[0]
            *most, last = (kind.understood for kind in formats(LogFormat) if kind.understood)
            remedy = f"understood are {', '.join(most)}, and {last}"
            raise InputError(paths[0] if paths else None, "holds no report on training", remedy)
        return cls(
            sources=tuple(sources),
            format=", ".join(name for name, _ in notes.formats.most_common()) or "messages only",
            segments=segments,
            notes=notes,
        )


def _unlike(notes: Notes, stated: Mapping[str, Any]) -> int:
    """Of how much of itself a log says something else than the configuration does."""
    said = {key: notes.header.get(name) for name, key in _SAID.items()}
    return sum(
        None not in (text, stated.get(key)) and Path(str(text)).name != Path(str(stated[key])).name
        for key, text in said.items()
    )


def _judged(segments: Sequence[Segment]) -> Segment:
    """The run to judge: the last with training losses or a course of others, else the last."""
    trained = [
        segment
        for segment in segments
        if segment.get("train_loss") is not None or len(segment.finite("val_loss")) >= COURSE
    ]
    return (trained or list(segments) or [Segment({}, 0, 0)])[-1]


def _stated_of(main: Segment, runs: Sequence[Segment], notes: Notes) -> dict[str, str]:
    """What was said anew of the judged run, between the run before it and its first report."""
    for before, run in pairwise(runs):
        if run is main:
            between = range(before.last_line + 1, run.first_line)
            return {entry: value for line, entry, value in notes.restated if line in between}
    return {}


def _remarks(
    runs: Sequence[Segment], unread: Sequence[int], main: Segment, *, is_alone: bool
) -> Iterator[str]:
    """What of a file is not judged as it stands, a clause each; `main` is what is judged."""

    def count(number: int, what: str) -> str:
        return f"{number:,} {what}{'' if number == 1 else 's'}"

    reports = sum(run.reports for run in runs)
    is_judged = any(run is main for run in runs)
    if is_judged and reports > main.reports:
        others = "another run" if len(runs) == 2 else f"{len(runs) - 1} other runs"
        yield (
            f"judged {main.reports:,} of {reports:,} reports, those of lines {main.first_line:,} "
            f"to {main.last_line:,}; the others are of {others} in the file"
        )
    elif reports and not is_judged and not is_alone:
        yield f"its {count(reports, 'report')} were not judged: those of another log were"
    if repeats := sum(run.repeats for run in runs):
        yield f"{count(repeats, 'report')} printed a second time, counted once"
    if unread:
        number = count(len(unread), "line")
        yield f"{number} that may be reports could not be read, first line {unread[0]:,}"


def looks_like_log(path: Path, *, is_named: bool = False) -> bool:
    """Whether a file is a training log, from its first and last 64 KiB.

    Data rows, generations and configurations are not logs.

    Args:
        is_named: whether the user named the file: one that tells of a training without a report is
            a log then, as it is where it is called one.

    Raises:
        InputError: the file can't be read, or is a device or a pipe.
    """
    if holds_history(path):
        return True
    # Pictures stand between a notebook's outputs: its beginning and its end tell nothing.
    is_notebook = path.suffix == NOTEBOOK
    texts = [read_text(path, "json_bytes")[0]] if is_notebook else _ends(path)
    is_named = is_named or _LOG_NAME.search(path.name) is not None
    said = (_notes(text, path) for text in texts)
    return any(
        bool(notes.formats) or (notes.tell_of_a_run if is_named else notes.tell_of_training)
        for notes in said
    )


def holds_history(path: Path) -> bool:
    """Whether a file is a JSON document with losses of several times, whatever else it states.

    Raises:
        InputError: as `looks_like_log`.
    """
    if path.suffix != ".json":
        return False
    texts = _ends(path)
    losses = sum(len(_LOSS_OF_A_TIME.findall(text)) for text in texts)
    return losses >= MIN_LIKE_REPORTS or any(map(_LOSSES.search, texts))


def looks_like_unread_log(path: Path) -> bool:
    """Whether a file that no reader claims is a training log by its name and what is in it.

    Raises:
        InputError: as `looks_like_log`.
    """
    is_named = _LOG_NAME.search(path.name) is not None
    texts = _ends(path) if is_named or path.suffix in _LOG_SUFFIXES else []
    if is_named and path.suffix in (".log", ".out"):
        return bool("".join(texts).strip())
    return sum(len(_notes(text, path).unread) for text in texts) >= MIN_LIKE_REPORTS


def _ends(path: Path) -> list[str]:
    """How a file begins and ends, as text; empty for a binary file."""
    with open_file(path) as stream:
        head = stream.read(SNIFF_BYTES)
        size = stream.seek(0, 2)
        stream.seek(max(size - SNIFF_BYTES, len(head)))
        tail = stream.read(SNIFF_BYTES)
    try:
        encoding = text_encoding(path, head)
    except InputError:
        return []
    if encoding == "utf-16":
        tail = head[:2] + tail[len(tail) % 2 :] if tail else tail
    return [part.decode(encoding, errors="replace") for part in (head, tail) if part]


def _notes(text: str, path: Path) -> Notes:
    """What a log's text, or a part of it, says beside its rows."""
    log = LogSoFar(path)
    read_rows([text], log)
    return log.notes
