"""Every row's labels, streamed: what is a target, what is not, and what goes wrong on the way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from mlxdoctor.evidence.chat_template import TemplateFailure
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.dataset import SPLITS, Features, parse_line
from mlxdoctor.evidence.kind import Progress
from mlxdoctor.evidence.mlx_lm_defaults import MLX_LM_DEFAULTS
from mlxdoctor.evidence.row_encoder import Role, RowEncoder, SupervisedRow
from mlxdoctor.evidence.source import require_file
from mlxdoctor.evidence.tokenizer import Tokenizer
from mlxdoctor.safety.errors import InputError

#: A line longer than this is no row (bytes).
MAX_LINE_BYTES = 16 << 20
#: Rows named for each thing that goes wrong.
EXAMPLES = 5


@dataclass(frozen=True)
class LabelledRow:
    """One line of the data: its tokens and labels, or why it has none.

    Attributes:
        line: its number in the file, from 1.
        row: None where it cannot be tokenized; `reason` says why.
    """

    line: int
    row: SupervisedRow | None
    reason: str = ""


@dataclass
class Totals:
    """What is added up over the rows; memory does not grow with them.

    Attributes:
        rows: rows seen, those that cannot be tokenized included.
        tokens: tokens before the limit cuts them.
        targets: tokens that are trained on, padding left out.
        padding_targets: padding tokens that mlx-lm trains beside them.
        by_role: targets that are prompt, answer, end or something else.
        problems: what goes wrong -> how many rows.
        lines: what goes wrong -> the first lines.
        longest: tokens of the longest row.
    """

    rows: int = 0
    tokens: int = 0
    targets: int = 0
    padding_targets: int = 0
    by_role: Counter[str] = field(default_factory=Counter)
    problems: Counter[str] = field(default_factory=Counter)
    lines: dict[str, list[int]] = field(default_factory=dict)
    longest: int = 0

    def add(self, labelled: LabelledRow, end_ids: tuple[int, ...], bos_id: int | None) -> None:
        """Count one row."""
        self.rows += 1
        row = labelled.row
        if row is None:
            self._problem("cannot be tokenized", labelled.line)
            return
        self.tokens += row.full_length
        self.longest = max(self.longest, row.full_length)
        self.targets += len(row.targets)
        self.padding_targets += int(row.padded)
        counts = np.bincount(row.target_roles, minlength=len(Role))
        for role in Role:
            if counts[role]:
                self.by_role[role.name.lower()] += int(counts[role])
        for name in _problems(row, end_ids, bos_id):
            self._problem(name, labelled.line)

    def _problem(self, name: str, line: int) -> None:
        self.problems[name] += 1
        first = self.lines.setdefault(name, [])
        if len(first) < EXAMPLES:
            first.append(line)

    def to_dict(self) -> dict[str, Any]:
        """The totals as JSON shows them."""
        return {
            "rows": self.rows,
            "tokens": self.tokens,
            "targets": self.targets,
            "share": self.targets / self.tokens if self.tokens else 0.0,
            "padding_targets": self.padding_targets,
            "targets_by_role": dict(self.by_role),
            "longest": self.longest,
            "problems": [
                {"problem": name, "rows": count, "first_lines": self.lines[name]}
                for name, count in self.problems.most_common()
            ],
        }


def _problems(row: SupervisedRow, end_ids: tuple[int, ...], bos_id: int | None) -> Iterator[str]:
    if len(row.targets) == 0:
        yield "no target at all"
    if row.full_length > row.length:
        yield "longer than the limit"
        kept = row.roles[: row.length]
        if (row.roles == Role.ANSWER).sum() > (kept == Role.ANSWER).sum():
            yield "answer cut by the limit"
        if (row.roles == Role.END).any() and not (kept == Role.END).any():
            yield "end token cut by the limit"
    if end_ids and not np.isin(row.tokens, end_ids).any():
        yield "no end token"
    if not row.prefix_matches:
        yield "prompt is not how the row begins (mask offset wrong)"
    if bos_id is not None and row.full_length > 1 and (row.tokens[:2] == bos_id).all():
        yield "two beginning-of-text tokens"
    if row.offset and row.assistant_turns > 1:
        yield "earlier answers are masked"


@dataclass(frozen=True)
class LabelRules:
    """How rows become labels.

    Attributes:
        mask_prompt: whether only the last answer is trained on.
        max_seq_length: tokens after which a row is cut.
        features: the keys of the rows.
    """

    mask_prompt: bool
    max_seq_length: int
    features: Features

    @classmethod
    def of(
        cls,
        config: TrainingConfig | None,
        mask_prompt: bool | None = None,
        max_seq_length: int | None = None,
    ) -> LabelRules:
        """A configuration's rules; mlx-lm's defaults without one; given values come first."""
        stated = bool(config.mask_prompt) if config is not None else False
        limit = (config and config.max_seq_length) or MLX_LM_DEFAULTS["max_seq_length"]
        return cls(
            stated if mask_prompt is None else mask_prompt,
            max_seq_length or limit,
            Features.of(config),
        )


def data_file(path: Path, split: str) -> Path:
    """The file of a split in a data folder; a file is itself.

    Raises:
        InputError: the folder has no such file.
    """
    if not path.is_dir():
        return path
    file = path / f"{split}.jsonl"
    if not file.is_file():
        there = [name for name in SPLITS if (path / f"{name}.jsonl").is_file()]
        hint = f"it has {', '.join(there)}: name one with --split" if there else ""
        raise InputError(path, f"has no {split}.jsonl", hint or "name a folder with train.jsonl")
    return file


def stream(
    file: Path, tokenizer: Tokenizer, rules: LabelRules, progress: Progress | None = None
) -> Iterator[LabelledRow]:
    """The rows of a file of JSON lines, one at a time.

    Args:
        file: read line by line: memory does not grow with it.
        progress: called with bytes read and bytes in all.

    Raises:
        InputError: there is no such file, it is empty, or its first row is in no format that
            mlx-lm knows, or a line has no end.
    """
    size = require_file(file)
    if size == 0:
        raise InputError(file, "is empty", "it was probably not written to the end")
    encoder: RowEncoder | None = None
    done = 0
    with file.open("rb") as stream_:
        for number, line in enumerate(iter(lambda: stream_.readline(MAX_LINE_BYTES), b""), start=1):
            done += len(line)
            if len(line) == MAX_LINE_BYTES and not line.endswith(b"\n"):
                problem = f"has over {MAX_LINE_BYTES:,} bytes in line {number:,}"
                raise InputError(file, problem, "write one row a line")
            if progress is not None:
                progress("labelling rows", done, size)
            if not line.strip():
                continue
            row = parse_line(line)
            if isinstance(row, str):
                yield LabelledRow(number, None, row)
                continue
            if encoder is None:
                encoder = _encoder(file, row, tokenizer, rules)
            try:
                yield LabelledRow(number, encoder.row(number - 1, row))
            except (TemplateFailure, KeyError, TypeError, AttributeError, IndexError) as error:
                yield LabelledRow(number, None, f"{type(error).__name__}: {error}")


def _encoder(
    file: Path, row: dict[str, Any], tokenizer: Tokenizer, rules: LabelRules
) -> RowEncoder:
    row_format = rules.features.format_of(row)
    if row_format == "unknown":
        raise InputError(
            file,
            f"has rows with the keys {', '.join(sorted(row)[:6])}, in which mlx-lm finds no text",
            "use `messages`, `prompt` and `completion`, or `text`",
        )
    return RowEncoder(
        tokenizer, rules.features, row_format, rules.mask_prompt, rules.max_seq_length
    )


def spans(row: SupervisedRow) -> list[tuple[str, bool, list[int]]]:
    """The row in runs of tokens of one role that are all targets, or all not.

    Returns:
        (role, whether it is trained on, token ids); what the limit cuts off has the role `cut`.
    """
    first = max(row.offset, 1)
    runs: list[tuple[str, bool, list[int]]] = []
    for at, (token, role) in enumerate(zip(row.tokens.tolist(), row.roles.tolist(), strict=True)):
        name = "cut" if at >= row.length else Role(role).name.lower()
        trained = first <= at < row.length
        if runs and runs[-1][:2] == (name, trained):
            runs[-1][2].append(token)
        else:
            runs.append((name, trained, [token]))
    return runs
