"""Every row's labels: what is a target, what is not, and what goes wrong on the way."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import numpy as np

from mlxdoctor.evidence.dataset import Split
from mlxdoctor.evidence.row_encoder import Role, RowEncoder, SupervisedRow

#: Rows named for each thing that goes wrong.
EXAMPLES = 5
#: What is counted of rows that have no tokens, beside the symptoms of the check `label-mask`.
REFUSED = "cannot-be-tokenized"


@dataclass
class Totals:
    """What is added up over the rows.

    Attributes:
        rows: rows seen, those that cannot be tokenized included.
        tokens: tokens before the limit cuts them.
        targets: tokens that are trained on, padding left out.
        padding_targets: padding tokens that mlx-lm trains beside them.
        by_role: targets that are prompt, answer, end or something else.
        problems: what goes wrong, as the check `label-mask` calls it -> the lines.
        longest: tokens of the longest row.
    """

    rows: int = 0
    tokens: int = 0
    targets: int = 0
    padding_targets: int = 0
    by_role: Counter[str] = field(default_factory=Counter)
    problems: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    longest: int = 0

    def add(self, line: int, row: SupervisedRow | str) -> None:
        """Count one row, or why it cannot be tokenized."""
        self.rows += 1
        if isinstance(row, str):
            self.problems[REFUSED].append(line)
            return
        self.tokens += len(row.tokens)
        self.longest = max(self.longest, len(row.tokens))
        self.targets += len(row.targets)
        self.padding_targets += int(row.padded)
        roles, counts = np.unique(row.target_roles, return_counts=True)
        for role, count in zip(roles.tolist(), counts.tolist(), strict=True):
            self.by_role[Role(role).name.lower()] += count
        for problem in row.problems:
            self.problems[problem].append(line)

    def to_dict(self) -> dict[str, Any]:
        """The totals as JSON shows them."""
        by_size = sorted(self.problems.items(), key=lambda item: -len(item[1]))
        return {
            "rows": self.rows,
            "tokens": self.tokens,
            "targets": self.targets,
            "share": self.targets / self.tokens if self.tokens else 0.0,
            "padding_targets": self.padding_targets,
            "targets_by_role": dict(self.by_role.most_common()),
            "longest": self.longest,
            "problems": [
                {"problem": name, "rows": len(lines), "first_lines": lines[:EXAMPLES]}
                for name, lines in by_size
            ],
        }


def labelled(split: Split, encoder: RowEncoder) -> Iterator[tuple[int, SupervisedRow | str]]:
    """The lines of a split, from 1, in its file's order: the row, or why it has no tokens."""
    rows = dict(zip(split.line_numbers, split.rows, strict=True))
    for index, line in enumerate(sorted((*rows, *split.bad_lines))):
        yield line, encoder.row(index, rows[line]) if line in rows else split.bad_lines[line]


def spans(row: SupervisedRow) -> list[tuple[str, bool, list[int]]]:
    """The row in runs of tokens of one role that are all targets, or all not.

    Returns:
        (role, whether it is trained on, token ids); what the limit cuts off has the role `cut`.
    """
    first, tokens = max(row.offset, 1), row.tokens.tolist()

    def kind(place: int) -> tuple[str, bool]:
        name = "cut" if place >= row.length else Role(row.roles[place]).name.lower()
        return name, first <= place < row.length

    runs = groupby(range(len(tokens)), kind)
    return [(name, trained, [tokens[p] for p in places]) for (name, trained), places in runs]
