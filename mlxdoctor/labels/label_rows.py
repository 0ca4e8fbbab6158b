"""Every row's labels: what is a target, what is not, and what goes wrong on the way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mlxdoctor.evidence.dataset import Split
from mlxdoctor.evidence.row_encoder import Role, RowEncoder, SupervisedRow

#: Rows named for each thing that goes wrong.
EXAMPLES = 5
#: What is wrong with the targets of a row, by its sign of the check `label-mask`.
PROBLEMS = {
    "no-supervised-tokens": "no target at all",
    "answers-truncated": "answer cut by the limit",
    "end-token-missing": "no end token",
    "offset-not-a-prefix": "prompt is not how the row begins (mask offset wrong)",
    "double-bos": "two beginning-of-text tokens",
    "earlier-answers-masked": "earlier answers are masked",
}


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
    """What is added up over the rows.

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

    def add(self, labelled: LabelledRow) -> None:
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
        for problem in row.problems:
            self._problem(PROBLEMS[problem], labelled.line)

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


def labelled(split: Split, encoder: RowEncoder) -> Iterator[LabelledRow]:
    """The lines of a split, in its file's order."""
    rows = dict(zip(split.line_numbers, split.rows, strict=True))
    reasons = {bad.number: bad.reason for bad in split.bad_lines}
    for index, line in enumerate(sorted((*rows, *reasons))):
        row = encoder.row(index, rows[line]) if line in rows else reasons[line]
        yield LabelledRow(line, None, row) if isinstance(row, str) else LabelledRow(line, row)


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
