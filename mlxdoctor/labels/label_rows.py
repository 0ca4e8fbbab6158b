"""Every row's labels: what is a target, what is not, and what goes wrong on the way."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any

from mlxdoctor.evidence.dataset import Split
from mlxdoctor.evidence.row_encoder import Role, RowEncoder, SupervisedRow

#: Rows named for each thing that goes wrong.
EXAMPLES = 5
#: What is counted of rows that have no tokens, beside the symptoms of the check `label-mask`.
REFUSED = "cannot-be-tokenized"


def totals(rows: Iterable[tuple[int, SupervisedRow | str]]) -> dict[str, Any]:
    """What rows by line add up to, as JSON shows it.

    `tokens` are those before the limit cuts them, `targets` those trained on, and
    `padding_targets` the padding tokens that mlx-lm trains beside them. Problems are called as by
    the check `label-mask`.
    """
    sums, by_role, longest = Counter[str](), Counter[int](), 0
    problems: dict[str, list[int]] = defaultdict(list)
    for line, row in rows:
        sums["rows"] += 1
        if isinstance(row, str):
            problems[REFUSED].append(line)
            continue
        longest = max(longest, len(row.tokens))
        sums["tokens"] += len(row.tokens)
        sums["targets"] += len(row.targets)
        sums["padding_targets"] += int(row.padded)
        by_role.update(row.target_roles.tolist())
        for problem in row.problems:
            problems[problem].append(line)
    by_size = sorted(problems.items(), key=lambda item: -len(item[1]))
    return {
        **{name: sums[name] for name in ("rows", "tokens", "targets")},
        "share": sums["targets"] / max(sums["tokens"], 1),
        "padding_targets": sums["padding_targets"],
        "targets_by_role": {
            Role(role).name.lower(): count for role, count in by_role.most_common()
        },
        "longest": longest,
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
