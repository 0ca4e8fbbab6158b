"""The rows a run was trained on: `train.jsonl`, `valid.jsonl`, `test.jsonl`."""

import hashlib
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Literal

from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.exchanges import Exchange, exchanges_of
from mlxdoctor.evidence.json_text import mended, too_deep
from mlxdoctor.evidence.kind import Missing, RunView
from mlxdoctor.evidence.run_files import rows_elsewhere
from mlxdoctor.evidence.source import UTF16_MARKS, Sniffed, Source, read_bytes, require_file
from mlxdoctor.safety.errors import InputError

SPLITS = ("train", "valid", "test")
#: Rows below which there are too few: LoRA guides start at 50 to 100, and fixtures with 12 overfit.
FEW_ROWS = 50

#: A row with one of these and none of the known formats is a line of a log, not of data.
#: What a configuration states of a run of `mlx_lm.lora`, which reads no other keys than it names.
_ARGUMENTS = frozenset({"iters", "train", "data"})
_METRICS = frozenset({"loss", "train_loss", "val_loss", "eval_loss"})

Row = Mapping[str, Any]
Message = Mapping[str, Any]
RowFormat = Literal["chat", "completions", "text", "pairs", "unknown"]


@dataclass(frozen=True)
class Features:
    """The keys under which a row holds its parts: the `*_feature` settings.

    They are mlx-lm's; `chosen` is mlx-lm-lora's.
    """

    prompt: str = "prompt"
    completion: str = "completion"
    chat: str = "messages"
    text: str = "text"
    chosen: str = "chosen"

    @classmethod
    def stated(cls, values: Mapping[str, Any]) -> "Features":
        """The keys that settings name, mlx-lm's own otherwise."""
        stated = {field.name: values.get(f"{field.name}_feature") for field in fields(cls)}
        return cls(**{name: key for name, key in stated.items() if isinstance(key, str) and key})

    @property
    def needed(self) -> Mapping[RowFormat, tuple[str, ...]]:
        """The keys that a row of each format has, in mlx-lm's order of asking for them.

        `pairs`, a chosen answer with or without a rejected one, are not mlx-lm's: other trainers
        read them.
        """
        return {
            "completions": (self.prompt, self.completion),
            "chat": (self.chat,),
            "text": (self.text,),
            "pairs": (self.chosen,),
            "unknown": (),
        }

    def format_of(self, row: Row) -> RowFormat:
        """The format that mlx-lm would take the row for."""
        return next(name for name, keys in self.needed.items() if all(key in row for key in keys))


@dataclass(frozen=True)
class Pair:
    """What is asked and what is answered.

    Attributes:
        prompt: everything before the last answer or the completion; empty for plain text that is
            no question with its answer.
        answer: that answer.
    """

    prompt: str
    answer: str

    @property
    def text(self) -> str:
        """Both, for a search."""
        return f"{self.prompt}\n{self.answer}"


@dataclass(frozen=True)
class Split:
    """One file of a dataset.

    Attributes:
        rows: its rows, in the file's order, lines that are no rows left out.
        line_numbers: the line in the file, from 1, of each row.
        format: what the first row is: mlx-lm treats every row like the first.
        bad_lines: lines that are no rows, at which mlx-lm stops: number from 1 -> a clause that
            says why.
    """

    name: str
    source: Source
    rows: tuple[Row, ...]
    line_numbers: tuple[int, ...]
    format: RowFormat
    bad_lines: Mapping[int, str]
    features: Features

    @property
    def path(self) -> Path:
        """The file's path."""
        return self.source.path

    def messages(self, row: Row) -> list[Message]:
        """The conversation that mlx-lm makes of a row; of a pair, its prompt and the chosen answer.

        Raises:
            KeyError: the row lacks the key that the split's format needs.
            TypeError: it holds no conversation.
        """
        if self.format == "pairs":
            return self._chosen(row)
        if self.format == "completions":
            prompt, answer = row[self.features.prompt], row[self.features.completion]
            return [{"role": "user", "content": prompt}, {"role": "assistant", "content": answer}]
        messages = row[self.features.chat] if self.format == "chat" else None
        if not isinstance(messages, list) or not messages:
            raise TypeError("its messages are not a list with something in it")
        return messages

    def _chosen(self, row: Row) -> list[Message]:
        """The conversation that ends with the chosen answer of a pair.

        Both parts are texts, or lists of messages as TRL has them. A chosen list that holds more
        than answers is the whole conversation.
        """
        answer, asked = row[self.features.chosen], row.get(self.features.prompt)
        said = [{"role": "assistant", "content": answer}] if isinstance(answer, str) else answer
        if not isinstance(said, list) or not said or not all(isinstance(m, Mapping) for m in said):
            raise TypeError("its chosen answer is neither a text nor a list of messages")
        if any(message.get("role") != "assistant" for message in said):
            return said
        if isinstance(asked, str):
            asked = [{"role": "user", "content": asked}]
        if not isinstance(asked, list) or not asked:
            raise TypeError("it has a chosen answer, and no prompt that is a text or messages")
        system = [{"role": "system", "content": row["system"]}] if row.get("system") else []
        return [*system, *asked, *said]

    def conversation(self, row: Row) -> list[Message]:
        """The messages of a row; none of one that holds no conversation."""
        try:
            messages = self.messages(row)
        except (KeyError, TypeError):
            return []
        return messages if all(isinstance(each, Mapping) for each in messages) else []

    @cached_property
    def _exchanges(self) -> Callable[[str], Exchange | None] | None:
        return exchanges_of([_text(row.get(self.features.text)) for row in self.rows])

    def exchange(self, row: Row) -> Exchange | None:
        """The question and the answer that a row of plain text holds, where all rows hold such."""
        text = row.get(self.features.text)
        if self.format != "text" or self._exchanges is None or not isinstance(text, str):
            return None
        return self._exchanges(text)

    def pair(self, row: Row) -> Pair:
        """The prompt and the answer of a row, as plain texts.

        The answer is the assistant's last message, and the prompt all that was said before. A row
        that has no such parts is all answer, as it stands.
        """
        if exchange := self.exchange(row):
            return Pair(exchange.asked, exchange.answered)
        messages = self.conversation(row)
        if answers := answer_places(messages):
            *asked, answer = map(_content, messages[: answers[-1] + 1])
            return Pair("\n".join(asked), answer)
        key = self.features.text if self.format == "text" else self.format
        return Pair("", _text(row.get(key, row)))

    @cached_property
    def pairs(self) -> tuple[Pair, ...]:
        """`pair` of every row."""
        return tuple(map(self.pair, self.rows))

    def without(self, known: Collection[Pair]) -> "Split":
        """The rows that are none of these pairs."""
        kept = [place for place, pair in enumerate(self.pairs) if pair not in known]
        if len(kept) == len(self.rows):
            return self
        rows = tuple(self.rows[place] for place in kept)
        return replace(
            self, rows=rows, line_numbers=tuple(self.line_numbers[place] for place in kept)
        )

    def turn(self, row: Row) -> tuple[str, str] | None:
        """What is asked and answered in a row of one turn; None for any other row."""
        turns = [each for each in self.conversation(row) if each.get("role") != "system"]
        if [each.get("role") for each in turns] != ["user", "assistant"]:
            return None
        asked, answered = (each.get("content") for each in turns)
        return (asked, answered) if isinstance(asked, str) and isinstance(answered, str) else None


def answer_places(messages: Sequence[Message]) -> list[int]:
    """Where in a conversation the assistant speaks."""
    return [place for place, each in enumerate(messages) if each.get("role") == "assistant"]


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, sort_keys=True, default=str)


def _content(message: Message) -> str:
    """What is said in a message; what is not text, such as a call of a tool, as JSON."""
    content = message.get("content")
    # Beside a call of a tool the content may be empty.
    if isinstance(content, str) and (content or not message.get("tool_calls")):
        return content
    if isinstance(content, list):
        texts = [part.get("text") for part in content if isinstance(part, Mapping)]
        return "\n".join(text for text in texts if isinstance(text, str))
    said = message.get("tool_calls") or content
    return "" if said is None else _text(said)


@dataclass(frozen=True)
class Dataset:
    """The data of a run.

    Attributes:
        path: the folder, or the file where only one was named.
        splits: by name; a single file counts as `train` unless its name says otherwise. None of a
            folder that has rows in other places or formats alone.
    """

    kind: ClassVar[str] = "dataset"

    sources: tuple[Source, ...]
    path: Path
    splits: Mapping[str, Split]
    features: Features

    @property
    def texts(self) -> Iterator[str]:
        """Every text in every row of every split, nested ones included."""
        return (
            text for split in self.splits.values() for row in split.rows for text in _texts(row)
        )

    @cached_property
    def held_out(self) -> "Dataset":
        """The same, without rows of other splits that are training rows: they are not held out."""
        train = self.splits.get("train")
        if train is None:
            return self
        known = set(train.pairs)
        others = {name: split.without(known) for name, split in self.splits.items()}
        splits = {name: split for name, split in others.items() if split.rows}
        return replace(self, splits={**splits, "train": train})

    @classmethod
    def find(cls, run: RunView) -> "Dataset":
        files = run.files
        if files.data is not None:
            return cls.read(files.data, run.get(TrainingConfig))
        if files.data_named is not None:
            where = f"the data {files.data_named!r} is not on this machine"
            raise Missing(f"{where}; name its folder with --data")
        raise Missing("nothing names the training data; name its folder with --data")

    @classmethod
    def read(cls, path: Path, named: TrainingConfig | Features | None = None) -> "Dataset":
        """Read a data folder as mlx-lm does, or a single JSON-lines file.

        Args:
            named: the rows' keys where they are not the usual ones, or what states them.

        Raises:
            InputError: there is no such file in the folder, or the file named holds no rows.
        """
        values = named.values if isinstance(named, TrainingConfig) else {}
        features = named if isinstance(named, Features) else Features.stated(values)
        if path.is_dir():
            names = ((name, path / f"{name}.jsonl") for name in SPLITS)
            files = {name: file for name, file in names if file.exists() and not is_log(file)}
            if not files and not rows_elsewhere(path):
                remedy = "name the folder that was given to `mlx_lm.lora --data`"
                raise InputError(path, "has no train.jsonl, valid.jsonl or test.jsonl", remedy)
        else:
            files = {path.stem if path.stem in SPLITS else "train": path}
        splits = {name: _read_split(name, file, features) for name, file in files.items()}
        # A trainer of one's own calls its columns as it likes.
        if isinstance(named, TrainingConfig) and _ARGUMENTS.isdisjoint(values):
            features = _of_two_columns(splits) or features
            splits = {name: _read_split(name, file, features) for name, file in files.items()}
        if not path.is_dir() and not next(iter(splits.values())).rows:
            remedy = "a dataset is one JSON object a line"
            raise InputError(path, "holds no JSON object on any line", remedy)
        sources = tuple(split.source for split in splits.values())
        return cls(sources, path, MappingProxyType(splits), features)


def _of_two_columns(splits: Mapping[str, Split]) -> Features | None:
    """The keys of rows of two texts whose format is unknown: what is asked, and the answer."""
    rows = [row for split in splits.values() for row in split.rows]
    if not rows or any(split.format != "unknown" for split in splits.values()):
        return None
    keys = tuple(rows[0])
    if len(keys) != 2 or not all(isinstance(text, str) for text in rows[0].values()):
        return None
    return Features(prompt=keys[0], completion=keys[1])


def is_log(path: Path) -> bool:
    """Whether a `.jsonl` file holds a log's reports rather than rows: trainers share the names."""
    record = Sniffed(path).record
    # Logs of preferences may have figures called `chosen`.
    is_row = Features().format_of(record) not in ("pairs", "unknown")
    return not is_row and bool(_METRICS & record.keys())


def _read_split(name: str, path: Path, features: Features) -> Split:
    if require_file(path) == 0:
        # An empty split is a fact about the run, not an unusable input.
        nothing = Source(path, hashlib.sha256(b"").hexdigest())
        return Split(name, nothing, (), (), "unknown", {}, features)
    content, source = read_bytes(path, "data_bytes")
    if content[:2] in UTF16_MARKS:
        return Split(name, source, (), (), "unknown", {1: "is in UTF-16, not UTF-8"}, features)
    if b"\0" in content[:65536]:
        raise InputError(path, "is a binary file where JSON lines are needed")
    lines = content.replace(b"\r\n", b"\n").split(b"\n")
    if not lines[-1]:
        lines.pop()
    read = {number: _row(line) for number, line in enumerate(lines, start=1)}
    rows = {number: row for number, row in read.items() if not isinstance(row, str)}
    bad = {number: reason for number, reason in read.items() if isinstance(reason, str)}
    row_format = features.format_of(next(iter(rows.values()))) if rows else "unknown"
    return Split(name, source, tuple(rows.values()), tuple(rows), row_format, bad, features)


def _row(line: bytes) -> dict[str, Any] | str:
    if not line.strip():
        return "is blank"
    try:
        value = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError:
        return "is not UTF-8"
    except (ValueError, RecursionError) as error:
        if line.strip() == b"[":
            return "opens a JSON array, of which no line is an object"
        reason = getattr(error, "msg", "") or "nested too deeply"
        return f"is not JSON ({reason})"
    if not isinstance(value, dict):
        return f"holds a JSON {type(value).__name__} where an object is needed"
    # Only an escape can put half a character there, and no tokenizer takes one.
    if (b"\\ud" in line or b"\\uD" in line) and (too_deep(value) or mended(value) != value):
        return "holds half of a surrogate pair, which is no character"
    return value


def _texts(value: Any) -> Iterator[str]:
    # No row is nested deeper than the limit `json_depth`.
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for part in value.values() if isinstance(value, Mapping) else value:
            yield from _texts(part)
